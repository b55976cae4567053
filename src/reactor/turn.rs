//! One look at the devices: who finished is told, and who is in line for a Slot.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::target::Told;
use super::workq::Shared;
use crate::device::{Armed, Completion, Token};
use crate::sync::atomic::fence;
use crate::sync::wake;

/// Completions that are reaped at once.
const BATCH: usize = 8;
/// Batches in one turn, after which the rest is left to the next.
const BATCHES: usize = 64;

impl Shared {
    /// Woken by an event: looks, arms if anybody waits, and looks once more. (Look-then-arm loses wake-ups.)
    #[inline]
    pub(super) fn event_turn(&self) {
        self.counts.woken();
        let rung = self.take_ring();
        self.queues().for_each(|queue| queue.clear());
        // What was expected may have been cleared just now: after that, or who armed meanwhile would expect it still. Pairs
        // with `poll_event`.
        self.expected.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.turn();
        if self.is_waited_for() && (self.arm() | self.ready()) {
            self.turn();
        }
        self.resume_if_due();
        if rung {
            self.overtake();
        }
    }

    /// Whether somebody waits for the next event.
    ///
    /// Ops that look themselves do not, so that in busy mode nothing but orphans does, and an Op that slept when the mode
    /// was set and has yet to be polled. The caller's own loop arms for itself.
    fn is_waited_for(&self) -> bool {
        let phases = self.core.table.phases();
        let policy = self.mode.load();
        if phases.any_asleep() || self.core.registry.any_asleep() {
            return true;
        }
        if policy.is_busy() {
            return false;
        }
        if self.core.registry.any_watched() {
            return true;
        }
        if !phases.any_in_flight() {
            return false;
        }
        // Whoever is in line sleeps too, and any Job's end may be what it waits for.
        let in_line = || !self.waiters.is_empty() || !self.drained.is_empty();
        (phases.any_op() && policy.is_event()) || in_line()
    }

    /// Asks every queue to ring. True if completions wait already.
    pub(super) fn arm(&self) -> bool {
        self.counts.armed();
        // First: an event that this brings about must not come before it. A queue that was attached before is seen (`attach`).
        self.expected.swap(true, Ordering::AcqRel);
        self.queues()
            .fold(false, |ready, queue| ready | (queue.arm() == Armed::Ready))
    }

    /// Makes the event handle readable if the caller's own loop armed: a Job of its own is over.
    pub(super) fn fire(&self) {
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            self.events.ring();
        }
    }

    /// Whether a look would find something.
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.queues().any(|queue| queue.ready())
    }

    /// Makes all who wait poll again.
    pub(super) fn nudge(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        self.turn();
    }

    /// Looks: reaps what has finished, and tells. If somebody else does so already, that one looks once more.
    pub(super) fn turn(&self) {
        if !self.gate.enter() {
            return;
        }
        let mut from = 0;
        for _ in 0..BATCHES {
            let mut batch = TellBatch::default();
            from = self.reap(&mut batch, from);
            let (reaped, nudged, mut more) = (batch.reaped, batch.nudged, batch.more);
            // Wakers are user code: they run when the gate is open.
            while !self.gate.leave() {
                more = true;
            }
            batch.tell(self);
            if nudged {
                self.waiters.wake_all();
                self.drained.wake_all();
                self.runs.wake_all();
            }
            // After the gate was left: pairs with `Full::stay`.
            if reaped && self.pause.is_on() {
                self.resume(false);
            }
            if reaped || !self.drained.is_empty() {
                self.after_free();
            }
            if !more || !self.gate.enter() {
                return;
            }
        }
        // Enough for one turn. The rest must not be stranded: ring, so that there is another.
        while !self.gate.leave() {}
        self.events.ring();
    }

    /// Reaps one batch, from the queue with this number on: with which the next one begins. The caller is in the gate.
    #[inline(always)]
    fn reap(&self, batch: &mut TellBatch, from: usize) -> usize {
        if self.nudged.load(Ordering::Relaxed) && self.nudged.swap(false, Ordering::SeqCst) {
            batch.nudged = true;
            // Wakers are user code, but the gate is no lock: whoever comes meanwhile is refused and goes on.
            self.core.table.nudge();
            self.core.registry.nudge();
        }
        let nothing = Completion::new(Token::from_raw(u64::MAX), Ok(0));
        let mut completions = [nothing; BATCH];
        let mut left = BATCH;
        // Those before have been looked at by the last batch, which one of them filled, and are looked at by the next one.
        batch.more = from > 0;
        for (number, queue) in self.queues().enumerate().skip(from) {
            // What a provider answers is checked: it cannot have filled more than there is.
            let reaped = Shared::reap_from(queue, &mut completions[..left]).min(left);
            for completion in &completions[..reaped] {
                if completion.result.is_err() {
                    self.counts.failed();
                }
                match completion.token.table() {
                    0 => batch.told.extend(self.core.table.complete(completion)),
                    _ => self.received(completion, batch),
                }
            }
            self.counts.completed(&completions[..reaped]);
            batch.reaped |= reaped > 0;
            left -= reaped;
            if left == 0 {
                batch.more = true;
                // A queue that fills each batch keeps none from the others.
                let behind = number + 1;
                return if self.queues().nth(behind).is_some() {
                    behind
                } else {
                    0
                };
            }
        }
        0
    }

    fn received(&self, completion: &Completion, batch: &mut TellBatch) {
        let tell = |told| batch.told.push(told);
        if !self.core.registry.complete(completion, tell) {
            tracing::debug!(
                token = completion.token.as_raw(),
                "a completion of a receive or wait that there is not was ignored"
            );
        }
    }

    /// Gives a Slot back that was taken or done, to whoever is in line.
    #[inline]
    pub(super) fn give_back(&self, index: u32) {
        self.core.table.free().put(index);
        self.after_free();
    }

    /// A Slot became free, or the last Job ended.
    #[inline]
    pub(super) fn after_free(&self) {
        self.tell(self, false);
        self.if_drained();
    }

    /// Wakes those that wait for the end of the last Job, if nothing is in flight.
    #[inline]
    pub(super) fn if_drained(&self) {
        if !self.drained.is_empty() && !self.core.table.any_in_flight() {
            self.drained.wake_all();
        }
    }
}

/// Whom to tell, once the gate was left.
#[derive(Default)]
struct TellBatch {
    /// What has a place may tell its Op, or the line; not both.
    told: ArrayVec<Told, BATCH>,
    /// Something was over: a Slot is free, or the device has room.
    reaped: bool,
    nudged: bool,
    /// The array of completions was full: there may be more.
    more: bool,
}

impl TellBatch {
    fn tell(&mut self, shared: &Shared) {
        // Drained where they lie: moving them would cost more than telling.
        for told in self.told.drain(..) {
            match told {
                Told::Waker(waker) => wake(waker),
                Told::Run(run, node, outcome) => run.completed(node, outcome),
                Told::Caller => shared.fire(),
                Told::Line(places) => shared.tell(&*places, false),
            }
        }
    }
}
