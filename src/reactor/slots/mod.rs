//! The Slots of a WorkQ: one for each job in flight that was not finished inline.
//!
//! `table` has them all, `free_bitmap` says which are free, and `slot` is the life of one, whose
//! `phases` others can count. A Slot keeps the Leases of its job (`held`) and whom to notify of its
//! end (`target`). `finished` lists the Slots whose ends wait for a loop of the caller's own.
//!
//! These files import no other room of the reactor.

mod finished;
mod free_bitmap;
mod job_leases;
mod phases;
mod slot;
mod table;
mod target;

#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use finished::Finished;
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use free_bitmap::FreeBitmap;
pub(in crate::reactor) use job_leases::{JobLeases, keeps_memory};
pub(in crate::reactor) use phases::Phases;
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use slot::Completed;
pub(in crate::reactor) use slot::Slot;
pub(in crate::reactor) use table::{ReservedSlot, Table};
pub(in crate::reactor) use target::{BATCH, Leftovers, Notify, Rest, Target};
pub(crate) use target::{Outcome, ResultKind, Run};
