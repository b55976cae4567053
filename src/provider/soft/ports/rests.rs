//! When the idle ports of a queue return memory. They do so at turns of the queue, not by a timer,
//! which would wake an idle program. Each turn asks some of the ports; later turns ask the others.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A port returns memory after it was idle for this time, or for up to twice as long.
const IDLE: Duration = Duration::from_secs(5);

/// The maximum number of ports that one turn asks to return memory (`ASKS`), and of those that do
/// return some (`GIVES`): to return half a MiB takes 50 us.
const ASKS: usize = 256;
const GIVES: usize = 4;

/// The state of the rounds in which all ports are asked. It is used under the reaper's lock.
pub(super) struct Rests {
    built: Instant,
    /// When a thread last polled or was about to sleep (`slept`), and when the last round began
    /// (`begun`), in nanoseconds since `built`.
    slept: AtomicU64,
    begun: AtomicU64,
    /// The port at which the round continues, or 0 if the round has completed (`next`); and whether
    /// all ports have rested (`rested`).
    next: AtomicUsize,
    rested: AtomicBool,
}

/// The part of a round that one turn does.
pub(super) struct Round {
    /// The port that is asked next.
    pub(super) next: usize,
    /// True if no thread has used any of the ports for a while.
    pub(super) rested: bool,
    asks: usize,
    gives: usize,
}

impl Round {
    pub(super) fn goes_on(&self) -> bool {
        self.asks < ASKS && self.gives < GIVES
    }

    /// Counts a port that was asked, and whether it gave memory back.
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

    /// Called when a thread is about to sleep: begins or continues a round; `None` if none is due.
    /// A new round is `rested` if no thread has polled for [`IDLE`].
    pub(super) fn sleeps(&self) -> Option<Round> {
        let now = self.now();
        let slept = self.slept.swap(now, Relaxed);
        self.round(now, is_long(slept, now))
    }

    /// Begins or continues a round in a turn of a thread that keeps polling.
    pub(super) fn goes_on(&self) -> Option<Round> {
        let now = self.now();
        self.slept.store(now, Relaxed);
        self.round(now, false)
    }

    /// Stores the port at which the next turn continues; 0 if the round has completed.
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
