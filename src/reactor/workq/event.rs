//! What an event of the WorkQ leads to, and how the next one is requested.

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

    /// Adds a descriptor to the event handle. The runtimes are registered anew, with a handle that
    /// spans the descriptor too, and an event may be swallowed meanwhile. So this signals an event,
    /// whose turn arms for the futures that sleep.
    fn nest(&self, fd: BorrowedFd<'_>) -> Result<()> {
        if !self.events.nest(fd)? {
            // A future that slept on a runtime that is no longer registered registers anew.
            self.requests.fetch_or(WAKE_ALL, Ordering::SeqCst);
        }
        self.expected.swap(false, Ordering::AcqRel);
        self.events.ring();
        Ok(())
    }

    /// Handles an event: polls, and arms if a future waits. Arming polls once more; polling and
    /// then only arming would lose wake-ups.
    #[inline]
    fn event_turn(&self) {
        self.counts.woken();
        let unheard = SignalOnDrop(self);
        // A signal that this very turn sends is left to the next one: the futures that this turn
        // notifies are polled first.
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
        // First: the pause must see as due an alarm that is taken out as due.
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
    /// Operations that poll by themselves do not wait for it. So in busy mode only orphans do, and
    /// an operation that slept when the mode was set and has yet to be polled. The caller's own
    /// loop arms for itself.
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
        // Counted as a shutdown counts: a slot that is taken may be filled.
        if !self.drained.is_empty() && table.any_in_flight() {
            return true;
        }
        // A waiter in line sleeps too, and the end of any job may be what it waits for.
        let lines = [&self.waiters, &self.stream_slots.line, &self.drained];
        lines.iter().any(|line| !line.is_empty()) && table.any(Phases::any_in_flight)
    }

    /// Arms, so that the next event reports the ends of jobs that no operation waits for. `heard`
    /// says that this runtime receives events: then an event that is expected already is enough.
    /// Earlier events are cleared first, since no future may have waited for them.
    pub(in crate::reactor) fn arm_for_orphans(&self, heard: bool) {
        // As in `poll_event`.
        fence(Ordering::SeqCst);
        if heard && self.expected.load(Ordering::Relaxed) {
            return;
        }
        self.queues().for_each(|queue| queue.clear());
        if self.arm() {
            self.turn();
        }
    }

    /// Asks every queue to signal its next completion. Returns true if completions wait already. If
    /// it returns false the caller need not poll again: the next completion signals.
    pub(in crate::reactor) fn arm(&self) -> bool {
        self.counts.armed();
        // Other threads rely on an event once one is expected, even if a provider panics before it
        // is armed.
        let unheard = SignalOnDrop(self);
        // First: an event that this causes must not come before it. A queue that was attached
        // before is seen (`attach`).
        self.expected.swap(true, Ordering::AcqRel);
        let queues = self.queues();
        let ready = queues.fold(false, |ready, queue| ready | (queue.arm() == Armed::Ready));
        forget(unheard);
        ready
    }
}
