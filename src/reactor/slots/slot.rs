//! [`Slot`], the entry of a job in the WorkQ's table: it owns the job's Leases, waker and result.
//!
//! The word `state` holds the generation (upper half) and the phase. DESIGN.md ("A slot") draws its
//! changes. The phase says which of three parties owns the slot's cells: the operation (one thread
//! at a time, by `&mut`), the reaper (one thread at a time, by the gate), or the free list.
//!
//! - `held` and `result` belong to the operation until Pending, to the reaper until Done, and then
//!   to the operation again.
//! - `target` belongs to the operation before Pending and in Registering, and to the reaper in
//!   Completing. In Posted it does not change, and goes with `result` to the thread that takes the
//!   slot out of [`Finished`](super::finished::Finished). In Running it belongs to the submitter
//!   until the device has accepted the job, and then to the reaper of its completion. No other code
//!   reads it, so a run that sleeps is woken through a list of its own (`Shared::runs`).
//! - Each completion is taken once: a stale Token has another generation or phase, and changes
//!   nothing.
//!
//! Orderings: every change of owner is a Release store or exchange, paired with the Acquire of the
//! next owner. Debug builds assert at each access that the caller owns the cell.
#![expect(unsafe_code, reason = "the phase says who owns the cells")]

use std::task::Waker;

use arrayvec::ArrayVec;

use super::job_leases::JobLeases;
use super::phases::{
    COMPLETES, COMPLETING, COMPLETING_ORPHAN, DONE, EMPTY, FREE, IN_FLIGHT, ORPHAN, OVER, PENDING,
    PHASE, POSTED, Phases, REGISTERING, REGISTERS, RUNNING, SUBMITTING, TAKES_WAKER, WAITING,
    in_flight,
};
use super::target::{
    Completed, Leftovers, Notify, Outcome, OwnRest, Rest, ResultKind, Target, drop_target, leave,
};
use crate::reactor::gate::Deferred;
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

#[repr(align(128))]
pub(in crate::reactor) struct Slot {
    state: AtomicU64,
    held: UnsafeCell<Option<JobLeases>>,
    target: UnsafeCell<Option<Target>>,
    result: UnsafeCell<Outcome>,
}

// SAFETY: the phase says which party may access the cells, one at a time; their contents are Send.
unsafe impl Send for Slot {}
// SAFETY: as for Send: one party at a time accesses the cells.
unsafe impl Sync for Slot {}

fn generation(state: u64) -> u32 {
    (state >> 32) as u32
}

/// Writes a cell. Returns the old content, so that the caller drops it outside of this access.
///
/// # Safety
///
/// The caller owns the cell, as the phase says.
unsafe fn replace<T>(cell: &UnsafeCell<T>, value: T) -> T {
    cell.with_mut(|cell| {
        // SAFETY: the caller owns the cell.
        unsafe { std::ptr::replace(cell, value) }
    })
}

/// Writes a cell that holds `None`, so that there is nothing to return.
///
/// # Safety
///
/// The caller owns the cell, as the phase says. Other content than `None` would be leaked.
unsafe fn put<T>(cell: &UnsafeCell<Option<T>>, value: Option<T>) {
    cell.with_mut(|cell| {
        // SAFETY: as the caller promises.
        unsafe { std::ptr::write(cell, value) }
    });
}

impl Slot {
    pub(in crate::reactor) fn new() -> Slot {
        Slot {
            state: AtomicU64::new(FREE),
            held: UnsafeCell::new(None),
            target: UnsafeCell::new(None),
            result: UnsafeCell::new(Ok(0)),
        }
    }

    /// In debug builds, asserts that the phase is one in which the caller owns a cell.
    #[inline(always)]
    #[track_caller]
    fn owned_in(&self, phases: Phases) {
        if cfg!(debug_assertions) {
            let now = self.phase();
            assert!(
                now.is_in(phases),
                "a cell of a Slot in {now:?} is reached, not in {phases:?}"
            );
        }
    }

