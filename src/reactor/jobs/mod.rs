//! The futures of jobs. `job_future` has the future of one job inside an operation, from its first
//! poll to its result. `run` has the waiter of a graph's run, which has many jobs. `stream_slot`
//! has the waiter of a stream, in line for the slots that streams may hold.
//!
//! These files import `waiting` and the layers below it in the table of `reactor/mod.rs`.

mod job_future;
mod run;
mod stream_slot;

pub(crate) use job_future::{JobFuture, Reserved};
pub(crate) use run::{Completions, RunWaiter};
pub(crate) use stream_slot::StreamSlotWaiter;
