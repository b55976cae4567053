//! The graph nodes of an Rdma: messages and one-sided operations. Receives are not jobs:
//! `graph/kinds/receive.rs` has their node.

use super::{Rdma, RdmaRequest};
use crate::device::Verb;
use crate::mem::{MaybeAnyDestination, MaybeAnyRemote, MaybeAnySource};
use crate::ops::graph::{Action, Attach, GraphBuilder, Node};
use crate::reactor::Attachment;

type Local = MaybeAnySource;
type RecvBuf = MaybeAnyDestination;
type Remote = MaybeAnyRemote;

/// Defines for each operation the kind of its node, the data that the node is set to with what
/// converts to it, and the method of [`GraphBuilder`] that makes the node.
macro_rules! nodes {
    ($(
        $(#[$doc:meta])*
        fn $method:ident -> $kind:ident, $data:ident { $src:ty => $dst:ty }
            from [$($side:ident: $into:ty),*] $parts:pat_param => $from:ty
            { $verb:expr, $one:expr, $other:expr }
    )*) => {$(
        #[doc = concat!("The kind of a node of [`GraphBuilder::", stringify!($method), "`], which documents its operands.")]
        #[derive(Debug)]
        pub enum $kind {}

        #[doc = concat!("The operands of a node of [`GraphBuilder::", stringify!($method), "`], which documents what converts to them.")]
        #[derive(Clone, Debug)]
        pub struct $data {
            verb: Verb,
            src: $src,
            dst: $dst,
        }

        impl<$($side: Into<$into>),*> From<$from> for $data {
            fn from($parts: $from) -> $data {
                $data { verb: $verb, src: $one, dst: $other }
            }
        }

        impl Action for $kind {
            type Context = Rdma;
            type Data = $data;
            type Request = RdmaRequest<Rdma, $src, $dst>;
            const NAME: &'static str = stringify!($method);
            /// An Rdma is connected where it is attached, so that a graph cannot attach it
            /// elsewhere.
            const ATTACH: Option<Attach<Rdma>> = None;

            fn attachment(rdma: &Rdma) -> &Attachment {
                rdma.attachment()
            }

            fn request(rdma: &Rdma, $data { verb, src, dst }: $data) -> Self::Request {
                RdmaRequest::new(rdma.clone(), verb, src, dst)
            }
        }

        impl GraphBuilder {
            $(#[$doc])*
            #[doc(alias = "doca_graph_ctx_node_create")]
            pub fn $method(&mut self, rdma: &Rdma) -> Node<$kind> {
                self.context(rdma.clone())
            }
        }
    )*};
}

nodes! {
    /// Returns a node that sends a message, as [`Rdma::send`] does. The node is set to a source, or
    /// to `()`. Its result is the number of bytes.
    fn rdma_send -> SendNode, SendData { Local => () }
        from [S: Local] src => S { Verb::Send(None), src.into(), () }

    /// Returns a node that sends a message and an immediate, as [`Rdma::send_imm`] does. The node
    /// is set to `(source, immediate)`, or to `((), immediate)`. Its result is the number of bytes.
    fn rdma_send_imm -> SendImmNode, SendImmData { Local => () }
        from [S: Local] (src, imm) => (S, u32) { Verb::Send(Some(imm)), src.into(), () }

    /// Returns a node that writes to the peer's memory, as [`Rdma::write`] does. The node is set to
    /// `(source, remote)`. Its result is the number of bytes.
    fn rdma_write -> WriteNode, WriteData { Local => Remote }
        from [S: Local, R: Remote] (src, remote) => (S, R)
            { Verb::Write(None), src.into(), remote.into() }

    /// Returns a node that writes to the peer's memory and sends an immediate, as
    /// [`Rdma::write_imm`] does. The node is set to `(source, remote, immediate)`. Its result is
    /// the number of bytes.
    fn rdma_write_imm -> WriteImmNode, WriteImmData { Local => Remote }
        from [S: Local, R: Remote] (src, remote, imm) => (S, R, u32)
            { Verb::Write(Some(imm)), src.into(), remote.into() }

    /// Returns a node that reads the peer's memory, as [`Rdma::read`] does. The node is set to
    /// `(remote, destination)`. Its result is the number of bytes.
    fn rdma_read -> ReadNode, ReadData { Remote => RecvBuf }
        from [R: Remote, D: RecvBuf] (remote, dst) => (R, D)
            { Verb::Read, remote.into(), dst.into() }

    /// Returns a node that compares and swaps 8 bytes of the peer's memory, as
    /// [`Rdma::compare_swap`] does. The node is set to `(remote, compare, swap)`. Its result is the
    /// previous value.
    fn rdma_compare_swap -> CompareSwapNode, CompareSwapData { Remote => () }
        from [R: Remote] (remote, compare, swap) => (R, u64, u64)
            { Verb::CompareSwap { compare, swap }, remote.into(), () }

    /// Returns a node that adds to 8 bytes of the peer's memory, as [`Rdma::fetch_add`] does. The
    /// node is set to `(remote, add)`. Its result is the previous value.
    fn rdma_fetch_add -> FetchAddNode, FetchAddData { Remote => () }
        from [R: Remote] (remote, add) => (R, u64) { Verb::FetchAdd(add), remote.into(), () }
}
