//! How operations wait: for their completion (`wait`), in line for a slot or an entry (`in_line`),
//! and for a time (`backoff`).
//!
//! These files import `workq` and the folders below it.

mod backoff;
mod in_line;
mod wait;

pub(crate) use backoff::Backoff;
pub(in crate::reactor) use wait::Waited;
