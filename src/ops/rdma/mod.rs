//! Remote operations and messages, between two connected contexts.

mod builder;
mod connect;
mod context;
mod operations;
mod recv;
mod request;
mod stream;

pub use builder::RdmaBuilder;
pub use connect::Connect;
pub use context::Rdma;
pub use recv::RdmaRecv;
pub use request::RdmaOp;
pub(super) use request::RdmaRequest;
pub use stream::{Message, RecvStream};
