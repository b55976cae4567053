//! One word that is the reference count of an element and the Leases on it.
//!
//! ```text
//! 63      62            32 31            0
//! | write |    readers    |    handles    |
//! ```
//!
//! Invariant: `write` excludes `readers`. The element is free, and goes home, when the word is 0.
//! Whoever made it 0 brings it home. Before its first handle all bits are set.
//!
//! Orderings: a Lease is given back with Release, and taken with Acquire, so that what one holder
//! did to the bytes happens before what the next one does. A handle is given up with Release, and
//! who brings the element home acquires, like `Arc`.

use crate::sync::atomic::{AtomicU64, Ordering};

const WRITER: u64 = 1 << 63;
const READER: u64 = 1 << 32;
const READERS: u64 = WRITER - READER;
const HANDLES: u64 = READER - 1;
/// No holder was there yet.
const FRESH: u64 = u64::MAX;
/// The most readers that can be counted.
pub(in crate::mem) const MAX_READERS: u64 = READERS >> 32;

/// Why a Lease was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mem) enum Refused {
    /// Somebody holds a Lease that excludes it.
    Held,
    /// As many as can be counted are out.
    Limit,
}

#[cold]
fn refused(word: u64) -> Refused {
    if word & WRITER != 0 {
        Refused::Held
    } else {
        Refused::Limit
    }
}

pub(in crate::mem) struct LeaseWord(AtomicU64);

impl LeaseWord {
    pub(in crate::mem) fn new() -> LeaseWord {
        LeaseWord(AtomicU64::new(FRESH))
    }

    /// The first handle, of an element that came out of a free list and is nobody's yet.
    #[inline(always)]
    pub(in crate::mem) fn begin(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    pub(in crate::mem) fn is_free(&self) -> bool {
        matches!(self.0.load(Ordering::Relaxed), 0 | FRESH)
    }

    /// Whether it was free since it was made.
    pub(in crate::mem) fn is_fresh(&self) -> bool {
        self.0.load(Ordering::Relaxed) == FRESH
    }

    /// One handle more; the caller has one. Aborts at 2^31 like `Arc`: only forgotten handles get
    /// there.
    #[inline(always)]
    pub(in crate::mem) fn retain(&self) {
        if self.0.fetch_add(1, Ordering::Relaxed) & HANDLES >= 1 << 31 {
            std::process::abort();
        }
    }

    /// One handle less; true if nothing is left.
    #[inline(always)]
    #[must_use]
    pub(in crate::mem) fn release(&self) -> bool {
        // The only handle and no Lease: nobody else can reach the word.
        if self.0.load(Ordering::Acquire) == 1 {
            self.0.store(0, Ordering::Relaxed);
            return true;
        }
        self.give_back(1)
    }

    /// A read Lease; the caller has a handle or a Lease.
    #[inline(always)]
    pub(in crate::mem) fn read(&self) -> Result<(), Refused> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            // One comparison for both: a writer's word is larger still.
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

    /// The read Lease back; true if nothing is left.
    #[inline(always)]
    #[must_use]
    pub(in crate::mem) fn end_read(&self) -> bool {
        self.give_back(READER)
    }

    /// The write Lease; the caller has a handle.
    #[inline(always)]
    pub(in crate::mem) fn write(&self) -> Result<(), Refused> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & (WRITER | READERS) != 0 {
                return Err(Refused::Held);
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

    /// The write Lease back; true if nothing is left.
    #[inline(always)]
    #[must_use]
    pub(in crate::mem) fn end_write(&self) -> bool {
        self.give_back(WRITER)
    }

    /// How many hold a read Lease. Exact only where the caller excludes others.
    pub(super) fn readers(&self) -> u64 {
        (self.0.load(Ordering::Relaxed) & READERS) >> 32
    }

    #[inline(always)]
    fn give_back(&self, what: u64) -> bool {
        if self.0.fetch_sub(what, Ordering::Release) != what {
            return false;
        }
        // Pairs with the Release of every other holder that gave up before.
        self.0.load(Ordering::Acquire);
        true
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
        assert_eq!(word.write(), Err(Refused::Held));
        assert!(!word.end_read());
        assert_eq!(word.write(), Err(Refused::Held));
        assert!(!word.end_read());
        word.write().unwrap();
        assert_eq!(word.read(), Err(Refused::Held));
        assert_eq!(word.write(), Err(Refused::Held));
        assert!(!word.end_write());
        assert!(word.release());
    }

    #[test]
    fn a_lease_keeps_the_element_after_the_last_handle() {
        let word = word();
        word.write().unwrap();
        assert!(!word.release());
        assert!(word.end_write());
        assert!(word.is_free());
    }

    #[test]
    fn a_lease_at_the_limit_is_refused_and_not_wrapped() {
        let word = word();
        word.preset(MAX_READERS);
        assert_eq!(word.read(), Err(Refused::Limit));
        assert_eq!(word.write(), Err(Refused::Held));
        assert_eq!(word.readers(), MAX_READERS);
    }
}
