//! How an operation waits, whatever it is: for the end that it awaits (`wait`), in line for a Slot
//! or a place (`in_line`), and for a time (`backoff`).
//!
//! These files import `workq` and the rooms below it.

mod backoff;
mod in_line;
mod wait;

pub(crate) use backoff::Backoff;
pub(in crate::reactor) use wait::{Awaited, Waited};