    /// Stores a job's Leases and target in a slot that was taken from the free list, and changes
    /// its phase from Free to Pending, Posted or Running. Returns the slot's generation.
    ///
    /// # Safety
    ///
    /// The caller took the slot from the free list, and has not filled, settled or freed it.
    #[inline(always)]
    pub(in crate::reactor) unsafe fn fill(&self, held: JobLeases, target: Option<Target>) -> u32 {
        let state = self.state.load(Ordering::Relaxed);
        self.owned_in(EMPTY);
        // SAFETY: Free and out of the free list: the cells are the caller's, and empty.
        unsafe { put(&self.held, Some(held)) };
        let phase = match &target {
            Some(Target::Caller(..)) => POSTED,
            Some(Target::Run(..)) => RUNNING,
            Some(Target::Waker(_)) | None => PENDING,
        };
        if target.is_some() {
            // SAFETY: Free and out of the free list: the cell is the caller's, and empty.
            unsafe { put(&self.target, target) };
        }
        self.state.store(state | phase, Ordering::Release);
        generation(state)
    }

    /// Makes a slot that was taken from the free list Done: the device has finished the job inline.
    ///
    /// # Safety
    ///
    /// As for `fill`.
    pub(in crate::reactor) unsafe fn settle(
        &self,
        user_data: u64,
        meaning: ResultKind,
        outcome: Outcome,
    ) {
        let state = self.state.load(Ordering::Relaxed);
        self.owned_in(EMPTY);
        // SAFETY: Free and out of the free list: the cells are the caller's.
        let _ = unsafe { replace(&self.result, outcome) };
        // SAFETY: Free and out of the free list: the cell is the caller's, and empty.
        unsafe { put(&self.target, Some(Target::Caller(user_data, meaning))) };
        self.state.store(state | DONE, Ordering::Release);
    }

    /// Takes the `user_data`, the meaning of the result and the outcome of a completed job of the
    /// caller's own loop. The slot is Free then, but not yet in the free list.
    ///
    /// # Safety
    ///
    /// The caller took the slot's number out of `Finished`, and calls this once for it.
    pub(super) unsafe fn take_posted(&self) -> Option<(u64, ResultKind, Outcome)> {
        if self.state.load(Ordering::Acquire) & PHASE != DONE {
            return None;
        }
        self.owned_in(OVER);
        // SAFETY: Done, and the caller took its only number out of `Finished`: it has the cells.
        let result = unsafe { replace(&self.result, Ok(0)) };
        // SAFETY: Done, and the caller has the slot's only number, and so its cells.
        let target = unsafe { replace(&self.target, None) };
        self.free();
        match target {
            Some(Target::Caller(user_data, meaning)) => Some((user_data, meaning, result)),
            _ => None,
        }
    }

    /// Takes back a refused job, and returns its Leases. The caller then lists the slot as free.
    ///
    /// # Safety
    ///
    /// The caller has just filled the slot; no device has its job, and no other code its Token.
    pub(in crate::reactor) unsafe fn undo(&self) -> JobLeases {
        self.owned_in(SUBMITTING);
        // SAFETY: no device has accepted the job, so that no completion can come; no operation has
        // stored a waker, and no other code reads a `target`: the caller owns the cells.
        let held = unsafe { replace(&self.held, None) };
        // SAFETY: no device has the job and no other code its Token: the caller owns the cell.
        let target = unsafe { replace(&self.target, None) };
        drop_target(target);
        self.free();
        held.expect("filled before")
    }

    fn free(&self) {
        self.free_after(generation(self.state.load(Ordering::Relaxed)));
    }

    /// Makes the slot Free, and ends the use of this generation.
    #[inline(always)]
    pub(super) fn free_after(&self, generation: u32) {
        let next = u64::from(generation.wrapping_add(1)) << 32 | FREE;
        self.state.store(next, Ordering::Release);
    }

    /// Takes the result of a completed job, for the operation, which then lists the slot as free.
    #[inline(always)]
    pub(in crate::reactor) fn take(&self) -> Option<Outcome> {
        if self.state.load(Ordering::Acquire) & PHASE != DONE {
            return None;
        }
        self.owned_in(OVER);
        // SAFETY: Done: the cells are the operation's.
        let result = unsafe { replace(&self.result, Ok(0)) };
        // SAFETY: Done: the cell is the operation's. (If the operation registered while the reaper
        // completed the job, its waker is still in the cell.)
        let target = unsafe { replace(&self.target, None) };
        drop_target(target);
        self.free();
        Some(result)
    }

