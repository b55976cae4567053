//! Remote operations and messages, between two connected contexts.

// These modules come first, since rustdoc shows the methods of a type in the order of modules.
mod connect;
mod operations;

mod context;

mod builder;
mod nodes;
mod pooled_receives;
mod posted_receives;
mod recv;
mod recv_pool;
mod request;
mod sends;
mod sink;
mod stream;

pub use builder::RdmaBuilder;
pub use connect::{CmAccept, CmListener, CmRequest, Connect, ConnectTo};
pub use context::{Rdma, RdmaStats};
pub use nodes::{
    CompareSwapData, CompareSwapNode, FetchAddData, FetchAddNode, ReadData, ReadNode, SendData,
    SendImmData, SendImmNode, SendNode, WriteData, WriteImmData, WriteImmNode, WriteNode,
};
pub use recv::{Message, RdmaRecv};
pub use recv_pool::RecvPool;
pub use request::RdmaOp;
use request::RdmaRequest;
pub(crate) use sends::Sends;
pub use sink::SendSink;
pub use stream::RecvStream;
