//! The context nodes that there are, one part for each context.

use super::super::super::accel::{Accel, AccelCall, CallRequest};
use super::super::super::dma::{CopyRequest, Dma};
use super::super::super::sha::{Sha, ShaRequest};
use super::super::node::{Action, Attach, Node};
use super::super::plan::GraphBuilder;
use crate::device::Algorithm;
use crate::mem::{
    AnyCopyDestination, AnyCopySource, AnyDestination, AnySource, MaybeAnyDestination,
    MaybeAnySource,
};
use crate::reactor::Attachment;

/// What a node that copies or hashes is set to: made of `(source, destination)`.
#[derive(Clone, Debug)]
pub struct Operands<S = AnySource, D = AnyDestination> {
    src: S,
    dst: D,
}

impl<A: Into<S>, B: Into<D>, S, D> From<(A, B)> for Operands<S, D> {
    fn from((src, dst): (A, B)) -> Operands<S, D> {
        Operands {
            src: src.into(),
            dst: dst.into(),
        }
    }
}

/// The kind of a node that copies: [`GraphBuilder::dma_copy`]. It is set to a source and a destination.
#[derive(Debug)]
pub enum CopyNode {}

impl Action for CopyNode {
    type Context = Dma;
    type Data = Operands;
    type Request = CopyRequest<Dma, AnySource, AnyDestination>;
    const NAME: &'static str = "dma_copy";
    const ATTACH: Option<Attach<Dma>> = Some(Dma::attach);

    fn attachment(dma: &Dma) -> &Attachment {
        dma.attachment()
    }

    fn request(dma: &Dma, Operands { src, dst }: Operands) -> Self::Request {
        let dma = dma.clone();
        CopyRequest { dma, src, dst }
    }
}

/// The kind of a node that copies to or from another process: [`GraphBuilder::dma_copy_remote`]. It is set to a source and a
/// destination.
#[derive(Debug)]
pub enum RemoteCopyNode {}

impl Action for RemoteCopyNode {
    type Context = Dma;
    type Data = Operands<AnyCopySource, AnyCopyDestination>;
    type Request = CopyRequest<Dma, AnyCopySource, AnyCopyDestination>;
    const NAME: &'static str = "dma_copy_remote";
    const ATTACH: Option<Attach<Dma>> = Some(Dma::attach);

    fn attachment(dma: &Dma) -> &Attachment {
        dma.attachment()
    }

    fn request(dma: &Dma, Operands { src, dst }: Self::Data) -> Self::Request {
        let dma = dma.clone();
        CopyRequest { dma, src, dst }
    }
}

/// The kind of a node that calls an accelerator: [`GraphBuilder::accel`]. It is set to an [`AccelCall`].
#[derive(Debug)]
pub enum CallNode {}

/// What a calling node is set to: made of an [`AccelCall`].
#[derive(Clone, Debug)]
pub struct CallData(AccelCall<MaybeAnySource, MaybeAnyDestination>);

impl<S, D> From<AccelCall<S, D>> for CallData
where
    S: Into<MaybeAnySource>,
    D: Into<MaybeAnyDestination>,
{
    fn from(call: AccelCall<S, D>) -> CallData {
        CallData(call.map(S::into, D::into))
    }
}

impl Action for CallNode {
    type Context = Accel;
    type Data = CallData;
    type Request = CallRequest<Accel, MaybeAnySource, MaybeAnyDestination>;
    const NAME: &'static str = "accel";
    const ATTACH: Option<Attach<Accel>> = Some(Accel::attach);

    fn attachment(accel: &Accel) -> &Attachment {
        accel.attachment()
    }

    fn request(accel: &Accel, CallData(call): CallData) -> Self::Request {
        let accel = accel.clone();
        CallRequest { accel, call }
    }
}

/// The kind of a node that hashes: [`GraphBuilder::sha`]. It is set to a source, and a destination for the digest.
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
    /// A node that copies, as [`Dma::copy`] does. Its result is the number of bytes.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn dma_copy(&mut self, dma: &Dma) -> Node<CopyNode> {
        self.context(dma.clone())
    }

    /// A node that copies to or from a [`RemoteBuf`](crate::mem::RemoteBuf), as [`Dma::copy`] does. Its result is the number of bytes.
    /// It takes all other operands as well; a [`dma_copy`](GraphBuilder::dma_copy) of those is cheaper.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn dma_copy_remote(&mut self, dma: &Dma) -> Node<RemoteCopyNode> {
        self.context(dma.clone())
    }

    /// A node that hashes, as [`Sha::hash`] does. Its result is the number of bytes of the digest.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn sha(&mut self, sha: &Sha, algorithm: Algorithm) -> Node<HashNode> {
        self.context((sha.clone(), algorithm))
    }

    /// A node that calls an accelerator, as [`Accel::call`] does. Its result is the call's.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn accel(&mut self, accel: &Accel) -> Node<CallNode> {
        self.context(accel.clone())
    }
}
