//! Engines: the threads that do what a queue does not do inline.
//!
//! A queue and its engine share two [rings]: Jobs go there, Completions come back. A [lane] is
//! the half of a queue that does the Jobs; an engine's [thread] drives the lanes of its queues, and on
//! a device without engines the reaper drives its own. Engines of one device [split] large copies.
//!
//! These files import one another downwards, `thread > lane > rings > {ring, split}`, and of the
//! device what lies below it: options, faults, what its queues share, and the opaque copy.

mod lane;
mod ring;
mod rings;
mod split;
mod thread;

pub(super) use lane::{Driver, Lane};
#[cfg(all(test, tokio_doca_loom))]
pub(super) use ring::Ring;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use rings::{Doorbell, Served};
pub(super) use rings::{Rings, Task, Work};
#[cfg(all(test, tokio_doca_loom))]
pub(super) use split::Split;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use thread::Bed;
pub(super) use thread::Engine;
