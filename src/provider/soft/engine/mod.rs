//! Engines: the threads that do the jobs that a queue does not do inline.
//!
//! A queue and its engine share two [rings]: one carries jobs to the engine, the other carries
//! completions back. A [queue_worker] is the half of a queue that does the jobs. An engine's
//! [thread] drives the queue workers of its queues; on a device without engines, the thread that
//! reaps a queue drives the queue's worker.
//!
//! An engine's thread runs on CPUs that the device chooses ([affinity]).
//!
//! These files import one another downwards, `thread > queue_worker > rings > ring` and
//! `thread > affinity`. From the rest of the device they import faults, the state that its queues
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
