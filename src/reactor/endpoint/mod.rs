//! The endpoint of an Rdma on a WorkQ: its end of the connection (`endpoint_port`). Besides jobs,
//! tasks await receives there (`recv`), the end of the connection while no receive is posted
//! (`disconnect_wait`), and changes of the state (`watch`). `recv_batch` posts several receives
//! together.
//!
//! These files import `waiting` and the folders below it. The table of receives is in `tables`.

mod disconnect_wait;
mod endpoint_port;
mod recv;
mod recv_batch;
mod watch;

pub(crate) use disconnect_wait::DisconnectWait;
pub(crate) use endpoint_port::EndpointPort;
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use recv::Posted;
pub(crate) use recv::{Receiver, RecvFuture, abandon, poll_posted, settle};
pub(crate) use recv_batch::{RecvBatch, SUBMIT_BATCH};
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use watch::WatchState;
pub use watch::{RdmaState, RdmaWatch};
