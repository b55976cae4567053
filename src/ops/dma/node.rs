//! The nodes of graphs that copy.

use super::{CopyRequest, Dma};
use crate::mem::{AnyCopyDestination, AnyCopySource};
use crate::ops::graph::{Action, Attach, GraphBuilder, Node, Operands};
use crate::reactor::Attachment;

/// The kind of a node that copies: [`GraphBuilder::dma_copy`]. It is set to a source and a
/// destination.
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
    /// A node that copies, as [`Dma::copy`] does, to or from another process as well. Its result is
    /// the number of bytes.
    #[doc(alias = "doca_graph_ctx_node_create")]
    #[doc(alias = "doca_graph_node_create_from_ctx")]
    pub fn dma_copy(&mut self, dma: &Dma) -> Node<CopyNode> {
        self.context(dma.clone())
    }
}
