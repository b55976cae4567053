//! Graph nodes that copy.

use super::{CopyRequest, Dma};
use crate::mem::{AnyCopyDestination, AnyCopySource};
use crate::ops::graph::{Action, Attach, GraphBuilder, Node, Operands};
use crate::reactor::Attachment;

/// The kind of a node that copies ([`GraphBuilder::dma_copy`]). Such a node is set to a pair:
/// `(source, destination)`.
///
/// ```
/// use tokio_doca::graph::{CopyNode, Graph, Node};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let mut g = Graph::builder();
/// let copies: Vec<Node<CopyNode>> = (0..3).map(|_| g.dma_copy(&dma)).collect();
/// for pair in copies.windows(2) {
///     g.depends(pair[1], pair[0]);                    // one after the other
/// }
/// let mut instance = g.build()?.instance()?;
/// for &copy in &copies {
///     instance.set(copy, (&src, &dst))?;
/// }
/// instance.run().await?;
/// assert_eq!(dst.data_len(), 15);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum CopyNode {}

impl Action for CopyNode {
    type Context = Dma;
    type Data = Operands<AnyCopySource, AnyCopyDestination>;
    type Request = CopyRequest<Dma, AnyCopySource, AnyCopyDestination>;
    const NAME: &'static str = "dma_copy";
    const ATTACH: Option<Attach<Dma>> = Some(Dma::attach);

    fn attachment(dma: &Dma) -> &Attachment {
        dma.attachment()
    }

    fn request(dma: &Dma, Operands { src, dst }: Self::Data) -> Self::Request {
        let dma = dma.clone();
        CopyRequest { dma, src, dst }
    }
}

impl GraphBuilder {
    /// Returns a node that copies, as [`Dma::copy`] does, within the process or to or from memory
    /// of another process. The node is set to `(source, destination)`. Its result is the number of
    /// copied bytes.
    #[doc(alias = "doca_graph_ctx_node_create")]
    #[doc(alias = "doca_graph_node_create_from_ctx")]
    pub fn dma_copy(&mut self, dma: &Dma) -> Node<CopyNode> {
        self.context(dma.clone())
    }
}
