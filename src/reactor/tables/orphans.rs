//! [`Orphans`], the receives whose operation was dropped, in the order in which they were posted.
//!
//! The receives are in a binary heap, and the position of each in the heap is known. So a drop, an
//! adoption and a flush take logarithmic time, in whatever order operations are dropped. All memory
//! is allocated when the table is made.

/// The position of an entry that is not in the heap.
const NOWHERE: u32 = u32::MAX;

pub(super) struct Orphans {
    /// The heap: the element at position `i` is older than those at `2 * i + 1` and `2 * i + 2`.
    heap: Vec<OrphanEntry>,
    /// `at[i]` is the position of the table's entry `i` in the heap, or `NOWHERE`.
    at: Box<[u32]>,
}

#[derive(Clone, Copy)]
struct OrphanEntry {
    /// The number of receives that were posted before this one.
    posted: u64,
    /// The entry's index in the table.
    index: u32,
}

impl Orphans {
    pub(in crate::reactor) fn new(len: u32) -> Orphans {
        Orphans {
            heap: Vec::with_capacity(len as usize),
            at: (0..len).map(|_| NOWHERE).collect(),
        }
    }

    /// Returns the index of the orphan that was posted first.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.heap.first().map(|oldest| oldest.index)
    }

    /// Adds an entry, which must not be in the heap.
    pub(super) fn insert(&mut self, index: u32, posted: u64) {
        debug_assert_eq!(self.at[index as usize], NOWHERE);
        self.heap.push(OrphanEntry { posted, index });
        self.rise(self.heap.len() - 1);
    }

    /// Removes an entry from the heap, if it is there.
    pub(super) fn remove(&mut self, index: u32) {
        let at = std::mem::replace(&mut self.at[index as usize], NOWHERE) as usize;
        if at >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            let at = self.rise(at);
            self.sink(at);
        }
    }

    /// Moves an element towards the root until its parent is older. Returns its new position.
    fn rise(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 && entry.posted < self.heap[(at - 1) / 2].posted {
            self.put((at - 1) / 2, at);
            at = (at - 1) / 2;
        }
        self.heap[at] = entry;
        self.at[entry.index as usize] = at as u32;
        at
    }

    /// Moves an element away from the root until both of its children are younger.
    fn sink(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let behind = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let older = behind.min_by_key(|&behind| self.heap[behind].posted);
            let Some(older) = older.filter(|&older| self.heap[older].posted < entry.posted) else {
                break;
            };
            self.put(older, at);
            at = older;
        }
        self.heap[at] = entry;
        self.at[entry.index as usize] = at as u32;
    }

    /// Copies the element at position `from` to position `to`.
    fn put(&mut self, from: usize, to: usize) {
        self.heap[to] = self.heap[from];
        self.at[self.heap[to].index as usize] = to as u32;
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PLACES: u32 = 40;

    proptest! {
        #[test]
        fn the_oldest_is_that_of_a_sorted_map(steps in proptest::collection::vec((0..3_u8, 0..PLACES, 0..1000_u64), 1..400)) {
            let mut orphans = Orphans::new(PLACES);
            let mut model = BTreeMap::new();
            for (step, index, posted) in steps {
                let known = model.iter().find(|(_, known)| **known == index).map(|(posted, _)| *posted);
                match (step, known) {
                    // No two receives have the same number.
                    (0, None) if !model.contains_key(&posted) => {
                        orphans.insert(index, posted);
                        model.insert(posted, index);
                    }
                    (1, _) => {
                        orphans.remove(index);
                        known.map(|posted| model.remove(&posted));
                    }
                    (2, _) => if let Some((_, oldest)) = model.pop_first() {
                        prop_assert_eq!(orphans.oldest(), Some(oldest));
                        orphans.remove(oldest);
                    },
                    _ => {}
                }
                prop_assert_eq!(orphans.oldest(), model.values().next().copied());
                prop_assert_eq!(orphans.heap.len(), model.len());
            }
        }
    }
}