    /// Stores the waker for the end of the job. The operation must call `take` again afterwards.
    pub(in crate::reactor) fn register(&self, waker: &Waker) {
        let state = self.state.load(Ordering::Acquire);
        let registering = state & !PHASE | REGISTERING;
        let mine = matches!(state & PHASE, PENDING | WAITING)
            && self
                .state
                .compare_exchange(state, registering, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !mine {
            if self.state.load(Ordering::Acquire) & PHASE != DONE {
                // The reaper took the old waker a moment ago, and may wake that one alone.
                waker.wake_by_ref();
            }
            return;
        }
        self.owned_in(REGISTERS);
        let known = self.target.with(|target| {
            // SAFETY: Registering: the cell is the operation's.
            matches!(unsafe { &*target }, Some(Target::Waker(known)) if known.will_wake(waker))
        });
        let old = match known {
            true => None,
            // SAFETY: while Registering, the cell is the operation's. The clone precedes the write.
            false => unsafe { replace(&self.target, Some(Target::Waker(waker.clone()))) },
        };
        // If this fails, the reaper has made the slot Done meanwhile, and `take` has the result.
        let waiting = state & !PHASE | WAITING;
        // SeqCst: a thread that has set another mode sees the slot asleep, or this operation sees
        // the new mode afterwards (`take_waker`, `Current`).
        let _ =
            self.state
                .compare_exchange(registering, waiting, Ordering::SeqCst, Ordering::Relaxed);
        drop_target(old);
    }

    /// Abandons the job of an operation that is dropped. Returns true if the slot's phase is Free
    /// now and the caller must add the slot to the free list; otherwise the reaper will free it.
    pub(in crate::reactor) fn abandon(&self) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let phase = match state & PHASE {
                // Registering: a waker panicked when it was cloned, or `take_waker` runs.
                PENDING | WAITING | REGISTERING => ORPHAN,
                COMPLETING => COMPLETING_ORPHAN,
                DONE => return self.take().is_some(),
                _ => return false,
            };
            // Release: the reaper will drop the waker that this operation stored.
            match self.state.compare_exchange(
                state,
                state & !PHASE | phase,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return false,
                Err(seen) => state = seen,
            }
        }
    }

    /// Stores the outcome of the job, for the reaper. Returns what the reaper has to do next.
    #[inline(always)]
    pub(in crate::reactor) fn complete(
        &self,
        of: u32,
        outcome: Outcome,
        rest: &mut Leftovers,
    ) -> Completed {
        let mut state = self.state.load(Ordering::Acquire);
        if generation(state) != of || !in_flight(state) {
            return Completed::Stale;
        }
        self.keep(outcome, rest);
        loop {
            let phase = match state & PHASE {
                WAITING => COMPLETING,
                // Either no waker is stored, or the operation is about to check again.
                PENDING | REGISTERING => DONE,
                POSTED => {
                    // Release, for the thread that takes the slot. No operation can change the
                    // state, so a store suffices.
                    self.state.store(state & !PHASE | DONE, Ordering::Release);
                    return Completed::Deliver;
                }
                // As for Posted: only the reaper changes the state.
                RUNNING => return self.end_run(outcome),
                _ => return self.end_orphan(rest),
            };
            match self.state.compare_exchange(
                state,
                state & !PHASE | phase,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) if phase == DONE => return Completed::Nothing,
                Ok(_) => return self.notify_op(state & !PHASE, rest),
                Err(seen) => state = seen,
            }
        }
    }

    /// Takes the target, for the reaper, which opens it later: that may run the application's code.
    ///
    /// # Safety
    ///
    /// The target is the reaper's, as the phase says.
    #[inline(always)]
    unsafe fn take_target(&self) -> Option<Deferred<Target>> {
        // SAFETY: as the caller promises.
        Deferred::new(unsafe { replace(&self.target, None) }).transpose()
    }

    /// Gives the Leases of a job in flight back, and keeps its outcome, for the reaper.
    #[inline(always)]
    fn keep<const N: usize>(&self, outcome: Outcome, rest: &mut ArrayVec<Deferred<Rest>, N>) {
        self.owned_in(IN_FLIGHT);
        // SAFETY: the job was in flight, and its completion comes once: `held` and `result` are the
        // reaper's.
        let held = unsafe { replace(&self.held, None) };
        if let Some(held) = held {
            held.release(&outcome, rest);
        }
        // SAFETY: the completion comes once, so `result` is the reaper's.
        let _ = unsafe { replace(&self.result, outcome) };
    }

    /// Completes the job for its operation, which has stored no waker, and which polls in this
    /// thread inside the gate: this thread owns all cells. Returns false, and does nothing, if the
    /// slot is not Pending in this generation. The operation has the outcome, and may free the slot
    /// without taking the outcome out of it.
    #[inline(always)]
    pub(in crate::reactor) fn end_own(
        &self,
        of: u32,
        outcome: Outcome,
        rest: &mut OwnRest,
    ) -> bool {
        if self.state.load(Ordering::Acquire) != u64::from(of) << 32 | PENDING {
            return false;
        }
        self.keep(outcome, rest);
        // Only the operation and the reaper change the state, and this thread is both.
        self.state
            .store(u64::from(of) << 32 | DONE, Ordering::Release);
        true
    }

    /// Takes the target of a slot in Completing, for the reaper, and makes the slot Done.
    #[inline(always)]
    fn notify_op(&self, generation: u64, rest: &mut Leftovers) -> Completed {
        self.owned_in(COMPLETES);
        // SAFETY: in Completing, the reaper owns the cell.
        let target = unsafe { self.take_target() };
        let [completing, done] = [COMPLETING, DONE].map(|phase| generation | phase);
        if self
            .state
            .compare_exchange(completing, done, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            self.free();
            leave(target, rest);
            return Completed::Free(None);
        }
        match target {
            Some(target) => Completed::Notify(Notify::Op(target)),
            None => Completed::Nothing,
        }
    }

    fn end_run(&self, outcome: Outcome) -> Completed {
        self.owned_in(Phases::any([RUNNING]));
        // SAFETY: Running, and its completion comes once, so only the reaper accesses the slot.
        let target = unsafe { self.take_target() };
        self.free();
        Completed::Free(target.map(|target| Notify::Run(target, outcome)))
    }

    fn end_orphan(&self, rest: &mut Leftovers) -> Completed {
        self.owned_in(Phases::any([ORPHAN]));
        // SAFETY: the slot is an Orphan, so only the reaper accesses it.
        let target = unsafe { self.take_target() };
        self.free();
        leave(target, rest);
        Completed::Free(None)
    }

    /// If the job may be in flight, returns the number of the queue that has it.
    ///
    /// # Safety
    ///
    /// No other code reaches the slot during the call.
    pub(in crate::reactor) unsafe fn in_flight(&self) -> Option<u8> {
        in_flight(self.state.load(Ordering::Acquire)).then(|| {
            self.held.with(|held| {
                // SAFETY: no other code can reach the slot, as the caller made sure.
                unsafe { &*held }.as_ref().map_or(0, |held| held.queue)
            })
        })
    }

    /// Returns the slot's phase, as one bit of [`Phases`].
    pub(in crate::reactor) fn phase(&self) -> Phases {
        Phases::of(self.state.load(Ordering::Acquire))
    }

    /// Takes the waker of an operation that shall poll again, as a mode or a runtime has changed.
    pub(in crate::reactor) fn take_waker(&self) -> Option<Waker> {
        // SeqCst: pairs with `register`.
        let state = self.state.load(Ordering::SeqCst);
        let [waiting, registering, pending] =
            [WAITING, REGISTERING, PENDING].map(|phase| state & !PHASE | phase);
        self.state
            .compare_exchange(waiting, registering, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        self.owned_in(TAKES_WAKER);
        // SAFETY: Registering keeps the operation away (`register` gives up, `abandon` leaves the
        // cells), and the gate keeps other reapers away.
        let target = unsafe { replace(&self.target, None) };
        // If this exchange fails, the operation was dropped meanwhile.
        let _ =
            self.state
                .compare_exchange(registering, pending, Ordering::Release, Ordering::Relaxed);
        match target {
            Some(Target::Waker(waker)) => Some(waker),
            _ => None,
        }
    }
}

