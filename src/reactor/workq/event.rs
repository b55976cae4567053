//! Handles an event of a WorkQ, and requests (arms) the next one.

use std::mem::forget;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use super::shared::Shared;
use super::turn::{SignalOnDrop, WAKE_ALL};
use crate::device::Armed;
use crate::error::Result;
use crate::reactor::events::{Driven, Events};
use crate::reactor::slots::Phases;
use crate::sync::atomic::fence;

impl Driven for Shared {
    fn events(&self) -> &Events {
        &self.events
    }

    /// Adds a descriptor to the event handle. The runtimes are registered again, with a handle that
    /// includes the descriptor, and an event may be lost meanwhile. So this signals an event, whose
    /// turn arms for the futures that sleep.
    fn nest(&self, fd: BorrowedFd<'_>) -> Result<()> {
        if !self.events.nest(fd)? {
            // A runtime is no longer registered. A future that sleeps there is woken, and registers
            // the runtime again.
            self.requests.fetch_or(WAKE_ALL, Ordering::SeqCst);
        }
        self.expected.swap(false, Ordering::AcqRel);
        self.events.raise();
        Ok(())
    }

    /// Handles an event: polls, and arms if a future waits. Arming polls once more: without that
    /// poll, wake-ups would be lost.
    #[inline]
    fn event_turn(&self) {
        self.counts.woken();
        let unheard = SignalOnDrop(self);
        // Read before the turn: a signal that this turn sends is left to the next turn, so that the
        // futures that this turn notifies are polled first.
        let signalled = self.is_signalled();
        self.queues().for_each(|queue| queue.clear());
        // The event that was expected may have been cleared just now. This must come after
        // clearing: otherwise a thread that armed meanwhile would still expect that event. Pairs
        // with `poll_event`.
        self.expected.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.turn();
        if self.is_waited_for() && self.arm() {
            self.turn();
        }
        // `on_time` comes before `resume_if_due`: an alarm that the timer has handled as due must
        // be due for the pause too.
        self.timer.on_time(self);
        self.resume_if_due();
        if signalled {
            self.answer_signal();
        }
        forget(unheard);
    }

    fn wake_all(&self) {
        self.requests.fetch_or(WAKE_ALL, Ordering::SeqCst);
        self.turn();
    }

    #[inline]
    fn fire(&self) {
        self.own_loop.fire(&self.events);
    }
}

impl Shared {
    /// Returns true if a future waits for the next event.
    ///
    /// Operations that poll by themselves do not wait for an event. So in busy mode only three
    /// kinds of jobs need an event: orphans, jobs that notify a `Run`, and those whose operation
    /// slept when the mode was set and has yet to be polled. The caller's own loop arms for itself.
    fn is_waited_for(&self) -> bool {
        let policy = self.mode.load();
        let table = &self.core.table;
        let waits = |phase: Phases| match policy.is_event() {
            true => phase.any_op(),
            false => phase.any_asleep(),
        };
        if self.core.registry.any_asleep() || table.any(waits) {
            return true;
        }
        if policy.is_busy() {
            return false;
        }
        if self.core.registry.any_watched() {
            return true;
        }
        // A shutdown waits while `any_in_flight`, which includes slots that are taken and not yet
        // filled.
        if !self.drained.is_empty() && table.any_in_flight() {
            return true;
        }
        // A waiter in line sleeps too, and may wait for the completion of any job.
        let lines = [&self.waiters, &self.stream_slots.line, &self.drained];
        lines.iter().any(|line| !line.is_empty()) && table.any(Phases::any_in_flight)
    }

    /// Arms for jobs that no operation waits for, so that the next event reports their completions.
    /// If this runtime receives events (`heard`), an event that is expected already is enough.
    /// Otherwise clears earlier events first, since perhaps no future has waited for them.
    pub(in crate::reactor) fn arm_for_orphans(&self, heard: bool) {
        // Pairs with `event_turn`, as the fence in `poll_event` does.
        fence(Ordering::SeqCst);
        if heard && self.expected.load(Ordering::Relaxed) {
            return;
        }
        self.queues().for_each(|queue| queue.clear());
        if self.arm() {
            self.turn();
        }
    }

    /// Asks every queue to signal its next completion. Returns true if completions wait already. On
    /// false the caller need not poll again: the next completion signals.
    pub(in crate::reactor) fn arm(&self) -> bool {
        self.counts.armed();
        // Once an event is expected, other threads rely on it, even if a provider panics before its
        // queue is armed. The guard signals then.
        let unheard = SignalOnDrop(self);
        // `expected` is set first, since the event may come as soon as a queue is armed. Acquire:
        // this thread sees the queues that were attached before (`attach`).
        self.expected.swap(true, Ordering::AcqRel);
        let queues = self.queues();
        let ready = queues.fold(false, |ready, queue| ready | (queue.arm() == Armed::Ready));
        forget(unheard);
        ready
    }
}
