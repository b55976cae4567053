//! One word that is the reference count of an element and the Leases on it.
//!
//! ```text
//! 63      62            32 31        30            0
//! | write |    readers    | watched |    handles    |
//! ```
//!
//! Invariant: `write` excludes `readers`. When no count is left, the element is free. The caller
//! that took the last count away returns the element to its slab (*brings it home*). Before the
//! element's first handle all bits are set.
//!
//! `watched` counts nothing. It asks the thread that gives back the last Lease to notify the
//! futures that wait for that (`element/released.rs`). It lies in the lower half, so that one
//! comparison of that half shows whether anything else is to be done: the half is positive if not.
//!
//! Orderings: a Lease is given back with Release, and taken with Acquire, so that what one holder
//! did to the bytes happens before what the next one does. A handle is given up with Release, and
//! the thread that brings the element home acquires, like `Arc`.

use crate::sync::atomic::{AtomicU64, Ordering};

const WRITER: u64 = 1 << 63;
const READER: u64 = 1 << 32;
const READERS: u64 = WRITER - READER;
const LEASES: u64 = WRITER | READERS;
const WATCHED: u64 = 1 << 31;
const HANDLES: u64 = WATCHED - 1;
/// The word of an element that has had no holder yet.
const FRESH: u64 = u64::MAX;
/// The maximum number of read Leases that the word can count.
pub(in crate::mem) const MAX_READERS: u64 = READERS >> 32;

/// Why a Lease was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mem) enum LeaseRefusal {
    /// A Lease that excludes the requested one exists.
    Held,
    /// `MAX_READERS` read Leases are held already.
    Limit,
}

/// What is left of an element after a count was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::mem) enum Left {
    /// Other counts are left, and nothing is to be done.
    Counts,
    /// No count is left: the caller returns the element to its slab.
    Nothing,
    /// No Lease is left: the caller notifies the futures that wait for this. The caller must not
    /// access the element any more, since it may be gone at any moment.
    Watchers,
}

#[cold]
fn refused(word: u64) -> LeaseRefusal {
    if word & WRITER != 0 {
        LeaseRefusal::Held
    } else {
        LeaseRefusal::Limit
    }
}

pub(in crate::mem) struct LeaseWord(AtomicU64);

impl LeaseWord {
    pub(in crate::mem) fn new() -> LeaseWord {
        LeaseWord(AtomicU64::new(FRESH))
    }

