//! A lock-free list of free indices that knows whether a task waits for one, and that can be
//! closed.
//!
//! A stack: a head word with a tag against reuse, and a `next` per index.
//!
//! ```text
//! 63              25    24     23           0
//! |  tag (39 bits)  | waited |    index     |     EMPTY: none free     CLOSED: the handle is gone
//! ```
//!
//! - The tag changes with every operation. So a pop fails if another thread has taken and brought
//!   back the index since the pop read its `next`. It would err only if it slept between two
//!   instructions for exactly 2^39 operations.
//! - `waited` lies in the head word. So a push either sees it, or came before it was set: then the
//!   task that set it finds the list not empty. A push that does not see it touches nothing
//!   afterwards, since the list may be gone.
//! - The indices outlive their pool's handle, so the list has an end of its own: `close` takes all
//!   free indices, and later ones are only counted. The call that counts the last index reports
//!   that to its caller.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const INDEX: u64 = (1 << 24) - 1;
const WAITED: u64 = 1 << 24;
const TAG: u64 = 1 << 25;
const EMPTY: u32 = INDEX as u32;
const CLOSED: u32 = INDEX as u32 - 1;
/// The maximum number of indices in a list.
pub(in crate::mem) const MAX: usize = CLOSED as usize;

pub(in crate::mem) struct FreeList {
    head: AtomicU64,
    next: Box<[AtomicU32]>,
    /// The number of indices that are back since the list was closed, including those that were
    /// free then; 0 before.
    home: AtomicU32,
}

/// The result of `push`: what became of the index that was brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::mem) enum Pushed {
    /// The index is free again.
    Home,
    /// The list is closed, and this was the last index: the caller ends the slab.
    Last,
    /// A task waits, and `can_wake` was false: nothing was done.
    Waited,
}

/// Returns the next head: another index, another tag, and `waited` as it was.
fn step(head: u64, index: u32) -> u64 {
    (head.wrapping_add(TAG) & !INDEX) | u64::from(index)
}

impl FreeList {
    /// Returns a list of all indices below `len`. The lowest is taken first.
    pub(in crate::mem) fn new(len: usize) -> FreeList {
        assert!(len <= MAX);
        let next = (1..=len)
            .map(|i| AtomicU32::new(if i == len { EMPTY } else { i as u32 }))
            .collect();
        let head = AtomicU64::new(u64::from(if len == 0 { EMPTY } else { 0 }));
        FreeList {
            head,
            next,
            home: AtomicU32::new(0),
        }
    }

    /// Takes a free index, or returns `None` if there is none.
    #[inline]
    pub(in crate::mem) fn pop(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = (head & INDEX) as u32;
            if index >= CLOSED {
                return None;
            }
            let new = step(head, self.next(index));
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(index),
                Err(seen) => head = seen,
            }
        }
    }

    /// Returns the index that lies below `index` in the stack.
    #[inline(always)]
    fn next(&self, index: u32) -> u32 {
        self.next[index as usize].load(Ordering::Relaxed)
    }

    /// Returns true if no index was free a moment ago.
    pub(in crate::mem) fn is_empty(&self) -> bool {
        (self.head.load(Ordering::Acquire) & INDEX) as u32 >= CLOSED
    }

    /// Brings an index back. `can_wake` is true if the caller may still touch the slab that the
    /// indices belong to.
    #[inline]
    pub(in crate::mem) fn push(&self, index: u32, can_wake: bool) -> Pushed {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let first = (head & INDEX) as u32;
            if first == CLOSED {
                return if self.count(1) {
                    Pushed::Last
                } else {
                    Pushed::Home
                };
            }
            if head & WAITED != 0 && !can_wake {
                return Pushed::Waited;
            }
            self.next[index as usize].store(first, Ordering::Relaxed);
            let new = step(head, index);
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Pushed::Home,
                Err(seen) => head = seen,
            }
        }
    }

    /// Sets or clears the mark that a task waits.
    pub(in crate::mem) fn set_waited(&self, waited: bool) {
        let set = |head: u64| {
            let open = (head & INDEX) as u32 != CLOSED;
            open.then(|| {
                if waited {
                    head | WAITED
                } else {
                    head & !WAITED
                }
                .wrapping_add(TAG)
            })
        };
        // A closed list is not changed.
        let _ = self
            .head
            .fetch_update(Ordering::SeqCst, Ordering::Acquire, set);
    }

    /// Closes the list; called once. Returns true if all indices were free: the caller then ends
    /// the slab.
    #[must_use]
    pub(in crate::mem) fn close(&self) -> bool {
        let head = self.head.swap(u64::from(CLOSED), Ordering::AcqRel);
        let (mut index, mut home) = ((head & INDEX) as u32, 0);
        while index != EMPTY {
            home += 1;
            index = self.next(index);
        }
        self.count(home)
    }

    fn count(&self, home: u32) -> bool {
        // The length is read first: once this caller's part is counted, another thread may count
        // the last index, and end the list.
        let all = self.next.len() as u32;
        if home == 0 {
            // A caller that counts nothing does not end the list, unless the list has no indices.
            return all == 0;
        }
        // AcqRel: the last caller sees what all callers before it did to their elements.
        self.home.fetch_add(home, Ordering::AcqRel) + home == all
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_index_is_out_once() {
        let list = FreeList::new(3);
        let pop = || list.pop();
        assert_eq!(
            [pop(), pop(), pop(), pop()],
            [Some(0), Some(1), Some(2), None]
        );
        assert_eq!(list.push(1, false), Pushed::Home);
        assert_eq!(list.push(2, false), Pushed::Home);
        assert_eq!([pop(), pop(), pop()], [Some(2), Some(1), None]);
    }

    #[test]
    fn a_push_sees_that_somebody_waits() {
        let list = FreeList::new(1);
        assert_eq!(list.pop(), Some(0));
        list.set_waited(true);
        assert_eq!(list.push(0, false), Pushed::Waited);
        assert_eq!(list.pop(), None, "nothing was done");
        assert_eq!(list.push(0, true), Pushed::Home);
        assert_eq!(list.pop(), Some(0));
        list.set_waited(false);
        assert_eq!(list.push(0, false), Pushed::Home);
    }

    #[test]
    fn the_last_one_home_ends_a_closed_list() {
        let list = FreeList::new(3);
        let (a, b) = (list.pop().unwrap(), list.pop().unwrap());
        assert!(!list.close());
        assert_eq!(list.pop(), None);
        list.set_waited(true);
        assert_eq!(list.push(a, false), Pushed::Home);
        assert_eq!(list.push(b, false), Pushed::Last);
        assert!(FreeList::new(2).close(), "all home");
        assert!(FreeList::new(0).close());
    }
}
