//! The turn: it polls the devices, and notifies the operations whose jobs have completed and the
//! waiters in line for a slot.
//!
//! A [`Turn`] reaps inside the gate. Outside of the gate it does all that may run code of the
//! application.

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::notify::{BROKEN, notify};
use super::shared::Shared;
use crate::device::{Completion, Queue};
use crate::reactor::gate::{Deferred, GateLeft, Inside};
use crate::reactor::slots::{BATCH, Leftovers, Notify};
use crate::reactor::tables::Changed;
use crate::sync::{discard, lock, wake};

/// The maximum number of batches in one turn, which leaves the rest to the next turn.
const BATCHES: usize = 16;

impl Shared {
    /// Returns true if a poll would find something.
    #[inline]
    pub(in crate::reactor) fn ready(&self) -> bool {
        self.queues().any(|queue| queue.ready())
    }

    /// Takes a turn if a thread has requested something of the next one. The caller has no locks.
    #[inline]
    pub(in crate::reactor) fn turn_if_asked(&self) {
        if self.requests.load(Ordering::SeqCst) != 0 {
            self.turn();
        }
    }

    /// Notifies a watcher of the state of an Rdma or a future that waits for its messages. If
    /// another thread holds the gate, that thread does it. A provider may call this within a poll,
    /// and a watcher's waker is code of the application.
    pub(in crate::reactor) fn changed(&self, changed: Changed) {
        lock(&self.changes).push(changed);
        self.requests.fetch_or(CHANGE, Ordering::SeqCst);
        // Without a poll: the provider may hold a lock that its queue waits for.
        if let Some(inside) = self.gate.enter() {
            Turn::new(self, inside).notify_watchers();
        }
    }

    /// Notifies of changes, one by one, so that the list keeps its memory.
    #[cold]
    fn notify_of_changes(&self) {
        let next = || lock(&self.changes).pop();
        while let Some(changed) = next() {
            changed();
            discard(changed);
        }
    }

    /// Arms the devices if a watcher is to be notified of a change of state.
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

    /// Takes a turn: polls, reaps completions and notifies of them. If another thread is doing so
    /// already, that thread polls once more.
    pub(in crate::reactor) fn turn(&self) {
        if let Some(inside) = self.gate.enter() {
            self.turn_inside(inside, 0);
        }
    }

    /// Takes a turn of a thread that is in the gate and may have reaped a batch of one queue.
    #[inline(never)]
    fn turn_inside(&self, inside: Inside<'_>, reaped: usize) {
        let mut turn = Turn::new(self, inside);
        let from = match reaped {
            0 => turn.reap(0),
            _ => turn.begin(reaped),
        };
        turn.go_on(from);
        // All that the turn held was notified and dropped.
        forget(turn);
    }

    /// Polls one queue, up to `looks` times, and takes a turn if that finds something. Returns true
    /// if it did. If another thread is in the gate, a queue that polls in `reap` is left to later
    /// polls of the caller. Another queue has found something, and may keep it, so that the other
    /// thread is asked to reap.
    #[inline(always)]
    pub(in crate::reactor) fn poll_queue(&self, queue: &Arc<dyn Queue>, looks: usize) -> bool {
        let polls_in_reap = queue.polls_in_reap();
        if !polls_in_reap && !queue.ready_within(looks) {
            return false;
        }
        let unheard = SignalOnDrop(self);
        let reaped = self.gate.try_enter().map(|mut inside| {
            let reaped = Shared::reap_from(queue, inside.completions(), looks);
            (inside, reaped)
        });
        forget(unheard);
        let Some((inside, reaped)) = reaped else {
            if !polls_in_reap {
                self.turn();
            }
            return false;
        };
        let left = match reaped {
            0 => inside.leave(),
            _ => Err(inside),
        };
        if let Err(inside) = left {
            self.turn_inside(inside, reaped);
        }
        reaped > 0
    }

    /// Frees a slot that was taken or whose job has completed, and notifies the next waiter in
    /// line.
    #[inline]
    pub(in crate::reactor) fn give_back(&self, index: u32) {
        self.core.table.free().put(index);
        self.after_free();
    }

