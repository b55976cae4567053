//! A turn of a WorkQ: polls the devices, and notifies the operations whose jobs have completed and
//! the waiters in line for a slot.
//!
//! A [`Turn`] reaps inside the gate. All that may run code of the application is done outside of
//! the gate.

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::notify::{BROKEN, notify};
use super::shared::Shared;
use crate::device::Completion;
use crate::reactor::gate::{Deferred, GateLeft, Inside};
use crate::reactor::slots::{BATCH, Leftovers, Notify};
use crate::reactor::tables::Changed;
use crate::sync::{discard, lock, wake};

/// The maximum number of batches in one turn. The remaining completions are left to the next turn.
const BATCHES: usize = 16;

impl Shared {
    /// Returns true if a poll of the devices would find something.
    #[inline]
    pub(in crate::reactor) fn ready(&self) -> bool {
        self.queues().any(|queue| queue.ready())
    }

    /// Takes a turn if a thread has set a bit of `requests` for the next turn. The caller holds no
    /// locks.
    #[inline]
    pub(in crate::reactor) fn turn_if_asked(&self) {
        if self.requests.load(Ordering::SeqCst) != 0 {
            self.turn();
        }
    }

    /// Calls `changed`, which notifies a watcher of the state of an Rdma or a future that waits for
    /// its messages. If another thread holds the gate, that thread calls it. A provider may call
    /// this function within a poll, where code of the application, such as a watcher's waker, must
    /// not run.
    pub(in crate::reactor) fn changed(&self, changed: Changed) {
        lock(&self.changes).push(changed);
        self.requests.fetch_or(CHANGE, Ordering::SeqCst);
        // The devices are not polled here: the provider may hold a lock that its queue waits for.
        if let Some(inside) = self.gate.enter() {
            Turn::new(self, inside).notify_watchers();
        }
    }

    /// Calls the functions in `changes`, one by one, so that the list keeps its memory.
    #[cold]
    fn notify_of_changes(&self) {
        let next = || lock(&self.changes).pop();
        while let Some(changed) = next() {
            changed();
            discard(changed);
        }
    }

    /// Arms the devices if a watcher waits for a change of the state of an Rdma.
    pub(in crate::reactor) fn arm_for_changes(self: &Arc<Self>) {
        // Without a runtime no watcher waits. A watcher with a runtime registers it, and arms.
        if self.core.registry.any_watched()
            && !self.mode.load().is_busy()
            && self.events.try_register(self)
            && self.arm()
        {
            self.turn();
        }
    }

    /// Takes a turn: polls the devices, collects completions and notifies their operations. If
    /// another thread takes a turn already, that thread polls once more.
    pub(in crate::reactor) fn turn(&self) {
        if let Some(inside) = self.gate.enter() {
            self.turn_inside(inside, 0);
        }
    }

    /// Takes a turn for a thread that is in the gate. `reaped` is the number of completions that it
    /// has reaped from one queue already.
    #[inline(never)]
    pub(super) fn turn_inside(&self, inside: Inside<'_>, reaped: usize) {
        let mut turn = Turn::new(self, inside);
        let from = match reaped {
            0 => turn.reap(0),
            _ => turn.begin(reaped),
        };
        turn.reap_more(from);
        // All that the turn held was notified and dropped.
        forget(turn);
    }

    /// Frees a slot that was taken or whose job has completed, and notifies the next waiter in
    /// line.
    #[inline]
    pub(in crate::reactor) fn give_back(&self, index: u32) {
        self.core.table.free().put(index);
        self.after_free();
    }

    /// Notifies the waiters in line and the shutdown, after a slot became free or the last job
    /// completed.
    #[inline]
    pub(in crate::reactor) fn after_free(&self) {
        self.notify_line(self, false);
        self.if_drained();
    }

    /// Wakes the futures of `WorkQ::shutdown` if nothing is in flight.
    #[inline]
    pub(in crate::reactor) fn if_drained(&self) {
        if !self.drained.is_empty() && !self.core.table.any_in_flight() {
            self.drained.wake_all();
        }
    }
}

/// A guard for the time in which a queue is polled, an event is handled, or the queues are armed.
/// If a provider panics meanwhile, the drop signals the event handle, so that another thread, or
/// the next turn of this thread, handles the event. Futures that sleep rely on this.
pub(super) struct SignalOnDrop<'a>(pub(super) &'a Shared);

