//! Engines: the threads that do what a queue does not do inline.
//!
//! A queue and its engine share two [rings]: Jobs go there, Completions come back. A [queue_worker]
//! is the half of a queue that does the Jobs; an engine's [thread] drives the queue workers of its
//! queues, and on a device without engines the reaper drives its own.
//!
//! An engine's thread runs on CPUs of its own choice ([affinity]).
//!
//! These files import one another downwards, `thread > queue_worker > rings > ring` and
//! `thread > affinity`, and of the device what lies below it: options, faults, what its queues
//! share, and the opaque copy.

mod affinity;
mod queue_worker;
mod ring;
mod rings;
mod thread;

pub(super) use affinity::Affinity;
pub(super) use queue_worker::{Driver, QueueWorker};
#[cfg(all(test, tokio_doca_loom))]
pub(super) use ring::Ring;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use rings::{Consumer, Doorbell};
pub(super) use rings::{Rings, Task, Work};
pub(super) use thread::Engine;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use thread::Parker;
