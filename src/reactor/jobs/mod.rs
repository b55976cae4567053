//! The futures of jobs: `flight` is one job inside an operation, from its first poll to its result,
//! and `run` is the place of a graph's run, which has many jobs, on its WorkQ. `stream_slot` is a
//! stream's place in the line for the Slots that streams may hold.
//!
//! These files import `waiting` and the rooms below it.

mod job_future;
mod run;
mod stream_slot;

pub(crate) use job_future::{JobFuture, Reserved};
pub(crate) use run::{Completions, RunWaiter};
pub(crate) use stream_slot::StreamSlotWaiter;
