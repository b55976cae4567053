//! The kinds of nodes that there are for contexts, with the methods of the builder that make them.
//!
//! `contexts` has copies, hashes and calls. Receives and waits are no jobs: their nodes are polled, as
//! futures are. Of the other rooms of `graph` this one imports `node` and `plan`.

mod contexts;
mod rdma;
mod receive;
mod sync_event;

pub use contexts::{CallData, CallNode, CopyNode, HashNode, Operands, RemoteCopyNode};
pub use rdma::{
    CompareSwapData, CompareSwapNode, FetchAddData, FetchAddNode, ReadData, ReadNode, SendData,
    SendImmData, SendImmNode, SendNode, WriteData, WriteImmData, WriteImmNode, WriteNode,
};
pub(super) use receive::Receive;
pub(super) use sync_event::Waiting;
pub use sync_event::{EventAddNode, EventGetNode, EventSetNode, EventWaitData, EventWaitNode};
