//! Which bytes of an Mmap are claimed or leased, and the word in which one element counts its
//! Leases.
//!
//! The Mmap's lock guards [`Ranges`]. This module imports no other module of `mem`, and every other
//! module may import it.

mod interval;
mod ranges;
mod word;

pub(super) use ranges::{Busy, RangeNode, Ranges, Stage};
pub(super) use word::{LeaseRefusal, LeaseWord, Left, MAX_READERS};
