//! Notifies the operation whose job has completed, and the waiters in line for slots or for entries
//! of other tables. If slots or entries are free and waiters are left, signals for another turn.
//! `in_line.rs` says how a waiter waits in line.

use super::shared::Shared;
use crate::device::{Completion, Token};
use crate::error::{JobError, Reason};
use crate::reactor::entry_table::{EntryTable, Wanted};
use crate::reactor::events::Driven;
use crate::reactor::gate::GateLeft;
use crate::reactor::slots::{Leftovers, Notify, Target};
use crate::sync::atomic::Ordering;
use crate::sync::{Waiters, discard, log, wake};

/// The slots of a WorkQ. Operations wait for them in the line `waiters`.
impl Wanted for Shared {
    fn line(&self) -> &Waiters {
        &self.waiters
    }

    fn available(&self) -> usize {
        match self.pause.is_on() {
            true => 0,
            false => self.core.table.free().free(),
        }
    }
}

impl Shared {
    /// Notifies one waiter in line per free slot or entry, less those that were notified before and
    /// have taken nothing. With `overtake`, does not subtract those. If slots or entries are free
    /// and waiters are left, signals once for another turn.
    #[inline(always)]
    pub(in crate::reactor) fn notify_line(&self, wanted: &(impl Wanted + ?Sized), overtake: bool) {
        if !wanted.line().is_empty() {
            self.notify_those_in(wanted, overtake);
        }
    }

    #[inline(never)]
    fn notify_those_in(&self, wanted: &(impl Wanted + ?Sized), overtake: bool) {
        let line = wanted.line();
        let available = wanted.available();
        let mut left = 0;
        line.notify_and_wake(|who| {
            let before = if overtake { 0 } else { who.notified };
            let now = available.saturating_sub(before).min(who.waiting);
            left = who.waiting - now;
            now
        });
        // A posted run waits by event in every mode.
        let heard = !self.mode.load().is_busy() || self.own_loop.entries().is_some();
        let stuck = available > 0 && left > 0 && heard;
        if stuck && !self.signalled.swap(true, Ordering::SeqCst) {
            self.events.raise();
        }
    }

    /// Gives back a slot of the streams' share, and notifies a stream in line for one.
    pub(in crate::reactor) fn give_stream_slot_back(&self) {
        self.stream_slots.give_back();
        self.notify_line(&self.stream_slots, false);
    }

    /// Returns true if `notify_line` has signalled for a turn that no thread has taken.
    #[inline]
    pub(super) fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::SeqCst)
    }

    /// Takes the turn that `notify_line` has signalled for, if any: notifies further waiters in
    /// line. The caller has polled before, so that a panic of a provider in the poll does not lose
    /// the signal.
    #[inline]
    pub(in crate::reactor) fn answer_signal(&self) {
        if self.is_signalled() && self.signalled.swap(false, Ordering::SeqCst) {
            self.overtake();
        }
    }

    #[cold]
    fn overtake(&self) {
        self.notify_line(self, true);
        self.notify_line(&self.stream_slots, true);
        let overtake = |table: &dyn EntryTable, _: Option<&_>| self.notify_line(table, true);
        self.core.registry.each(overtake);
    }

    /// Begins a pause of the line, if there is none. `completed` is the number of completions that
    /// had been collected before the device was asked.
    pub(in crate::reactor) fn begin_pause(&self, completed: u64) {
        let set_alarm = |delay| self.timer.set_alarm(self, delay);
        if self.pause.begin(completed, set_alarm) {
            self.waiters.wake_all();
        }
    }

    /// Ends the pause, and notifies waiters in line. `overtake` is as for `notify_line`.
    pub(super) fn resume(&self, overtake: bool) {
        if self.pause.end() {
            self.notify_line(self, overtake);
        }
    }

    /// Ends the pause if its time has passed.
    #[inline]
    pub(in crate::reactor) fn resume_if_due(&self) {
        if self.pause.is_on() && self.timer.alarm_left().is_zero() {
            self.resume(true);
        }
    }
}

/// Returns true if the error means that a device's queue no longer works.
pub(super) fn is_broken(error: JobError) -> bool {
    matches!(error.reason(), Reason::QueueFailed | Reason::QueueBroken)
}

/// A bit of a turn's `requests`: a device has reported that its queue is broken. `turn.rs` has the
/// other bits.
pub(super) const BROKEN: u8 = 4;

impl Shared {
    /// Completes a job, for the reaper. Returns what to notify, and adds to `rest` what must be
    /// dropped outside of the gate.
    #[inline(always)]
    pub(super) fn complete_job(
        &self,
        completion: &Completion,
        rest: &mut Leftovers,
        requests: &mut u8,
    ) -> Option<Notify> {
        if let Err(error) = completion.result {
            self.counts.failed(error);
            if is_broken(error) {
                *requests |= BROKEN;
            }
        }
        self.core.table.complete(completion, rest)
    }

    /// Writes to the log, once, that a queue is broken. The caller is outside of the gate and holds
    /// no lock.
    #[cold]
    pub(super) fn log_broken(&self) {
        if self.broken.swap(true, Ordering::Relaxed) {
            return;
        }
        let devices: Vec<&str> = self.devices().map(|device| device.info().name()).collect();
        let in_flight = self.core.table.count().0;
        log(|| tracing::error!(target: "tokio_doca::workq", ?devices, in_flight, "queue broken"));
    }
}

/// Notifies the target of a completion.
pub(super) fn notify(shared: &Shared, whom: Notify, outside: &GateLeft) {
    match whom {
        Notify::Op(target) => {
            if let Target::Waker(waker) = target.open(outside) {
                wake(waker);
            }
        }
        Notify::Run(target, outcome) => {
            if let Target::Run(run, node) = target.open(outside) {
                if run.is_stream() {
                    shared.give_stream_slot_back();
                }
                run.completed(node, outcome);
                // Dropping the last reference to the run may drop a waker of the application.
                discard(run);
            }
        }
        Notify::Waker(waker) => wake(waker.open(outside)),
        Notify::Caller => shared.fire(),
        Notify::Line(table) => {
            let table = table.open(outside);
            shared.notify_line(&*table, false);
            // Dropping the last reference to the table may drop memory of the application.
            discard(table);
        }
        Notify::Nobody(token) => log_ignored(token),
    }
}

#[cold]
fn log_ignored(token: Token) {
    let (table, token) = (token.table(), token.as_raw());
    log(|| match table {
        0 => tracing::error!(
            target: "tokio_doca::workq",
            token,
            "a completion of a job that is not in flight was ignored"
        ),
        // The context was dropped, perhaps before its last completions came.
        _ => tracing::debug!(
            target: "tokio_doca::workq",
            token,
            "a completion of a receive or wait that there is not was ignored"
        ),
    });
}
