//! Slots: what this process has handed out blobs of, by number, generation and key.

use super::place::Id;

/// How many there can be of each kind: a word for each, and one more, make 64 KiB.
pub(in super::super) const SLOTS: usize = 16_383;

/// What a key opens.
pub(in super::super) trait Keyed {
    fn key(&self) -> &Id;
}

pub(in super::super) struct Slots<E> {
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
}

struct Slot<E> {
    generation: u32,
    entry: Option<E>,
}

impl<E> Default for Slots<E> {
    fn default() -> Slots<E> {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<E: Keyed> Slots<E> {
    /// Takes a slot: its number and generation; `None` if all are taken.
    pub(in super::super) fn insert(&mut self, entry: E) -> Option<(u32, u32)> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.slots.len() == SLOTS => return None,
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    entry: None,
                });
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[number as usize];
        slot.generation += 1;
        slot.entry = Some(entry);
        Some((number, slot.generation))
    }

    /// Gives a slot back. The entry is for the caller to drop, outside the lock: its owner may be user code.
    pub(in super::super) fn remove(&mut self, number: u32) -> Option<E> {
        let slot = &mut self.slots[number as usize];
        // The last generation is the last: another one would have been there before.
        if slot.generation != u32::MAX {
            self.free.push(number);
        }
        slot.entry.take()
    }

    /// What somebody claims; `has_key` is whether he has shown the key.
    pub(in super::super) fn claimed(
        &self,
        (number, generation): (u32, u32),
        has_key: impl FnOnce(&Id) -> bool,
    ) -> Option<&E> {
        let slot = self.slots.get(usize::try_from(number).ok()?)?;
        let entry = slot.entry.as_ref()?;
        (slot.generation == generation && has_key(entry.key())).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keyed for Id {
        fn key(&self) -> &Id {
            self
        }
    }

    #[test]
    fn a_generation_never_comes_back() {
        let mut slots = Slots::default();
        assert_eq!(slots.insert([1; 16]), Some((0, 1)));
        assert_eq!(slots.remove(0), Some([1; 16]));
        assert_eq!(slots.insert([2; 16]), Some((0, 2)));
        slots.slots[0].generation = u32::MAX;
        slots.remove(0);
        // Who has the blob of one of the first two would take the next one for it.
        assert_eq!(slots.insert([3; 16]), Some((1, 1)));
    }

    #[test]
    fn a_claim_needs_slot_generation_and_key() {
        let mut slots = Slots::default();
        assert_eq!(slots.insert([1; 16]), Some((0, 1)));
        let claimed =
            |slots: &Slots<Id>, slot, key: Id| slots.claimed(slot, |it| *it == key).copied();
        assert_eq!(claimed(&slots, (0, 1), [1; 16]), Some([1; 16]));
        for (slot, key) in [((0, 1), 2), ((0, 2), 1), ((1, 1), 1), ((u32::MAX, 1), 1)] {
            assert_eq!(claimed(&slots, slot, [key; 16]), None, "{slot:?}");
        }
        slots.remove(0);
        assert_eq!(claimed(&slots, (0, 1), [1; 16]), None);
    }
}
