//! What waits without a Slot, since it may never end: receives, waits for sync events, and what was
//! posted for a loop of the caller's own.
//!
//! `receives` and `waits` are tables of places, which `registry` numbers: the upper part of a Token
//! is the number of its table. `orphans` orders the receives whose operation was dropped,
//! `received` is what a receive brings. `entries` is a container that polls what was woken, and
//! `posted` what stands in it.
//!
//! `stream_slots` counts the Slots that streams have of those of the WorkQ.
//!
//! Of the rooms of the reactor these files import `slots` (for how a job ends) and `events`.

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
