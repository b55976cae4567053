//! What this process exports: a slot for each, whose word on the control page says so.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Weak};

use super::control::Control;
use super::protocol::{Id, Keyed, Slots};
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

impl Keyed for Entry {
    fn key(&self) -> &Id {
        &self.key
    }
}

#[derive(Default)]
pub(super) struct Table(Slots<Entry>);

impl Table {
    /// Takes a slot: its number and generation; `None` if all are taken.
    pub(super) fn insert(&mut self, control: &Control, entry: Entry) -> Option<(u32, u32)> {
        let (slot, generation) = self.0.insert(entry)?;
        control.set(slot, generation);
        Some((slot, generation))
    }

    /// Gives a slot back, and the entry, to be dropped outside the lock.
    pub(super) fn remove(&mut self, control: &Control, slot: u32) -> Option<Entry> {
        control.set(slot, 0);
        self.0.remove(slot)
    }

    /// What somebody claims; `has_key` is whether he has shown the key.
    pub(super) fn claimed(
        &self,
        slot: (u32, u32),
        has_key: impl FnOnce(&Id) -> bool,
    ) -> Option<Entry> {
        self.0.claimed(slot, has_key).cloned()
    }
}
