//! Graph nodes that hash.

use super::{Sha, ShaRequest};
use crate::device::Algorithm;
use crate::mem::{AnyDestination, AnySource};
use crate::ops::graph::{Action, Attach, GraphBuilder, Node, Operands};
use crate::reactor::Attachment;

/// The kind of a node that hashes ([`GraphBuilder::sha`]). Such a node is set to a source, and a
/// destination for the digest: `(source, destination)`.
///
/// ```
/// use tokio_doca::graph::{Graph, HashNode, Node};
/// use tokio_doca::sha::{Algorithm, Sha};
/// # use tokio_doca::{BufPool, Device, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let sha = Sha::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, old, new) = (pool.alloc().await, pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"abc")?;
/// let mut g = Graph::builder();
/// let sha1: Node<HashNode> = g.sha(&sha, Algorithm::Sha1);
/// let sha512: Node<HashNode> = g.sha(&sha, Algorithm::Sha512);
/// let mut instance = g.build()?.instance()?;
/// instance.set(sha1, (&src, &old))?;
/// instance.set(sha512, (&src, &new))?;
/// instance.run().await?;                              // both at once
/// assert_eq!((instance.result(sha1), instance.result(sha512)), (Some(Ok(20)), Some(Ok(64))));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum HashNode {}

impl Action for HashNode {
    type Context = (Sha, Algorithm);
    type Data = Operands;
    type Request = ShaRequest<Sha, AnySource, AnyDestination>;
    const NAME: &'static str = "sha";
    const ATTACH: Option<Attach<Self::Context>> =
        Some(|(sha, algorithm), workq| Ok((sha.attach(workq)?, *algorithm)));

    fn attachment((sha, _): &(Sha, Algorithm)) -> &Attachment {
        sha.attachment()
    }

    fn request(
        (sha, algorithm): &(Sha, Algorithm),
        Operands { src, dst }: Operands,
    ) -> Self::Request {
        ShaRequest::whole(sha.clone(), *algorithm, src, dst)
    }
}

impl GraphBuilder {
    /// Returns a node that hashes, as [`Sha::hash`] does. The node is set to a source and a
    /// destination: `(source, destination)`. Its result is the length of the digest in bytes.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn sha(&mut self, sha: &Sha, algorithm: Algorithm) -> Node<HashNode> {
        self.context((sha.clone(), algorithm))
    }
}
