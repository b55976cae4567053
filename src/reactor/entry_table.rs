//! Tables that do not count against the depth of the WorkQ, and that have a line of waiters.
//! `in_line` says how an operation waits for an entry.

use std::task::Waker;

use arrayvec::ArrayVec;

use crate::device::Completion;
use crate::mem::Writing;
use crate::reactor::gate::Deferred;
use crate::reactor::slots::{BATCH, Leftovers, Notify, Rest};
use crate::sync::Waiters;

/// A resource that operations take, such as a table's entries, with a line of operations that wait
/// for it.
pub(crate) trait Wanted {
    fn line(&self) -> &Waiters;

    /// Returns the number of waiters in line that could be served now.
    fn available(&self) -> usize;
}

/// A table of receives or waits.
pub(super) trait EntryTable: Wanted + Send + Sync {
    /// Returns the table's number: the upper part of the Tokens of its entries.
    fn number(&self) -> u32;

    /// Returns the number of entries that were ever taken.
    fn posted(&self) -> u64;

    /// Marks entries of this table as completed, as the device has reported. Adds the work that
    /// follows to `ends`.
    fn complete(&self, completions: &[Completion], ends: &mut Ends<'_>);

    /// Makes all operations that have an entry, or wait for one, poll again.
    fn wake_all(&self);
}

/// The work that follows a batch of completions: it is done once no lock is held and the gate was
/// left.
pub(super) struct Ends<'a> {
    pub(super) to_notify: &'a mut ArrayVec<Notify, BATCH>,
    pub(super) rest: &'a mut Leftovers,
    /// True if a waiter in line can take an entry now.
    pub(super) freed: bool,
}

impl Ends<'_> {
    /// Adds the work that follows one completion. `ended` is `None` if the completion names no
    /// entry in use. Runs no code of the application.
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
        // An entry that was freed had no waker, so the batch leaves capacity in `to_notify` for
        // notifying the line.
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

/// The work that follows the completion of one entry. It is done once no lock is held.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) waker: Option<Waker>,
    /// The Lease to give back.
    pub(super) lease: Option<Writing>,
    /// True if a waiter in line can take an entry now: a free one, or an orphan.
    pub(super) freed: bool,
}
