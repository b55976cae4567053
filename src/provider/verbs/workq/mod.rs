//! One WorkQ's half of an adapter: the [queue] that the crate reaps, the [endpoints](endpoint) on
//! it, what both [share](shared), [copies] by a queue pair that is connected to itself, and what
//! the CPU [computes](computed).
//!
//! These files import all the other rooms.

mod burials;
mod computed;
mod copies;
mod endpoint;
mod queue;
mod shared;

pub(super) use queue::VerbsQueue;
