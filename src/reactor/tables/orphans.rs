//! The receives without an operation, in the order in which they were posted.
//!
//! They are in a binary heap, and each knows its position there. So a drop, an adoption and a flush
//! take logarithmic time, in whatever order operations are dropped. All memory is allocated when
//! the table is made.

/// The position of an entry that is not in the heap.
const NOWHERE: u32 = u32::MAX;

pub(super) struct Orphans {
    /// Each element is older than the two behind it, at twice its position plus one and plus two.
    heap: Vec<OrphanEntry>,
    /// The position in the heap of each entry of the table.
    at: Box<[u32]>,
}

#[derive(Clone, Copy)]
struct OrphanEntry {
    /// The number of receives that were posted before.
    posted: u64,
    /// The entry's index in the table.
    place: u32,
}

impl Orphans {
    pub(in crate::reactor) fn new(places: u32) -> Orphans {
        Orphans {
            heap: Vec::with_capacity(places as usize),
            at: (0..places).map(|_| NOWHERE).collect(),
        }
    }

    /// Returns the index of the orphan that was posted first.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.heap.first().map(|oldest| oldest.place)
    }

    /// Adds an entry, which must not be in the heap.
    pub(super) fn insert(&mut self, place: u32, posted: u64) {
        debug_assert_eq!(self.at[place as usize], NOWHERE);
        self.heap.push(OrphanEntry { posted, place });
        self.rise(self.heap.len() - 1);
    }

    /// Removes an entry. Does nothing if the entry is not in the heap.
    pub(super) fn remove(&mut self, place: u32) {
        let at = std::mem::replace(&mut self.at[place as usize], NOWHERE) as usize;
        if at >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            let at = self.rise(at);
            self.sink(at);
        }
    }

    /// Moves an element forward until the one before it is older. Returns its new position.
    fn rise(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 && entry.posted < self.heap[(at - 1) / 2].posted {
            self.put((at - 1) / 2, at);
            at = (at - 1) / 2;
        }
        self.heap[at] = entry;
        self.at[entry.place as usize] = at as u32;
        at
    }

    /// Moves an element back until both behind it are younger.
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
        self.at[entry.place as usize] = at as u32;
    }

    /// Copies the element at `from` to `to`.
    fn put(&mut self, from: usize, to: usize) {
        self.heap[to] = self.heap[from];
        self.at[self.heap[to].place as usize] = to as u32;
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
            for (step, place, posted) in steps {
                let known = model.iter().find(|(_, known)| **known == place).map(|(posted, _)| *posted);
                match (step, known) {
                    // Each receive has a number of its own.
                    (0, None) if !model.contains_key(&posted) => {
                        orphans.insert(place, posted);
                        model.insert(posted, place);
                    }
                    (1, _) => {
                        orphans.remove(place);
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
