//! The endpoint of an Rdma on a WorkQ (`queue_pair`), and what is awaited there besides jobs:
//! receives (`recv`), the end of the connection while no receive is posted (`unfed`), and changes
//! of its state (`watch`).
//!
//! These files import `waiting` and the rooms below it. The table of receives is in `tables`.

mod queue_pair;
mod recv;
mod unfed;
mod watch;

pub(crate) use queue_pair::QueuePair;
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use recv::Posted;
pub(crate) use recv::{Receiver, RecvFlight};
pub(crate) use unfed::Unfed;
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use watch::Watched;
pub use watch::{RdmaState, RdmaWatch};
