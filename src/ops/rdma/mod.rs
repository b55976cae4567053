//! Remote operations and messages, between two connected contexts.

mod builder;
mod connect;
mod context;
mod message;
mod nodes;
mod operations;
mod pooled_receives;
mod posted_receives;
mod recv;
mod recv_pool;
mod request;
mod sink;
mod stats;
mod stream;

pub use builder::RdmaBuilder;
pub use connect::Connect;
pub use context::Rdma;
pub use message::Message;
pub use nodes::{
    CompareSwapData, CompareSwapNode, FetchAddData, FetchAddNode, ReadData, ReadNode, SendData,
    SendImmData, SendImmNode, SendNode, WriteData, WriteImmData, WriteImmNode, WriteNode,
};
pub use recv::RdmaRecv;
pub use recv_pool::RecvPool;
pub use request::RdmaOp;
use request::RdmaRequest;
pub use sink::SendSink;
pub use stats::RdmaStats;
pub use stream::RecvStream;
