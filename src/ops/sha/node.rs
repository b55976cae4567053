//! The nodes of graphs that hash.

use super::{Sha, ShaRequest};
use crate::device::Algorithm;
use crate::mem::{AnyDestination, AnySource};
use crate::ops::graph::{Action, Attach, GraphBuilder, Node, Operands};
use crate::reactor::Attachment;

/// The kind of a node that hashes: [`GraphBuilder::sha`]. It is set to a source, and a destination
/// for the digest.
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
    /// A node that hashes, as [`Sha::hash`] does. Its result is the number of bytes of the digest.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn sha(&mut self, sha: &Sha, algorithm: Algorithm) -> Node<HashNode> {
        self.context((sha.clone(), algorithm))
    }
}
