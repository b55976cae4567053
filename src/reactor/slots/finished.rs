//! [`Finished`], a ring with the completed jobs of the caller's own loop, in the order in which
//! they ended.
//!
//! The ring holds numbers of slots; the slots keep the results. It has one entry per slot of the
//! table, and is never full, since a slot is in it at most once. Any thread may complete a job and
//! push its slot. The thread that makes progress pops the slot, once. The stamp of an entry says
//! for which round of the ring it was written. An entry that was claimed and is not yet written
//! holds up the entries behind it, for a few instructions; its writer checks afterwards whether a
//! thread waits.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::seq_cst_order;

/// The bits of a slot's number; the rest is the stamp.
const INDEX_BITS: u32 = 20;
const INDEX: u64 = (1 << INDEX_BITS) - 1;

#[repr(align(128))]
struct CacheLine(AtomicU64);

pub(in crate::reactor) struct Finished {
    /// The number of entries that were ever popped.
    head: CacheLine,
    /// The number of entries that were ever claimed.
    tail: CacheLine,
    cells: Box<[AtomicU64]>,
}

/// Returns the stamp of the entry at position `position` of the endless sequence. It lies above the
/// slot's number in the cell, and differs from the stamps of other rounds and from that of an empty
/// cell.
fn stamp(position: u64) -> u64 {
    position.wrapping_add(1) << INDEX_BITS
}

impl Finished {
    pub(in crate::reactor) fn new(slots: usize) -> Finished {
        Finished {
            head: CacheLine(AtomicU64::new(0)),
            tail: CacheLine(AtomicU64::new(0)),
            cells: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn cell(&self, position: u64) -> &AtomicU64 {
        &self.cells[(position % self.cells.len() as u64) as usize]
    }

    /// Pushes a slot that is done. The caller must not touch the slot afterwards: the Release here
    /// is paired with the Acquire of `pop`.
    pub(in crate::reactor) fn push(&self, slot: u32) {
        // AcqRel, paired with earlier claims: the write of this cell for the last round came before
        // a slot of that round was freed, and so before the present push. With Relaxed the two
        // writes would have no order.
        let position = self.tail.0.fetch_add(1, Ordering::AcqRel);
        let word = stamp(position) | u64::from(slot);
        // SeqCst: either this thread sees afterwards that a thread has armed, or that thread sees
        // this entry.
        self.cell(position).store(word, Ordering::SeqCst);
        seq_cst_order();
    }

    /// Pops the oldest entry, and returns its slot, which then belongs to the caller.
    pub(in crate::reactor) fn pop(&self) -> Option<u32> {
        loop {
            let (position, slot) = self.first()?;
            let next = position.wrapping_add(1);
            let head = &self.head.0;
            // If the exchange fails, another thread has popped the entry. A cell is not written
            // again before its entry was popped.
            if head
                .compare_exchange(position, next, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return Some(slot);
            }
        }
    }

    /// Returns true if the ring has no entry. Pairs with `push`.
    pub(in crate::reactor) fn is_empty(&self) -> bool {
        seq_cst_order();
        self.first().is_none()
    }

    fn first(&self) -> Option<(u64, u32)> {
        let mut position = self.head.0.load(Ordering::SeqCst);
        loop {
            let word = self.cell(position).load(Ordering::SeqCst);
            if word & !INDEX == stamp(position) {
                return Some((position, (word & INDEX) as u32));
            }
            // The cell was either written for a later round, since another thread popped this
            // entry, or is not written yet.
            let now = self.head.0.load(Ordering::SeqCst);
            if now == position {
                return None;
            }
            position = now;
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_come_out_in_order_and_once_round_after_round() {
        for slots in [1, 3, 8] {
            let finished = Finished::new(slots);
            for round in 0..20 {
                let many = round % slots + 1;
                for slot in 0..many as u32 {
                    finished.push(slot);
                }
                assert!(!finished.is_empty());
                for slot in 0..many as u32 {
                    assert_eq!(finished.pop(), Some(slot));
                }
                assert!(finished.is_empty());
                assert_eq!(finished.pop(), None);
            }
        }
    }
}
