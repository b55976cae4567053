//! [`Table`], the slots of a WorkQ and the set of free ones.
#![expect(unsafe_code, reason = "says whose a Slot is")]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use super::finished::Finished;
use super::free_bitmap::FreeBitmap;
use super::job_leases::JobLeases;
use super::phases::Phases;
use super::slot::Slot;
use super::target::{Completed, Leftovers, Notify, Outcome, ResultKind, Target};
use crate::device::{Completion, Token};
use crate::reactor::gate::Deferred;

/// The slots of a WorkQ. The table outlives the WorkQ while a device may still complete one of its
/// jobs.
pub(in crate::reactor) struct Table {
    slots: Box<[Slot]>,
    free: FreeBitmap,
    finished: Finished,
    /// The number of completions that named no job in flight.
    stale: AtomicU64,
    /// The slot that `any` found last, where it begins its next search.
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

    /// Takes a free slot.
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

    /// Frees a slot whose job no device has.
    ///
    /// # Safety
    ///
    /// The caller has just filled the slot of this Token, no device has its job, and no other code
    /// has the Token.
    pub(in crate::reactor) unsafe fn undo(&self, token: Token) {
        // SAFETY: as the caller promises.
        drop(unsafe { self.slot(token).undo() });
        self.free.put(token.index());
    }

    /// Returns the ring of the completed jobs of the caller's own loop.
    pub(in crate::reactor) fn finished(&self) -> &Finished {
        &self.finished
    }

    /// Takes the oldest of the finished jobs. Returns its slot's number, the caller's word, the
    /// meaning of the result, and the outcome. The slot is not yet back in the free list.
    pub(in crate::reactor) fn take_finished(&self) -> Option<(u32, u64, ResultKind, Outcome)> {
        loop {
            let index = self.finished.pop()?;
            // SAFETY: the number was just taken out of `Finished`, into which `complete` and
            // `settle` put it once for each job of the caller's own loop that ends.
            let taken = unsafe { self.slots[index as usize].take_posted() };
            if let Some((user_data, meaning, outcome)) = taken {
                return Some((index, user_data, meaning, outcome));
            }
            debug_assert!(false, "only completed jobs are listed");
        }
    }

    /// Completes the job that `completion` names, for the reaper. Returns what to notify, if
    /// anything.
    #[inline(always)]
    pub(in crate::reactor) fn complete(
        &self,
        completion: &Completion,
        rest: &mut Leftovers,
    ) -> Option<Notify> {
        let token = completion.token;
        // The Token comes from a device, so it is checked: table 0 is this one, the index names a
        // slot, and the generation names one use of the slot.
        let slot = (token.table() == 0)
            .then(|| self.slots.get(token.index() as usize))
            .flatten();
        // A closure (`map_or`) would cost a call.
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

    /// Returns true if a device may still have a job, or is about to have one. A slot that was
    /// taken and is not filled yet counts, until it is filled, settled or freed.
    pub(in crate::reactor) fn any_in_flight(&self) -> bool {
        self.taken().any(|slot| !slot.phase().is_done())
    }

    /// Returns the number of completions that named no job in flight.
    pub(in crate::reactor) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// Returns true if `is` returns true for the phase of a taken slot. The search begins at the
    /// slot that it found last time, and ends at the first match. It is short if jobs end in the
    /// order in which they took their slots.
    pub(in crate::reactor) fn any(&self, is: impl Fn(Phases) -> bool) -> bool {
        let mut taken = self.free.taken_from(self.found.load(Ordering::Relaxed));
        let found = taken.find(|&slot| is(self.slots[slot].phase()));
        if let Some(slot) = found {
            self.found.store(slot, Ordering::Relaxed);
        }
        found.is_some()
    }

    /// Returns two numbers: of slots whose job a device may have, and of slots whose result was not
    /// fetched.
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

    /// Returns the number of jobs that the device's queue with the number `queue` may still have.
    ///
    /// # Safety
    ///
    /// No other code reaches the table during the call.
    pub(in crate::reactor) unsafe fn outstanding(&self, queue: u8) -> usize {
        // SAFETY: as the caller promises.
        let in_flight = |slot: &&Slot| unsafe { slot.in_flight() } == Some(queue);
        self.slots.iter().filter(in_flight).count()
    }

    /// Takes the wakers of the operations that sleep. The reaper calls this, and wakes them once it
    /// has left the gate.
    pub(in crate::reactor) fn sleepers(&self) -> Vec<Deferred<Waker>> {
        let sleepers = self.taken().filter_map(Slot::take_waker);
        sleepers.map(Deferred::new).collect()
    }
}

/// A slot that was taken from the free list. Only its holder fills it, at most once. If it is
/// dropped, the slot goes back to the free list.
#[must_use]
pub(crate) struct ReservedSlot<'a> {
    table: &'a Table,
    slot: &'a Slot,
    index: u32,
}

impl ReservedSlot<'_> {
    /// Returns true if the slot is one of this table.
    #[inline(always)]
    pub(in crate::reactor) fn is_of(&self, table: &Table) -> bool {
        std::ptr::eq(self.table, table)
    }

    /// Fills the slot. The device may see it from here on.
    #[inline(always)]
    pub(in crate::reactor) fn fill(self, held: JobLeases, target: Option<Target>) -> Token {
        let ReservedSlot { slot, index, .. } = *ManuallyDrop::new(self);
        // SAFETY: the slot was taken from the free list, and `self` is used up here.
        let generation = unsafe { slot.fill(held, target) };
        Token::new(0, index, generation)
    }

    /// Stores the outcome of a job of the caller's own loop that has completed without being
    /// submitted.
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
