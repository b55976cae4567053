//! Places of a table of its own, apart from the depth of the WorkQ, and what there is a line for.
//! How an Op waits for one is in `in_line`.

use std::task::Waker;

use arrayvec::ArrayVec;

use crate::device::Completion;
use crate::mem::Writing;
use crate::reactor::slots::BATCH;
use crate::sync::Waiters;

/// What there is a line for.
pub(crate) trait Wanted {
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

    /// The device says that what had these places is over. For each it adds what is to be done, or
    /// `None` if no such place is taken.
    fn complete(&self, completions: &[Completion], ended: &mut ArrayVec<Option<Ended>, BATCH>);

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
