//! Graph nodes that compute CRCs.

use super::{Crc, CrcCopied, CrcOptions, CrcRequest};
use crate::mem::{AnyDestination, AnySource};
use crate::ops::graph::{Action, Attach, GraphBuilder, Node};
use crate::reactor::Attachment;

/// The kind of a node that computes a CRC. [`GraphBuilder::crc32c`] returns such a node, and
/// documents its operands.
#[derive(Debug)]
pub enum CrcNode {}

/// The operands of a node of [`GraphBuilder::crc32c`], which documents what converts to them.
#[derive(Clone, Debug)]
pub struct CrcData {
    src: AnySource,
    options: CrcOptions,
}

impl<S: Into<AnySource>> From<S> for CrcData {
    fn from(src: S) -> CrcData {
        (src, CrcOptions::new()).into()
    }
}

impl<S: Into<AnySource>> From<(S, CrcOptions)> for CrcData {
    fn from((src, options): (S, CrcOptions)) -> CrcData {
        let src = src.into();
        CrcData { src, options }
    }
}

impl Action for CrcNode {
    type Context = Crc;
    type Data = CrcData;
    type Request = CrcRequest<Crc, AnySource, (), u32>;
    const NAME: &'static str = "crc32c";
    const ATTACH: Option<Attach<Crc>> = Some(Crc::attach);

    fn attachment(crc: &Crc) -> &Attachment {
        crc.attachment()
    }

    fn request(crc: &Crc, CrcData { src, options }: CrcData) -> Self::Request {
        CrcRequest::new(crc.clone(), options, src, ())
    }
}

/// The kind of a node that copies and computes a CRC. [`GraphBuilder::copy_crc`] returns such a
/// node, and documents its operands.
#[derive(Debug)]
pub enum CopyCrcNode {}

/// The operands of a node of [`GraphBuilder::copy_crc`], which documents what converts to them.
#[derive(Clone, Debug)]
pub struct CopyCrcData {
    src: AnySource,
    dst: AnyDestination,
    options: CrcOptions,
}

impl<S: Into<AnySource>, D: Into<AnyDestination>> From<(S, D)> for CopyCrcData {
    fn from((src, dst): (S, D)) -> CopyCrcData {
        (src, dst, CrcOptions::new()).into()
    }
}

impl<S: Into<AnySource>, D: Into<AnyDestination>> From<(S, D, CrcOptions)> for CopyCrcData {
    fn from((src, dst, options): (S, D, CrcOptions)) -> CopyCrcData {
        let (src, dst) = (src.into(), dst.into());
        CopyCrcData { src, dst, options }
    }
}

impl Action for CopyCrcNode {
    type Context = Crc;
    type Data = CopyCrcData;
    type Request = CrcRequest<Crc, AnySource, AnyDestination, CrcCopied>;
    const NAME: &'static str = "copy_crc";
    const ATTACH: Option<Attach<Crc>> = Some(Crc::attach);

    fn attachment(crc: &Crc) -> &Attachment {
        crc.attachment()
    }

    fn request(crc: &Crc, CopyCrcData { src, dst, options }: CopyCrcData) -> Self::Request {
        CrcRequest::new(crc.clone(), options, src, dst)
    }
}

impl GraphBuilder {
    /// Returns a node that computes a CRC, as [`Crc::crc32c_with`] does. The node is set to a
    /// source, or to `(source, options)`. Its result is the CRC.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn crc32c(&mut self, crc: &Crc) -> Node<CrcNode> {
        self.context(crc.clone())
    }

    /// Returns a node that copies and computes a CRC, as [`Crc::copy_crc_with`] does. The node is
    /// set to `(source, destination)`, or to `(source, destination, options)`. Its result is a
    /// number that [`CrcCopied::from`](CrcCopied) converts.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn copy_crc(&mut self, crc: &Crc) -> Node<CopyCrcNode> {
        self.context(crc.clone())
    }
}
