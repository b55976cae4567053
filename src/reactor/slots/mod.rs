//! The slots of a WorkQ: one for each job in flight that was not finished inline.
//!
//! `table` has all slots, and `free_bitmap` says which of them are free. `slot` is the life of one
//! slot, and `phases` names its phases, which other files count. A slot keeps the Leases of its job
//! (`job_leases`) and the target to notify once the job has completed (`target`). `finished` lists
//! the slots whose jobs have completed and wait for the caller's own loop.
//!
//! These files import no other folder of the reactor.

mod awaited;
mod finished;
mod free_bitmap;
mod job_leases;
mod phases;
mod slot;
mod table;
mod target;

pub(in crate::reactor) use awaited::{Awaited, InFlight};
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use finished::Finished;
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use free_bitmap::FreeBitmap;
pub(in crate::reactor) use job_leases::{JobLeases, keeps_memory};
pub(in crate::reactor) use phases::Phases;
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use slot::Slot;
pub(in crate::reactor) use table::{ReservedSlot, Table};
#[cfg(all(test, tokio_doca_loom))]
pub(in crate::reactor) use target::Completed;
pub(in crate::reactor) use target::{BATCH, Leftovers, Notify, OwnRest, Rest, Target};
pub(crate) use target::{Outcome, ResultKind, Run};