#[cfg(test)]
mod alone {
    use super::super::job_leases::JobLeases;
    use super::super::target::Outcome;
    use super::super::target::Target;
    use super::Slot;

    /// Functions for tests that have a slot to themselves.
    impl Slot {
        pub(in crate::reactor) fn fill_alone(
            &self,
            held: JobLeases,
            target: Option<Target>,
        ) -> u32 {
            // SAFETY: the test fills the slot while it is free, and there is no free list.
            unsafe { self.fill(held, target) }
        }

        #[cfg(not(tokio_doca_loom))]
        pub(in crate::reactor) fn settle_alone(&self, user_data: u64, outcome: Outcome) {
            // SAFETY: the test settles the slot while it is free, and there is no free list.
            unsafe { self.settle(user_data, super::super::target::ResultKind::Bytes, outcome) }
        }

        pub(in crate::reactor) fn take_posted_alone(&self) -> Option<(u64, Outcome)> {
            // SAFETY: one thread of the test takes it.
            let taken = unsafe { self.take_posted() };
            taken.map(|(user_data, _, outcome)| (user_data, outcome))
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::error::JobError;
    use crate::mem::Leases;
    use crate::reactor::gate::GateLeft;
    use crate::reactor::slots::Run;
    use std::sync::{Arc, Mutex};

    fn held() -> JobLeases {
        JobLeases::new(Leases::of(None, None), 0, |len| len as usize)
    }

    /// Completes the slot's job, and drops the leftovers.
    fn complete(slot: &Slot, generation: u32, outcome: Outcome) -> Completed {
        let mut rest = Leftovers::new();
        let completed = slot.complete(generation, outcome, &mut rest);
        for rest in rest {
            drop(rest.open(&GateLeft::of_a_test()));
        }
        completed
    }

    #[derive(Default)]
    struct Seen(Mutex<Vec<(u32, Outcome)>>);

    impl Run for Seen {
        fn completed(&self, node: u32, outcome: Outcome) {
            self.0.lock().expect("no panic").push((node, outcome));
        }
    }

    #[test]
    fn taking_wakers_leaves_the_slot_of_a_run_alone() {
        let (slot, seen) = (Slot::new(), Arc::new(Seen::default()));
        let generation = slot.fill_alone(held(), Some(Target::Run(seen.clone(), 7)));
        assert!(slot.phase().any_asleep() && slot.phase().any_in_flight());
        assert!(slot.take_waker().is_none());
        assert!(matches!(
            complete(&slot, generation, Ok(3)),
            Completed::Free(Some(Notify::Run(_, Ok(3))))
        ));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic = "a cell of a Slot in"]
    fn a_slot_whose_job_is_over_cannot_be_undone() {
        let slot = Slot::new();
        let generation = slot.fill_alone(held(), None);
        let _ = complete(&slot, generation, Ok(3));
        // SAFETY: there is no device. The phase is wrong, and the assertion fails before a cell is
        // accessed.
        drop(unsafe { slot.undo() });
    }

    #[test]
    fn a_run_is_told_and_its_slot_is_free_without_an_op() {
        let (slot, seen) = (Slot::new(), Arc::new(Seen::default()));
        let generation = slot.fill_alone(held(), Some(Target::Run(seen.clone(), 7)));
        let Completed::Free(Some(Notify::Run(target, Ok(3)))) = complete(&slot, generation, Ok(3))
        else {
            panic!("a run is notified, and its Slot freed");
        };
        let Target::Run(run, 7) = target.open(&GateLeft::of_a_test()) else {
            panic!("it is the run that was named");
        };
        run.completed(7, Ok(3));
        assert_eq!(*seen.0.lock().unwrap(), [(7, Ok(3))]);
        assert_eq!(
            slot.fill_alone(held(), None),
            generation.wrapping_add(1),
            "another use"
        );
    }

    #[test]
    fn a_posted_job_keeps_its_word_and_result_until_it_is_taken() {
        let slot = Slot::new();
        let generation = slot.fill_alone(held(), Some(Target::Caller(u64::MAX, ResultKind::Bytes)));
        assert!(slot.take_posted_alone().is_none() && slot.phase().any_in_flight());
        assert!(slot.take_waker().is_none());
        assert!(slot.phase().any_in_flight() && !slot.phase().any_op());
        assert!(matches!(
            complete(&slot, generation, Ok(3)),
            Completed::Deliver
        ));
        assert!(matches!(
            complete(&slot, generation, Ok(4)),
            Completed::Stale
        ));
        assert!(!slot.phase().any_in_flight());
        assert_eq!(slot.take_posted_alone(), Some((u64::MAX, Ok(3))));
        assert_eq!(slot.take_posted_alone(), None, "once");
        slot.settle_alone(7, Ok(8));
        assert!(!slot.phase().any_in_flight());
        assert_eq!(slot.take_posted_alone(), Some((7, Ok(8))));
        assert_eq!(slot.fill_alone(held(), None), generation.wrapping_add(2));
    }

    #[test]
    fn a_completion_is_taken_once_and_a_stale_one_changes_nothing() {
        let slot = Slot::new();
        let generation = slot.fill_alone(held(), None);
        assert!(matches!(
            complete(&slot, generation.wrapping_add(1), Ok(1)),
            Completed::Stale
        ));
        assert!(slot.take().is_none());
        let error = JobError::device(ErrorKind::IoFailed, 1);
        assert!(matches!(
            complete(&slot, generation, Err(error)),
            Completed::Nothing
        ));
        assert!(matches!(
            complete(&slot, generation, Ok(2)),
            Completed::Stale
        ));
        assert_eq!(slot.take(), Some(Err(error)));
        assert!(matches!(
            complete(&slot, generation, Ok(3)),
            Completed::Stale
        ));
    }

    #[test]
    fn an_operation_that_polls_ends_its_own_job_unless_a_waker_is_stored() {
        let (slot, mut rest) = (Slot::new(), OwnRest::new());
        let generation = slot.fill_alone(held(), None);
        assert!(!slot.end_own(generation.wrapping_add(1), Ok(3), &mut rest));
        slot.register(Waker::noop());
        assert!(!slot.end_own(generation, Ok(3), &mut rest), "it waits");
        assert!(slot.take_waker().is_some());
        assert!(slot.end_own(generation, Ok(3), &mut rest));
        assert!(!slot.end_own(generation, Ok(3), &mut rest), "once");
        assert!(matches!(
            complete(&slot, generation, Ok(4)),
            Completed::Stale
        ));
        assert!(rest.is_empty() && !slot.phase().any_in_flight());
        slot.free_after(generation);
        assert!(slot.take().is_none());
        let next = slot.fill_alone(held(), None);
        assert_eq!(next, generation.wrapping_add(1), "free, and once");
        let _ = complete(&slot, next, Ok(5));
        assert!(!slot.end_own(next, Ok(6), &mut rest), "it is Done");
        assert_eq!(slot.take(), Some(Ok(5)));
        let last = slot.fill_alone(held(), None);
        assert!(slot.end_own(last, Ok(7), &mut rest));
        assert!(slot.abandon(), "a drop frees a job that has ended");
    }

    #[test]
    fn an_orphan_is_freed_by_its_completion_and_a_done_one_by_the_drop() {
        let slot = Slot::new();
        let generation = slot.fill_alone(held(), None);
        slot.register(Waker::noop());
        assert!(!slot.abandon());
        assert!(slot.phase().any_in_flight());
        assert!(matches!(
            complete(&slot, generation, Ok(1)),
            Completed::Free(None)
        ));
        let generation = slot.fill_alone(held(), None);
        assert!(matches!(
            complete(&slot, generation, Ok(1)),
            Completed::Nothing
        ));
        assert!(slot.abandon());
    }

    #[test]
    fn taking_the_waker_leaves_the_job_in_flight() {
        let slot = Slot::new();
        let generation = slot.fill_alone(held(), None);
        assert!(slot.take_waker().is_none());
        slot.register(Waker::noop());
        assert!(slot.take_waker().is_some());
        assert!(slot.take_waker().is_none(), "taken");
        assert!(matches!(
            complete(&slot, generation, Ok(1)),
            Completed::Nothing
        ));
    }
}
