//! When the idle ports of a queue give memory back: at a turn of the queue, and by no timer, which
//! would wake an idle program. A turn asks some of them, and those after it the others.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a port is idle until then: once or twice as long.
const IDLE: Duration = Duration::from_secs(5);

/// The most ports that a turn asks, and that give memory back: half a MiB takes 50 us.
const ASKS: usize = 256;
const GIVES: usize = 4;

/// Used under the reaper's lock.
pub(super) struct Rests {
    built: Instant,
    /// When a thread was about to sleep last, and when the last round began, in nanoseconds.
    slept: AtomicU64,
    begun: AtomicU64,
    /// The port at which the round continues; 0 if it has completed. And whether all have rested.
    next: AtomicUsize,
    rested: AtomicBool,
}

/// A part of a round: which ports are asked.
pub(super) struct Round {
    /// The port that is asked next.
    pub(super) next: usize,
    /// Nothing was done with any of them for a while.
    pub(super) rested: bool,
    asks: usize,
    gives: usize,
}

impl Round {
    pub(super) fn goes_on(&self) -> bool {
        self.asks < ASKS && self.gives < GIVES
    }

    /// The port was asked, and has given memory back or not.
    pub(super) fn asked(&mut self, gave: bool) {
        self.next += 1;
        self.asks += 1;
        self.gives += usize::from(gave);
    }
}

impl Rests {
    pub(super) fn new() -> Rests {
        Rests {
            built: Instant::now(),
            slept: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            rested: AtomicBool::new(false),
        }
    }

    /// A thread is about to sleep. Returns which ports are to be asked: all have rested if nobody
    /// has polled for so long.
    pub(super) fn sleeps(&self) -> Option<Round> {
        let now = self.now();
        let slept = self.slept.swap(now, Relaxed);
        self.round(now, is_long(slept, now))
    }

    /// A thread polls, and continues.
    pub(super) fn goes_on(&self) -> Option<Round> {
        let now = self.now();
        self.slept.store(now, Relaxed);
        self.round(now, false)
    }

    /// The round has come to this port; 0 if it has completed.
    pub(super) fn came_to(&self, next: usize) {
        self.next.store(next, Relaxed);
    }

    fn round(&self, now: u64, rested: bool) -> Option<Round> {
        let next = self.next.load(Relaxed);
        if next == 0 {
            if !is_long(self.begun.load(Relaxed), now) {
                return None;
            }
            self.begun.store(now, Relaxed);
            self.rested.store(rested, Relaxed);
        }
        Some(Round {
            next,
            rested: self.rested.load(Relaxed),
            asks: 0,
            gives: 0,
        })
    }

    fn now(&self) -> u64 {
        self.built.elapsed().as_nanos() as u64
    }
}

fn is_long(from: u64, to: u64) -> bool {
    to.saturating_sub(from) >= IDLE.as_nanos() as u64
}
