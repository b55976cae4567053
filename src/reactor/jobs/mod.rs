//! The futures of jobs: `flight` is one job inside an operation, from its first poll to its result,
//! and `run` is the place of a graph's run, which has many jobs, on its WorkQ.
//!
//! These files import `waiting` and the rooms below it.

mod flight;
mod run;

pub(crate) use flight::Flight;
pub(crate) use run::{Ends, Line};
