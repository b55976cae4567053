//! A sync event on a WorkQ (`subscription`), and the future of one wait for it (`wait_flight`).
//!
//! These files import `waiting` and the rooms below it. The table of waits is in `tables`.

mod subscription;
mod wait_flight;

pub(crate) use subscription::Subscription;
pub(crate) use wait_flight::{WaitFlight, Waiter};
