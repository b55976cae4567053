//! [`Counts`], the numbers that a WorkQ counts for its statistics.
//!
//! Submitting a job changes no count. A job that finishes inline is counted by its device only. The
//! counts of completions are written only inside the gate, by one thread at a time, so they need no
//! locked instructions. All other numbers are derived (`stats.rs`).

use crate::device::Completion;
use crate::error::{JobError, Reason};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counts of a WorkQ, which [`WorkQ::stats`](crate::WorkQ::stats) returns.
#[derive(Default)]
pub(super) struct Counts {
    // Written only inside the gate.
    completed: AtomicU64,
    failed: AtomicU64,
    flushed: AtomicU64,
    full_polls: AtomicU64,
    empty_polls: AtomicU64,
    received: AtomicU64,
    // Written by any thread that arms or handles an event.
    arms: AtomicU64,
    wake_ups: AtomicU64,
}

/// Adds `more` to a count without a locked instruction: only one thread at a time writes the count.
#[inline(always)]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

impl Counts {
    /// Counts a poll of a device by a turn, and the completions that it returned. The caller is in
    /// the gate.
    #[inline(always)]
    pub(in crate::reactor) fn completed(&self, completions: &[Completion]) {
        if completions.is_empty() {
            return add(&self.empty_polls, 1);
        }
        add(&self.full_polls, 1);
        add(&self.completed, completions.len() as u64);
    }

    /// Returns the number of completions that were collected. A caller that has been in the gate
    /// sees at least those that were collected until then.
    #[inline(always)]
    pub(super) fn collected(&self) -> u64 {
        self.completed.load(Relaxed)
    }

    /// Counts a job, receive or wait that has failed. The caller is in the gate.
    #[cold]
    pub(in crate::reactor) fn failed(&self, error: JobError) {
        let flushed = error.reason() == Reason::Flushed;
        add(if flushed { &self.flushed } else { &self.failed }, 1);
    }

    /// Counts receives or waits of one context that have completed. The caller is in the gate.
    #[inline(always)]
    pub(in crate::reactor) fn ended(&self, completions: &[Completion]) {
        let received = completions.iter().filter(|each| each.received.is_some());
        add(&self.received, received.count() as u64);
        let failed = completions.iter().filter_map(|each| each.result.err());
        failed.for_each(|error| self.failed(error));
    }

    #[inline(always)]
    pub(in crate::reactor) fn armed(&self) {
        self.arms.fetch_add(1, Relaxed);
    }

    #[inline(always)]
    pub(in crate::reactor) fn woken(&self) {
        self.wake_ups.fetch_add(1, Relaxed);
    }

    /// Returns the number of jobs and receives that were flushed.
    pub(super) fn flushes(&self) -> u64 {
        self.flushed.load(Relaxed)
    }

    /// Returns the number of receives that got a message.
    pub(super) fn messages(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Returns the number of times that a device was polled and returned no completions.
    pub(super) fn empty_polls(&self) -> u64 {
        self.empty_polls.load(Relaxed)
    }

    /// Returns the number of collected completions that had failed, except flushed ones.
    pub(super) fn failures(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Returns the number of times that a device was polled.
    pub(in crate::reactor) fn polls(&self) -> u64 {
        self.full_polls.load(Relaxed) + self.empty_polls()
    }

    /// Returns the number of times that the devices were asked to signal.
    pub(super) fn arms(&self) -> u64 {
        self.arms.load(Relaxed)
    }

    /// Returns the number of events that were handled.
    pub(super) fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Relaxed)
    }
}