impl Drop for SignalOnDrop<'_> {
    fn drop(&mut self) {
        self.0.events.raise();
    }
}

/// A bit of `Shared::requests`: all waiters shall poll again.
pub(super) const WAKE_ALL: u8 = 1;
/// A bit of `Shared::requests`: the state of an Rdma has changed.
const CHANGE: u8 = 2;

/// A turn in progress: the right to reap, and the work that a batch of completions leaves for
/// outside of the gate, where code of the application may run.
struct Turn<'a> {
    shared: &'a Shared,
    inside: Option<Inside<'a>>,
    /// What to notify for this batch. A completion notifies either its operation or the line, so
    /// that `BATCH` elements suffice.
    to_notify: ArrayVec<Notify, BATCH>,
    rest: Leftovers,
    /// The wakers of the operations that sleep, if all are woken. Their slots can be reached only
    /// inside the gate.
    sleepers: Option<Vec<Deferred<Waker>>>,
    requests: u8,
    /// A completion was collected: a slot is free, or the device has capacity.
    reaped: bool,
    /// The array of completions was full: there may be more.
    more: bool,
}

impl<'a> Turn<'a> {
    #[inline(always)]
    fn new(shared: &'a Shared, inside: Inside<'a>) -> Turn<'a> {
        Turn {
            shared,
            inside: Some(inside),
            to_notify: ArrayVec::new(),
            rest: Leftovers::new(),
            sleepers: None,
            requests: 0,
            reaped: false,
            more: false,
        }
    }

    /// Takes the `requests` to this turn, and if all waiters shall be woken, the wakers of the
    /// operations that sleep.
    #[inline(always)]
    fn take_asked(&mut self) {
        let shared = self.shared;
        self.requests = match shared.requests.load(Ordering::Relaxed) {
            0 => 0,
            _ => shared.requests.swap(0, Ordering::SeqCst),
        };
        if self.requests & WAKE_ALL != 0 {
            self.sleepers = Some(shared.core.table.sleepers());
        }
    }

    /// Handles the `requests`, and reaps nothing. A thread that was refused at the gate meanwhile
    /// relies on this one to poll: then this signals the event handle, so that another turn polls.
    fn notify_watchers(mut self) {
        self.take_asked();
        let Some(inside) = self.inside.take() else {
            return;
        };
        let outside = inside.leave().unwrap_or_else(|inside| {
            let outside = inside.leave_now();
            self.shared.events.raise();
            outside
        });
        self.notify(&outside);
    }

    /// Notifies the operations of the batch that was reaped, and reaps further batches, at most
    /// `BATCHES` in all. `from` is the number of the queue to begin with.
    #[inline(always)]
    fn reap_more(&mut self, mut from: usize) {
        for _ in 1..BATCHES {
            if !self.leave_and_notify() {
                return;
            }
            self.inside = self.shared.gate.enter();
            if self.inside.is_none() {
                return;
            }
            from = self.reap(from);
        }
        if self.leave_and_notify() {
            // Another turn is signalled for, which collects the remaining completions.
            self.shared.events.raise();
        }
    }

    /// Handles a batch that was reaped from one queue. Returns the index of the queue at which to
    /// continue.
    #[inline(always)]
    fn begin(&mut self, reaped: usize) -> usize {
        self.take_asked();
        self.collect(0, reaped);
        // There may be more if there are other queues: these were not polled yet.
        self.more = reaped >= BATCH || self.shared.queues().nth(1).is_some();
        0
    }

    /// Reaps one batch, beginning with the queue with the number `from`. Returns the number of the
    /// queue to continue with.
    #[inline(always)]
    fn reap(&mut self, from: usize) -> usize {
        self.take_asked();
        let shared = self.shared;
        let mut taken = 0;
        self.reaped = false;
        // The queues before `from` were polled for the last batch, which the last of them filled;
        // the next batch polls them again.
        self.more = from > 0;
        for (number, queue) in shared.queues().enumerate().skip(from) {
            let Some(inside) = &mut self.inside else {
                break;
            };
            let reaped = Shared::reap_from(queue, &mut inside.completions()[taken..], 1);
            self.collect(taken, reaped);
            taken += reaped;
            if taken == BATCH {
                self.more = true;
                // The next batch begins with the next queue, so that a queue that fills each batch
                // does not hold up the others.
                let behind = number + 1;
                return if shared.queues().nth(behind).is_some() {
                    behind
                } else {
                    0
                };
            }
        }
        0
    }

    /// Completes the jobs, receives and waits that were reaped, and collects the work that this
    /// leaves for outside of the gate.
    #[inline(always)]
    fn collect(&mut self, from: usize, reaped: usize) {
        let Turn {
            shared,
            inside: Some(inside),
            to_notify,
            rest,
            requests,
            ..
        } = self
        else {
            return;
        };
        let completions = &inside.completions()[from..from + reaped];
        let mut reaped_now = completions;
        while let Some(completion) = reaped_now.first() {
            let table = completion.token.table();
            if table == 0 {
                reaped_now = &reaped_now[1..];
                let whom = shared.complete_job(completion, rest, requests);
                to_notify.extend(whom);
                continue;
            }
            // Successive completions of one table are handled together.
            let of_it = |other: &&Completion| other.token.table() == table;
            let count = reaped_now.iter().take_while(of_it).count();
            let (run, behind) = reaped_now.split_at(count);
            reaped_now = behind;
            shared.counts.ended(run);
            shared.core.registry.complete(run, rest, to_notify);
        }
        shared.counts.completed(completions);
        self.reaped |= reaped > 0;
    }

    /// Leaves the gate, and then does what had to wait until then: wakes tasks and handles
    /// requests. Returns true if there may be more to reap.
    #[inline(always)]
    fn leave_and_notify(&mut self) -> bool {
        let Some(mut inside) = self.inside.take() else {
            return false;
        };
        let outside = loop {
            match inside.leave() {
                Ok(outside) => break outside,
                Err(again) => (inside, self.more) = (again, true),
            }
        };
        self.notify(&outside);
        self.more
    }

    /// Does the work that was collected. Another thread may be in the gate by now.
    #[inline(always)]
    fn notify(&mut self, outside: &GateLeft) {
        let shared = self.shared;
        if !self.rest.is_empty() {
            let drops = self.rest.drain(..);
            drops.for_each(|rest| discard(rest.open(outside)));
        }
        if !self.to_notify.is_empty() {
            // Drained in place: moving them would cost more than notifying.
            for whom in self.to_notify.drain(..) {
                notify(shared, whom, outside);
            }
        }
        // The pause is checked after the gate was left: pairs with `Full::stay`.
        if self.reaped && shared.pause.is_on() {
            shared.resume(false);
        }
        if self.reaped || !shared.drained.is_empty() {
            shared.after_free();
        }
        // Requests are handled last: they may write to the log, whose subscriber must delay no
        // waiter.
        if self.requests != 0 {
            self.do_asked(outside);
        }
    }

    #[cold]
    fn do_asked(&mut self, outside: &GateLeft) {
        let shared = self.shared;
        if self.requests & WAKE_ALL != 0 {
            let sleepers = self.sleepers.take().into_iter().flatten();
            sleepers.for_each(|sleeper| wake(sleeper.open(outside)));
            shared.waiters.wake_all();
            shared.stream_slots.line.wake_all();
            shared.drained.wake_all();
            shared.runs.wake_all();
            shared.timer.line.wake_all();
            // The registry is the last to be woken, since this may write a change of a state to the
            // log.
            shared.core.registry.wake_all();
        }
        if self.requests & CHANGE != 0 {
            shared.notify_of_changes();
        }
        if self.requests & WAKE_ALL != 0 {
            shared.events.log_lost();
        }
        if self.requests & BROKEN != 0 {
            shared.log_broken();
        }
        self.requests = 0;
    }

    /// Leaves the gate, without polling once more for a thread that was refused, and signals for
    /// another turn.
    #[cold]
    fn give_up(&mut self) {
        if let Some(inside) = self.inside.take() {
            let outside = inside.leave_now();
            self.notify(&outside);
            self.shared.events.raise();
        }
    }
}

impl Drop for Turn<'_> {
    /// Ends a turn in which a provider, or a subscriber to its log, has panicked. The operations
    /// whose completions were reaped by then are notified, and another thread polls for the rest.
    #[inline]
    fn drop(&mut self) {
        if self.inside.is_some() {
            self.give_up();
        }
    }
}
