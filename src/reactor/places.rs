//! Places of a table of its own, apart from the depth of the WorkQ, and what there is a line for.
//! How an Op waits for one is in `in_line`.

use std::task::Waker;

use crate::device::Completion;
use crate::mem::Writing;
use crate::sync::Waiters;

/// What there is a line for.
pub(super) trait Wanted {
    fn line(&self) -> &Waiters;

    /// How many those in line could take.
    fn available(&self) -> usize;
}

/// A table of places: receives, or waits.
pub(super) trait Places: Wanted + Send + Sync {
    /// The upper part of its Tokens.
    fn number(&self) -> u32;

    /// How many places were taken, ever.
    fn posted(&self) -> u64;

    /// The device says that what had a place is over. `None`: it names none that is taken.
    fn complete(&self, completion: &Completion) -> Option<Ended>;

    /// Makes all Ops that have a place, or wait for one, poll again.
    fn wake_all(&self);
}

/// What is to be done once no lock is held.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) waker: Option<Waker>,
    /// Memory that goes back.
    pub(super) lease: Option<Writing>,
    /// A place is free.
    pub(super) freed: bool,
}
