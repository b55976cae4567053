//! Places of a table of its own, apart from the depth of the WorkQ, and what there is a line for.
//! How an Op waits for one is in `in_line`.

use std::task::Waker;

use arrayvec::ArrayVec;

use crate::device::Completion;
use crate::mem::Writing;
use crate::reactor::gate::Deferred;
use crate::reactor::slots::{BATCH, Leftovers, Notify, Rest};
use crate::sync::Waiters;

/// What there is a line for.
pub(crate) trait Wanted {
    fn line(&self) -> &Waiters;

    /// Returns how many those in line could take.
    fn available(&self) -> usize;
}

/// A table of places: receives, or waits.
pub(super) trait Places: Wanted + Send + Sync {
    /// Returns the upper part of its Tokens.
    fn number(&self) -> u32;

    /// Returns how many places were taken, ever.
    fn posted(&self) -> u64;

    /// The device says that what had these places has completed. Adds each end to `ends`.
    fn complete(&self, completions: &[Completion], ends: &mut Ends<'_>);

    /// Makes all Ops that have a place, or wait for one, poll again.
    fn wake_all(&self);
}

/// What a batch of ends leaves to be done, once no lock is held and the gate was left.
pub(super) struct Ends<'a> {
    pub(super) to_notify: &'a mut ArrayVec<Notify, BATCH>,
    pub(super) rest: &'a mut Leftovers,
    /// A place is free.
    pub(super) freed: bool,
}

impl Ends<'_> {
    /// Adds what the end of one leaves; `None` if no such place is taken. It runs no code of the
    /// application's.
    #[inline(always)]
    pub(super) fn add(&mut self, completion: &Completion, ended: Option<Ended>) {
        let Some(Ended {
            waker,
            lease,
            freed,
        }) = ended
        else {
            self.to_notify.push(Notify::Nobody(completion.token));
            return;
        };
        // What has become free had nobody who waits: there is room to notify the line.
        debug_assert!(!freed || waker.is_none());
        self.freed |= freed;
        if let Some(lease) = lease {
            self.rest.push(Deferred::new(Rest::Lease(lease)));
        }
        if let Some(waker) = waker {
            self.to_notify.push(Notify::Waker(Deferred::new(waker)));
        }
    }
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
