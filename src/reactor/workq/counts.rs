//! What a WorkQ has done so far, in numbers.
//!
//! Nothing is counted when a Job is submitted, and nothing at all for one that is finished inline:
//! its device counts it anyway. What the reaper counts it writes alone, in the gate, without locked
//! instructions. The rest is derived (`stats.rs`).

use crate::device::Completion;
use crate::error::{JobError, Reason};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The numbers that are counted.
#[derive(Default)]
pub(super) struct Counts {
    // Written in the gate alone.
    completed: AtomicU64,
    failed: AtomicU64,
    flushed: AtomicU64,
    full_polls: AtomicU64,
    empty_polls: AtomicU64,
    received: AtomicU64,
    // Written by whoever waits.
    arms: AtomicU64,
    wake_ups: AtomicU64,
}

/// Without a locked instruction: the caller is the only one who writes.
#[inline(always)]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

impl Counts {
    /// A device was asked by a turn, and these have completed. The caller is in the gate.
    #[inline(always)]
    pub(in crate::reactor) fn completed(&self, completions: &[Completion]) {
        if completions.is_empty() {
            return add(&self.empty_polls, 1);
        }
        add(&self.full_polls, 1);
        add(&self.completed, completions.len() as u64);
    }

    /// Returns how many completions were collected. Exact for a caller that has been in the gate.
    #[inline(always)]
    pub(super) fn collected(&self) -> u64 {
        self.completed.load(Relaxed)
    }

    /// A job or a receive has ended with an error. The caller is in the gate.
    #[cold]
    pub(in crate::reactor) fn failed(&self, error: JobError) {
        let flushed = error.reason() == Reason::Flushed;
        add(if flushed { &self.flushed } else { &self.failed }, 1);
    }

    /// Receives or waits of one context have ended. The caller is in the gate.
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

    /// Returns how many of them were flushed.
    pub(super) fn flushes(&self) -> u64 {
        self.flushed.load(Relaxed)
    }

    /// Returns how many of them were receives that got a message.
    pub(super) fn messages(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Returns how often devices were asked for completions, and had none.
    pub(super) fn empty_polls(&self) -> u64 {
        self.empty_polls.load(Relaxed)
    }

    /// Returns how many completions that were collected had failed, flushed ones aside.
    pub(super) fn failures(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Returns how often devices were asked for completions.
    pub(in crate::reactor) fn polls(&self) -> u64 {
        self.full_polls.load(Relaxed) + self.empty_polls()
    }

    /// Returns how often devices were asked to ring.
    pub(super) fn arms(&self) -> u64 {
        self.arms.load(Relaxed)
    }

    /// Returns how many events were attended to.
    pub(super) fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Relaxed)
    }
}
