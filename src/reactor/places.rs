//! Tables that do not count against the depth of the WorkQ, and that have a line of waiters.
//! `in_line` says how an operation waits for an entry.

use std::task::Waker;

use arrayvec::ArrayVec;

use crate::device::Completion;
use crate::mem::Writing;
use crate::reactor::gate::Deferred;
use crate::reactor::slots::{BATCH, Leftovers, Notify, Rest};
use crate::sync::Waiters;

/// Something that operations take, and wait for in a line.
pub(crate) trait Wanted {
    fn line(&self) -> &Waiters;

    /// Returns the number of waiters that could take something now.
    fn available(&self) -> usize;
}

/// A table of receives or waits.
pub(super) trait Places: Wanted + Send + Sync {
    /// Returns the number of the table: the upper part of its Tokens.
    fn number(&self) -> u32;

    /// Returns the number of entries that were ever taken.
    fn posted(&self) -> u64;

    /// Enters completions from the device, of entries of this table. Adds each end to `ends`.
    fn complete(&self, completions: &[Completion], ends: &mut Ends<'_>);

    /// Makes all operations that have an entry, or wait for one, poll again.
    fn wake_all(&self);
}

/// The work that a batch of ends leaves to be done, once no lock is held and the gate was left.
pub(super) struct Ends<'a> {
    pub(super) to_notify: &'a mut ArrayVec<Notify, BATCH>,
    pub(super) rest: &'a mut Leftovers,
    /// An entry is free.
    pub(super) freed: bool,
}

impl Ends<'_> {
    /// Adds the work that the end of one entry leaves; `None` if no such entry is in use. It runs
    /// no code of the application.
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
        // An entry that was freed had no waiter, so `to_notify` has capacity for notifying the
        // line.
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

/// Work to be done once no lock is held.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) waker: Option<Waker>,
    /// A Lease that is given back.
    pub(super) lease: Option<Writing>,
    /// An entry is free.
    pub(super) freed: bool,
}
