//! What this process exports: a slot for each, whose word on the control page says so.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Weak};

use super::control::{Control, SLOTS};
use super::place::Id;
use super::wire::Claim;
use crate::device::{Access, Audience};

/// An export.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: Id,
    pub(super) memfd: Arc<OwnedFd>,
    /// Whether who imports it may write.
    pub(super) write: bool,
    /// Where it begins in the memfd.
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) audience: Audience,
    pub(super) access: Access,
    /// Where it is in this process. It is never touched here; an `AtomicPtr` is a pointer that is Send.
    pub(super) addr: Arc<AtomicPtr<u8>>,
    pub(super) owner: Weak<dyn Any + Send + Sync>,
}

#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

impl Table {
    /// Takes a slot: its number and generation; `None` if all are taken.
    pub(super) fn insert(&mut self, control: &Control, entry: Entry) -> Option<(u32, u32)> {
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
        control.set(number, slot.generation);
        Some((number, slot.generation))
    }

    /// Gives a slot back. The entry is for the caller to drop, outside the lock: its owner may be user code.
    pub(super) fn remove(&mut self, control: &Control, number: u32) -> Option<Entry> {
        control.set(number, 0);
        let slot = &mut self.slots[number as usize];
        // The last generation is the last: another one would have been there before.
        if slot.generation != u32::MAX {
            self.free.push(number);
        }
        slot.entry.take()
    }

    fn find(&self, number: u32, generation: u32) -> Option<&Entry> {
        let slot = self.slots.get(usize::try_from(number).ok()?)?;
        let entry = slot.entry.as_ref()?;
        (slot.generation == generation).then_some(entry)
    }

    /// What somebody claims who has the key.
    pub(super) fn claimed(&self, claim: &Claim) -> Option<&Entry> {
        let entry = self.find(claim.request.slot, claim.request.generation)?;
        claim.is_proved(&entry.key).then_some(entry)
    }

    /// What a blob of this process names.
    pub(super) fn own(&self, number: u32, generation: u32, key: &Id) -> Option<&Entry> {
        self.find(number, generation)
            .filter(|entry| entry.key == *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            key: [1; 16],
            memfd: Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
            write: false,
            offset: 0,
            len: 1,
            audience: Audience::Dpu,
            access: Access::DPU_READ_ONLY,
            addr: Arc::default(),
            owner: Weak::<u32>::new(),
        }
    }

    #[test]
    fn a_generation_never_comes_back() {
        let (control, mut table) = (Control::new().unwrap(), Table::default());
        let insert = |table: &mut Table| table.insert(&control, entry()).unwrap();
        assert_eq!(insert(&mut table), (0, 1));
        table.remove(&control, 0);
        assert_eq!(insert(&mut table), (0, 2));
        table.slots[0].generation = u32::MAX;
        table.remove(&control, 0);
        // Who imported one of the first two would take the next one for it.
        assert_eq!(insert(&mut table), (1, 1));
    }
}
