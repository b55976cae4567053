//! Jobs of the caller's own loop that have completed, in the order in which they ended.
//!
//! Their Slots keep the results; here stand the numbers of the Slots, in a ring that has a place
//! for each of them. It is never full, since a Slot stands in it once at most. The party that ends
//! a Job puts it in, from any thread; whoever makes progress takes it out, once. A place says by
//! its stamp for which round it was written: a number that was claimed and is not yet written holds
//! up those behind it, for a few instructions, and its writer looks afterwards whether somebody
//! waits.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::seq_cst_order;

/// Bits of a Slot's number; the rest is the stamp.
const INDEX_BITS: u32 = 20;
const INDEX: u64 = (1 << INDEX_BITS) - 1;

#[repr(align(128))]
struct CacheLine(AtomicU64);

pub(in crate::reactor) struct Finished {
    /// Places taken out, ever.
    head: CacheLine,
    /// Places claimed, ever.
    tail: CacheLine,
    cells: Box<[AtomicU64]>,
}

/// What a cell has above its number when this place was written: never that of another round, nor
/// of none.
fn stamp(place: u64) -> u64 {
    place.wrapping_add(1) << INDEX_BITS
}

impl Finished {
    pub(in crate::reactor) fn new(slots: usize) -> Finished {
        Finished {
            head: CacheLine(AtomicU64::new(0)),
            tail: CacheLine(AtomicU64::new(0)),
            cells: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn cell(&self, place: u64) -> &AtomicU64 {
        &self.cells[(place % self.cells.len() as u64) as usize]
    }

    /// Puts a Slot in. It is done, and the caller does not touch it any more (Release, paired with
    /// `pop`'s Acquire).
    pub(in crate::reactor) fn push(&self, slot: u32) {
        // Release and Acquire, with those who claimed before: whoever wrote this cell for the last
        // round did so before a Slot of that round was free again and came here. Relaxed, the two
        // writes have no order.
        let place = self.tail.0.fetch_add(1, Ordering::AcqRel);
        let word = stamp(place) | u64::from(slot);
        // SeqCst: whoever arms is seen afterwards, or sees it.
        self.cell(place).store(word, Ordering::SeqCst);
        seq_cst_order();
    }

    /// Takes the oldest out: its Slot is the caller's.
    pub(in crate::reactor) fn pop(&self) -> Option<u32> {
        loop {
            let (place, slot) = self.first()?;
            let next = place.wrapping_add(1);
            let head = &self.head.0;
            // If it fails somebody else has it. The place is not written anew before it was taken.
            if head
                .compare_exchange(place, next, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return Some(slot);
            }
        }
    }

    /// Returns true if there is none. Pairs with `push`.
    pub(in crate::reactor) fn is_empty(&self) -> bool {
        seq_cst_order();
        self.first().is_none()
    }

    fn first(&self) -> Option<(u64, u32)> {
        let mut place = self.head.0.load(Ordering::SeqCst);
        loop {
            let word = self.cell(place).load(Ordering::SeqCst);
            if word & !INDEX == stamp(place) {
                return Some((place, (word & INDEX) as u32));
            }
            // Written for a later round, since somebody took this one, or not written yet.
            let now = self.head.0.load(Ordering::SeqCst);
            if now == place {
                return None;
            }
            place = now;
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
