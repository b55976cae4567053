//! The tables of operations that have no slot: receives and waits for sync events, which may never
//! complete, and operations that were posted for the caller's own loop.
//!
//! `receives` and `waits` are tables, which `registry` numbers: the upper part of a Token is the
//! number of its table. `orphans` orders the receives whose operation was dropped; `received`
//! describes a received message. `entries` is a container that polls those of its entries that were
//! woken; `posted` has the operations that it contains.
//!
//! `stream_slots` counts the slots of the WorkQ that streams hold.
//!
//! These files import `slots` (for the outcome of a job) and `events`, and no other folder of the
//! reactor.

mod entries;
mod orphans;
mod posted;
mod received;
mod receives;
mod registry;
mod stream_slots;
mod waits;

pub(crate) use posted::{End, PostedRun};
pub(in crate::reactor) use posted::{OwnLoop, PostedEntry, PostedRecv, PostedWait};
pub use received::Received;
pub(crate) use received::{RecvBuf, RecvCompletion};
pub(crate) use receives::{Receipt, RecvTable};
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use registry::Numbered;
pub(crate) use registry::TABLES;
pub(in crate::reactor) use registry::{Changed, Registry, Watching};
pub(in crate::reactor) use stream_slots::StreamSlots;
pub(in crate::reactor) use waits::{Ticket, WaitTable};
