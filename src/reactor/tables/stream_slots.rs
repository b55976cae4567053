//! [`StreamSlots`], the count of slots that streams hold. Streams may hold half of the WorkQ's
//! slots, so that other jobs find slots even if the peers of all streams receive nothing. Streams
//! share this half in the order in which they come.

use crate::reactor::entry_table::Wanted;
use crate::sync::Waiters;
use crate::sync::atomic::{AtomicUsize, Ordering};

pub(in crate::reactor) struct StreamSlots {
    most: usize,
    taken: AtomicUsize,
    pub(in crate::reactor) line: Waiters,
}

impl StreamSlots {
    pub(in crate::reactor) fn new(depth: u32) -> StreamSlots {
        StreamSlots {
            most: (depth as usize / 2).max(1),
            taken: AtomicUsize::new(0),
            line: Waiters::new(),
        }
    }

    /// Takes a slot of the streams' share. Returns false if no slot is left. The caller gives the
    /// slot back once its job has completed.
    pub(in crate::reactor) fn take(&self) -> bool {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        let taken = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.is_ok()
    }

    /// Gives a slot back. The caller notifies the waiters in line.
    pub(in crate::reactor) fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Wanted for StreamSlots {
    fn line(&self) -> &Waiters {
        &self.line
    }

    fn available(&self) -> usize {
        self.most.saturating_sub(self.taken.load(Ordering::SeqCst))
    }
}
