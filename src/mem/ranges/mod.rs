//! Which bytes of an Mmap are claimed or leased, and the word in which one element counts its
//! Leases.
//!
//! [`Ranges`] stands under the Mmap's lock. It imports no other room of `mem`, and every other room
//! may import it.

mod interval;
mod ranges;
mod word;

pub(super) use ranges::{Busy, RangeNode, Ranges, Stage};
pub(super) use word::{LeaseRefusal, LeaseWord, Left, MAX_READERS};
