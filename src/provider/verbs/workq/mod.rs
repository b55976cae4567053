//! One WorkQ's half of an adapter: the [queue] that the crate reaps, the [endpoints](endpoint) on
//! it, [copies] by a queue pair that is connected to itself, and [hashes] by the CPU.
//!
//! These files import all the other rooms. `queue` and `endpoint` import each other.

mod copies;
mod endpoint;
mod hashes;
mod queue;

pub(super) use queue::VerbsQueue;