    /// Notifies the waiters after a slot became free or the last job ended.
    #[inline]
    pub(in crate::reactor) fn after_free(&self) {
        self.notify_line(self, false);
        self.if_drained();
    }

    /// Wakes the futures that wait for the end of the last job, if nothing is in flight.
    #[inline]
    pub(in crate::reactor) fn if_drained(&self) {
        if !self.drained.is_empty() && !self.core.table.any_in_flight() {
            self.drained.wake_all();
        }
    }
}

/// An event that is being handled. If a provider panics meanwhile, the drop signals, so that
/// another thread, or the next turn of this one, handles the event: futures that sleep rely on
/// that.
pub(super) struct SignalOnDrop<'a>(pub(super) &'a Shared);

impl Drop for SignalOnDrop<'_> {
    fn drop(&mut self) {
        self.0.events.ring();
    }
}

/// All waiters shall poll again.
pub(super) const WAKE_ALL: u8 = 1;
/// The state of an Rdma has changed.
const CHANGE: u8 = 2;

/// The right to reap, and the work that a batch of completions leaves to be done outside of the
/// gate: all that may run code of the application.
struct Turn<'a> {
    shared: &'a Shared,
    inside: Option<Inside<'a>>,
    /// What to notify for this batch. A completion notifies its operation or the line, not both, so
    /// that `BATCH` entries suffice.
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

    /// Takes the requests to this turn, and the sleepers, which can be reached only inside the
    /// gate.
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

    /// Does what was requested, and reaps nothing. If another thread relies on a poll of this one,
    /// it signals for a turn.
    fn notify_watchers(mut self) {
        self.take_asked();
        let Some(inside) = self.inside.take() else {
            return;
        };
        let outside = inside.leave().unwrap_or_else(|inside| {
            let outside = inside.leave_now();
            self.shared.events.ring();
            outside
        });
        self.notify(&outside);
    }

    /// Notifies of the batch that was reaped, and reaps more while there may be more, for at most
    /// `BATCHES` batches. `from` is the number of the queue to begin with.
    #[inline(always)]
    fn go_on(&mut self, mut from: usize) {
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
            // The rest must not be stranded: another turn is signalled for.
            self.shared.events.ring();
        }
    }

    /// Enters a batch of one queue. Returns the number of the queue to continue with.
    #[inline(always)]
    fn begin(&mut self, reaped: usize) -> usize {
        self.take_asked();
        self.collect(0, reaped);
        // More if there are other queues: no queue keeps a turn from them.
        self.more = reaped >= BATCH || self.shared.queues().nth(1).is_some();
        0
    }

    /// Reaps one batch, beginning with the queue of number `from`. Returns the number to continue
    /// with.
    #[inline(always)]
    fn reap(&mut self, from: usize) -> usize {
        self.take_asked();
        let shared = self.shared;
        let mut taken = 0;
        self.reaped = false;
        // The queues before `from` were polled for the last batch, which one of them filled; the
        // next batch polls them again.
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
                // A queue that fills each batch does not keep the others waiting.
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

    /// Enters the completions that were reaped, and collects the work that they leave for outside
    /// of the gate.
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
            // Receives of one Rdma come together.
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

    /// Leaves the gate, and then does the work that is left. Returns true if there may be more to
    /// reap.
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

    /// Does the work that is left. Another thread may be in the gate by now.
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
        // After the gate was left: pairs with `Full::stay`.
        if self.reaped && shared.pause.is_on() {
            shared.resume(false);
        }
        if self.reaped || !shared.drained.is_empty() {
            shared.after_free();
        }
        // Last: no waiter is delayed by a subscriber to the log.
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
            // Last of these: it may write a change of a state to the log.
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

    /// Leaves the gate although another thread relies on a poll of this one, and signals for
    /// another turn.
    #[cold]
    fn give_up(&mut self) {
        if let Some(inside) = self.inside.take() {
            let outside = inside.leave_now();
            self.notify(&outside);
            self.shared.events.ring();
        }
    }
}

impl Drop for Turn<'_> {
    /// A provider may panic in a poll, or a subscriber to its log may. The operations whose
    /// completions were reaped by then are notified, and another thread polls for the rest.
    #[inline]
    fn drop(&mut self) {
        if self.inside.is_some() {
            self.give_up();
        }
    }
}
