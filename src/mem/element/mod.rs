//! The descriptor behind every Buf: where its bytes are, the count of its holders, and the slab to
//! which it returns.
//!
//! A handle and a Lease are counts of an element. The thread that gives the last count back returns
//! the element to its slab. Of the other modules of `mem`, this one imports `mmap` and `ranges`.

mod element;
mod free_list;
mod lease;
mod released;
mod slab;

pub(super) use element::{Element, Handle};
pub(super) use free_list::MAX as MAX_ELEMENTS;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use free_list::{FreeList, Pushed};
pub(super) use lease::{AfterLease, ReadLease, WriteLease};
pub(super) use released::Watch;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use released::Watches;
pub(super) use slab::{Base, Slab, SlabHandle};
