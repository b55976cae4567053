//! An event of the WorkQ's: what it leads to, and how the next one is asked for.

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

    /// The runtimes are registered anew, with a handle that spans the descriptor too, and an event
    /// may be swallowed meanwhile: one is rung for, whose turn arms for those that sleep.
    fn nest(&self, fd: BorrowedFd<'_>) -> Result<()> {
        if !self.events.nest(fd)? {
            // Those that slept on a runtime that does not hear any more register anew.
            self.requests.fetch_or(WAKE_ALL, Ordering::SeqCst);
        }
        self.expected.swap(false, Ordering::AcqRel);
        self.events.ring();
        Ok(())
    }

    /// Woken by an event: looks, and arms if anybody waits, which looks once more. (Look-then-arm
    /// loses wake-ups.)
    #[inline]
    fn event_turn(&self) {
        self.counts.woken();
        let unheard = SignalOnDrop(self);
        // A ring that comes of this very turn is for the next one: those that this one notifies are
        // polled first.
        let signalled = self.is_signalled();
        self.queues().for_each(|queue| queue.clear());
        // What was expected may have been cleared just now: after that, or who armed meanwhile
        // would expect it still. Pairs with `poll_event`.
        self.expected.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.turn();
        if self.is_waited_for() && self.arm() {
            self.turn();
        }
        // First: an alarm that is taken out as due must be seen as due by the pause.
        self.timer.on_time(self);
        self.resume_if_due();
        if signalled {
            self.answer_ring();
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
    /// Returns true if somebody waits for the next event.
    ///
    /// Ops that look themselves do not, so that in busy mode nothing but orphans does, and an Op
    /// that slept when the mode was set and has yet to be polled. The caller's own loop arms for
    /// itself.
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
        // As a shutdown counts: a Slot that is taken may be filled.
        if !self.drained.is_empty() && table.any_in_flight() {
            return true;
        }
        // The party that is in line sleeps too, and any Job's end may be what it waits for.
        let lines = [&self.waiters, &self.stream_slots.line, &self.drained];
        lines.iter().any(|line| !line.is_empty()) && table.any(Phases::any_in_flight)
    }

    /// Has the next event tell of the ends of jobs that no operation waits for. `heard` says that
    /// this runtime hears of events: an event that is expected already is enough then. Events of
    /// before are read, since nobody may have waited for them.
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

    /// Asks every queue to ring. True if completions wait already. Nobody looks again: what comes
    /// later rings.
    pub(in crate::reactor) fn arm(&self) -> bool {
        self.counts.armed();
        // Others rely on an event once one is expected, also if a provider panics before it is
        // armed.
        let unheard = SignalOnDrop(self);
        // First: an event that this brings about must not come before it. A queue that was attached
        // before is seen (`attach`).
        self.expected.swap(true, Ordering::AcqRel);
        let queues = self.queues();
        let ready = queues.fold(false, |ready, queue| ready | (queue.arm() == Armed::Ready));
        forget(unheard);
        ready
    }
}