    /// Counts the first handle of an element that came out of a free list.
    #[inline(always)]
    pub(in crate::mem) fn begin(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    pub(in crate::mem) fn is_free(&self) -> bool {
        matches!(self.0.load(Ordering::Relaxed), 0 | FRESH)
    }

    /// Returns true if the element was never taken since it was made.
    pub(in crate::mem) fn is_fresh(&self) -> bool {
        self.0.load(Ordering::Relaxed) == FRESH
    }

    /// Counts one more handle; the caller has one already. Aborts at 2^30, as `Arc` does at its
    /// limit: only forgotten handles get there.
    #[inline(always)]
    pub(in crate::mem) fn retain(&self) {
        if self.0.fetch_add(1, Ordering::Relaxed) & HANDLES >= 1 << 30 {
            std::process::abort();
        }
    }

    /// Gives one handle back.
    #[inline(always)]
    pub(in crate::mem) fn release(&self) -> Left {
        // The only handle and no Lease: no other party can reach the word.
        if self.0.load(Ordering::Acquire) == 1 {
            self.0.store(0, Ordering::Relaxed);
            return Left::Nothing;
        }
        match self.give_back(1) {
            // No Lease was given back.
            Left::Watchers => Left::Counts,
            left => left,
        }
    }

    /// Takes a read Lease; the caller has a handle or a Lease.
    #[inline(always)]
    pub(in crate::mem) fn read(&self) -> Result<(), LeaseRefusal> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            // This comparison finds the limit and a writer, whose word is larger still.
            if now >= READERS {
                return Err(refused(now));
            }
            match self.0.compare_exchange_weak(
                now,
                now + READER,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(seen) => now = seen,
            }
        }
    }

    /// Gives the read Lease back.
    #[inline(always)]
    pub(in crate::mem) fn end_read(&self) -> Left {
        self.give_back(READER)
    }

    /// Takes the write Lease; the caller has a handle.
    #[inline(always)]
    pub(in crate::mem) fn write(&self) -> Result<(), LeaseRefusal> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & LEASES != 0 {
                return Err(LeaseRefusal::Held);
            }
            match self.0.compare_exchange_weak(
                now,
                now | WRITER,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(seen) => now = seen,
            }
        }
    }

    /// Gives the write Lease back.
    #[inline(always)]
    pub(in crate::mem) fn end_write(&self) -> Left {
        self.give_back(WRITER)
    }

    /// Returns the number of read Leases. It is exact only if the caller excludes other threads.
    pub(super) fn readers(&self) -> u64 {
        (self.0.load(Ordering::Relaxed) & READERS) >> 32
    }

    /// Returns true if a Lease is held. If not, Acquire shows the caller what the last holder did
    /// to the bytes.
    pub(in crate::mem) fn is_leased(&self) -> bool {
        self.0.load(Ordering::Acquire) & LEASES != 0
    }

    /// Asks for a notification at the end of the last Lease. Returns false if no Lease is held. The
    /// caller has a handle.
    pub(in crate::mem) fn watch(&self) -> bool {
        self.0.fetch_or(WATCHED, Ordering::AcqRel) & LEASES != 0
    }

    /// Withdraws the request of `watch`, since no future waits any more. The caller has a handle.
    pub(in crate::mem) fn unwatch(&self) {
        self.0.fetch_and(!WATCHED, Ordering::Relaxed);
    }

    #[inline(always)]
    fn give_back(&self, what: u64) -> Left {
        let before = self.0.fetch_sub(what, Ordering::Release);
        // The lower half counts handles, and is negative while a future waits. If it stays
        // positive, a handle is left, and no future waits.
        if before as i32 > what as i32 {
            return Left::Counts;
        }
        if before == what {
            // Pairs with the Release of every other holder that gave up before.
            self.0.load(Ordering::Acquire);
            return Left::Nothing;
        }
        self.give_back_watched(before, what)
    }

    /// Does the rest of `give_back` if all handles are gone or a future waits.
    #[cold]
    #[inline(never)]
    fn give_back_watched(&self, before: u64, what: u64) -> Left {
        let left = before.wrapping_sub(what);
        if left == WATCHED {
            // As above. The future that has set the bit has gone; no other party reaches the word.
            self.0.load(Ordering::Acquire);
            self.0.store(0, Ordering::Relaxed);
            return Left::Nothing;
        }
        match left & (LEASES | WATCHED) {
            WATCHED => Left::Watchers,
            _ => Left::Counts,
        }
    }

    #[cfg(all(test, not(tokio_doca_loom)))]
    pub(super) fn preset(&self, readers: u64) {
        self.0.fetch_add(readers * READER, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    fn word() -> LeaseWord {
        let word = LeaseWord::new();
        word.begin();
        word
    }

    #[test]
    fn many_readers_or_one_writer() {
        let word = word();
        word.read().unwrap();
        word.read().unwrap();
        assert_eq!(word.write(), Err(LeaseRefusal::Held));
        assert_eq!(word.end_read(), Left::Counts);
        assert_eq!(word.write(), Err(LeaseRefusal::Held));
        assert_eq!(word.end_read(), Left::Counts);
        word.write().unwrap();
        assert_eq!(word.read(), Err(LeaseRefusal::Held));
        assert_eq!(word.write(), Err(LeaseRefusal::Held));
        assert_eq!(word.end_write(), Left::Counts);
        assert_eq!(word.release(), Left::Nothing);
    }

    #[test]
    fn a_lease_keeps_the_element_after_the_last_handle() {
        let word = word();
        word.write().unwrap();
        assert_eq!(word.release(), Left::Counts);
        assert_eq!(word.end_write(), Left::Nothing);
        assert!(word.is_free());
    }

    #[test]
    fn the_end_of_the_last_lease_is_for_the_watchers() {
        let word = word();
        assert!(!word.watch(), "there is nothing to wait for");
        word.unwatch();
        word.read().unwrap();
        word.read().unwrap();
        assert!(word.watch());
        assert_eq!(word.write(), Err(LeaseRefusal::Held));
        assert_eq!(word.end_read(), Left::Counts);
        word.retain();
        assert_eq!(word.release(), Left::Counts);
        assert_eq!(word.end_read(), Left::Watchers);
        word.write().unwrap();
        assert_eq!(word.end_write(), Left::Watchers, "until no future watches");
        word.unwatch();
        word.write().unwrap();
        assert_eq!(word.end_write(), Left::Counts);
        word.read().unwrap();
        assert!(word.watch());
        assert_eq!(word.end_read(), Left::Watchers);
        assert_eq!(word.release(), Left::Nothing);
        assert!(word.is_free());
    }

    #[test]
    fn a_lease_at_the_limit_is_refused_and_not_wrapped() {
        let word = word();
        word.preset(MAX_READERS);
        assert_eq!(word.read(), Err(LeaseRefusal::Limit));
        assert_eq!(word.write(), Err(LeaseRefusal::Held));
        assert_eq!(word.readers(), MAX_READERS);
    }
}
