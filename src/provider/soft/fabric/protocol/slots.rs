//! The slots of this process: the objects for which it has handed out tickets, by number,
//! generation and key.

use super::netns::Id;

/// The number of slots. The control page has a word for each slot, and one more: 64 KiB.
pub(in super::super) const SLOTS: usize = 16_383;

pub(in super::super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    /// The key of the slot's ticket, and the value; `None` if the slot is free.
    entry: Option<(Id, T)>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Takes a free slot, and returns its number and generation. Returns `None` if all slots are
    /// taken.
    pub(in super::super) fn insert(&mut self, key: Id, value: T) -> Option<(u32, u32)> {
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
        slot.entry = Some((key, value));
        Some((number, slot.generation))
    }

    /// Frees a slot, and returns its value. The caller must drop the value without holding a lock,
    /// as the drop may run user code.
    pub(in super::super) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = &mut self.slots[number as usize];
        // A slot is not used again after its last generation, since an earlier one would repeat.
        if slot.generation != u32::MAX {
            self.free.push(number);
        }
        slot.entry.take().map(|(_, value)| value)
    }

    /// Returns the key and the value of the slot with this number, if the slot has this generation
    /// and `has_key` returns true for its key.
    pub(in super::super) fn claimed(
        &self,
        (number, generation): (u32, u32),
        has_key: impl FnOnce(&Id) -> bool,
    ) -> Option<&(Id, T)> {
        let slot = self.slots.get(usize::try_from(number).ok()?)?;
        let entry = slot.entry.as_ref()?;
        (slot.generation == generation && has_key(&entry.0)).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_never_comes_back() {
        let mut slots = Slots::default();
        assert_eq!(slots.insert([1; 16], 1), Some((0, 1)));
        assert_eq!(slots.remove(0), Some(1));
        assert_eq!(slots.insert([2; 16], 2), Some((0, 2)));
        slots.slots[0].generation = u32::MAX;
        slots.remove(0);
        // Otherwise a ticket of an earlier export could open the new one.
        assert_eq!(slots.insert([3; 16], 3), Some((1, 1)));
    }

    #[test]
    fn a_claim_needs_slot_generation_and_key() {
        let mut slots = Slots::default();
        assert_eq!(slots.insert([1; 16], 7), Some((0, 1)));
        let claimed =
            |slots: &Slots<u8>, slot, key: Id| slots.claimed(slot, |it| *it == key).copied();
        assert_eq!(claimed(&slots, (0, 1), [1; 16]), Some(([1; 16], 7)));
        for (slot, key) in [((0, 1), 2), ((0, 2), 1), ((1, 1), 1), ((u32::MAX, 1), 1)] {
            assert_eq!(claimed(&slots, slot, [key; 16]), None, "{slot:?}");
        }
        slots.remove(0);
        assert_eq!(claimed(&slots, (0, 1), [1; 16]), None);
    }
}
