//! The Slots of a WorkQ, and which of them are free.
#![expect(unsafe_code, reason = "says whose a Slot is")]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use super::finished::Finished;
use super::free_bitmap::FreeBitmap;
use super::job_leases::JobLeases;
use super::phases::Phases;
use super::slot::{Completed, Slot};
use super::target::{Leftovers, Notify, Outcome, ResultKind, Target};
use crate::device::{Completion, Token};
use crate::reactor::gate::Deferred;

/// Outlives the WorkQ for as long as a device may complete one of its Jobs.
pub(in crate::reactor) struct Table {
    slots: Box<[Slot]>,
    free: FreeBitmap,
    finished: Finished,
    /// Completions that named no Job in flight.
    stale: AtomicU64,
    /// The Slot that `any` has found last.
    found: AtomicUsize,
}

impl Table {
    pub(in crate::reactor) fn new(depth: u32) -> Table {
        let slots = (0..depth).map(|_| Slot::new()).collect();
        Table {
            slots,
            free: FreeBitmap::new(depth as usize),
            finished: Finished::new(depth as usize),
            stale: AtomicU64::new(0),
            found: AtomicUsize::new(0),
        }
    }

    /// Takes a free Slot.
    #[inline]
    pub(in crate::reactor) fn take(&self) -> Option<ReservedSlot<'_>> {
        let index = self.free.take()?;
        let slot = &self.slots[index as usize];
        Some(ReservedSlot {
            table: self,
            slot,
            index,
        })
    }

    pub(in crate::reactor) fn free(&self) -> &FreeBitmap {
        &self.free
    }

    pub(in crate::reactor) fn slot(&self, token: Token) -> &Slot {
        &self.slots[token.index() as usize]
    }

    /// Frees a Slot whose Job no device has.
    ///
    /// # Safety
    ///
    /// The caller has just filled the Slot of this Token, whose Job no device has, and has told
    /// nobody the Token.
    pub(in crate::reactor) unsafe fn undo(&self, token: Token) {
        // SAFETY: as the caller promises.
        drop(unsafe { self.slot(token).undo() });
        self.free.put(token.index());
    }

    /// Jobs of the caller's own loop that have completed.
    pub(in crate::reactor) fn finished(&self) -> &Finished {
        &self.finished
    }

    /// Takes the oldest of them: its word, and how it ended. The Slot is free, but for the free
    /// list.
    pub(in crate::reactor) fn take_finished(&self) -> Option<(u32, u64, ResultKind, Outcome)> {
        loop {
            let index = self.finished.pop()?;
            // SAFETY: the number was just taken out of `Finished`, where `complete` and `settle`
            // put one for each end of such a job.
            let taken = unsafe { self.slots[index as usize].take_posted() };
            if let Some((user_data, meaning, outcome)) = taken {
                return Some((index, user_data, meaning, outcome));
            }
            debug_assert!(false, "only what is done stands there");
        }
    }

    /// Reaper: a completion. Returns whom to notify.
    #[inline(always)]
    pub(in crate::reactor) fn complete(
        &self,
        completion: &Completion,
        rest: &mut Leftovers,
    ) -> Option<Notify> {
        let token = completion.token;
        // What a device says is checked: a Token of ours names a Slot, and its generation says
        // which use of it.
        let slot = (token.table() == 0)
            .then(|| self.slots.get(token.index() as usize))
            .flatten();
        // No closure: it would be a call.
        let completed = match slot {
            Some(slot) => slot.complete(token.generation(), completion.result, rest),
            None => Completed::Stale,
        };
        match completed {
            Completed::Nothing => None,
            Completed::Notify(whom) => Some(whom),
            Completed::Deliver => {
                self.finished.push(token.index());
                Some(Notify::Caller)
            }
            Completed::Free(whom) => {
                self.free.put(token.index());
                whom
            }
            Completed::Stale => {
                self.stale.fetch_add(1, Ordering::Relaxed);
                Some(Notify::Nobody(token))
            }
        }
    }

    fn taken(&self) -> impl Iterator<Item = &Slot> {
        self.free.taken_from(0).map(|slot| &self.slots[slot])
    }

    /// Returns true if a device may still have a Job, or is about to have one: a Slot that was
    /// taken and is not filled yet counts, until it is filled, settled or free again.
    pub(in crate::reactor) fn any_in_flight(&self) -> bool {
        self.taken().any(|slot| !slot.phase().is_done())
    }

    /// Completions that named no Job in flight.
    pub(in crate::reactor) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// Returns whether a Slot is in such a phase. It ends at the first, which is near the last one
    /// where jobs end in the order in which they took their Slots.
    pub(in crate::reactor) fn any(&self, is: impl Fn(Phases) -> bool) -> bool {
        let mut taken = self.free.taken_from(self.found.load(Ordering::Relaxed));
        let found = taken.find(|&slot| is(self.slots[slot].phase()));
        if let Some(slot) = found {
            self.found.store(slot, Ordering::Relaxed);
        }
        found.is_some()
    }

    /// Slots that a device may have a Job of, and Slots with a result that nobody fetched.
    pub(in crate::reactor) fn count(&self) -> (u64, u64) {
        let (mut in_flight, mut unfetched) = (0, 0);
        for slot in self.taken() {
            match slot.phase() {
                phase if phase.any_in_flight() => in_flight += 1,
                phase => unfetched += u64::from(phase.is_done()),
            }
        }
        (in_flight, unfetched)
    }

    /// Returns how many Jobs a queue may still have.
    ///
    /// # Safety
    ///
    /// Nobody else reaches the table during the call.
    pub(in crate::reactor) unsafe fn outstanding(&self, queue: u8) -> usize {
        // SAFETY: as the caller promises.
        let in_flight = |slot: &&Slot| unsafe { slot.in_flight() } == Some(queue);
        self.slots.iter().filter(in_flight).count()
    }

    /// Reaper: the wakers of the Ops that sleep, to be woken once the gate was left.
    pub(in crate::reactor) fn sleepers(&self) -> Vec<Deferred<Waker>> {
        let sleepers = self.taken().filter_map(Slot::take_waker);
        sleepers.map(Deferred::new).collect()
    }
}

/// A Slot that was taken from the free list: only its holder fills it, and at most once. It goes
/// back to the free list when it is dropped.
#[must_use]
pub(crate) struct ReservedSlot<'a> {
    table: &'a Table,
    slot: &'a Slot,
    index: u32,
}

impl ReservedSlot<'_> {
    /// Returns true if it is a Slot of this table.
    #[inline(always)]
    pub(in crate::reactor) fn is_of(&self, table: &Table) -> bool {
        std::ptr::eq(self.table, table)
    }

    /// Fills the Slot. The device may see it from here on.
    #[inline(always)]
    pub(in crate::reactor) fn fill(self, held: JobLeases, target: Option<Target>) -> Token {
        let ReservedSlot { slot, index, .. } = *ManuallyDrop::new(self);
        // SAFETY: this was taken from the free list, and is used up here.
        let generation = unsafe { slot.fill(held, target) };
        Token::new(0, index, generation)
    }

    /// A Job of the caller's own loop has completed before it was the device's.
    pub(in crate::reactor) fn settle(self, user_data: u64, meaning: ResultKind, outcome: Outcome) {
        let ReservedSlot { table, slot, index } = *ManuallyDrop::new(self);
        // SAFETY: as in `fill`.
        unsafe { slot.settle(user_data, meaning, outcome) };
        table.finished.push(index);
    }
}

impl Drop for ReservedSlot<'_> {
    fn drop(&mut self) {
        self.table.free.put(self.index);
    }
}
