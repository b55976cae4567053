//! A sync event on a WorkQ (`event_port`), and the future of one wait for it (`wait_future`).
//!
//! These files import `waiting` and the folders below it. The table of waits is in `tables`.

mod event_port;
mod wait_future;

pub(crate) use event_port::EventPortHandle;
pub(crate) use wait_future::{EventWaitFuture, Waiter};
