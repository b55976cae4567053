//! The futures of jobs. `job_future` is one job inside an operation, from its first poll to its
//! result. `run` is how a graph's run, which has many jobs, waits on its WorkQ. `stream_slot` is
//! how a stream waits in line for the slots that streams may hold.
//!
//! These files import `waiting` and the folders below it.

mod job_future;
mod run;
mod stream_slot;

pub(crate) use job_future::{JobFuture, Reserved};
pub(crate) use run::{Completions, RunWaiter};
pub(crate) use stream_slot::StreamSlotWaiter;
