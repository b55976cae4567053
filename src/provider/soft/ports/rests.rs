//! When the idle ports of a queue give memory back: at a turn of the queue, and by no timer, which
//! would wake an idle program.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a port is idle until then: once or twice as long.
const IDLE: Duration = Duration::from_secs(5);

/// Used under the reaper's lock.
pub(super) struct Rests {
    built: Instant,
    /// When a thread was about to sleep last, and when the ports were asked, in nanoseconds.
    slept: AtomicU64,
    asked: AtomicU64,
}

impl Rests {
    pub(super) fn new() -> Rests {
        Rests {
            built: Instant::now(),
            slept: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// A thread is about to sleep. Returns whether the ports are to be asked, and whether all of
    /// them have rested, since nobody has polled for so long.
    pub(super) fn sleeps(&self) -> Option<bool> {
        let now = self.now();
        let slept = self.slept.swap(now, Relaxed);
        let asks = self.asks(now);
        asks.then_some(is_long(slept, now))
    }

    /// A thread polls, and goes on.
    pub(super) fn goes_on(&self) -> Option<bool> {
        let now = self.now();
        self.slept.store(now, Relaxed);
        self.asks(now).then_some(false)
    }

    fn asks(&self, now: u64) -> bool {
        let asks = is_long(self.asked.load(Relaxed), now);
        if asks {
            self.asked.store(now, Relaxed);
        }
        asks
    }

    fn now(&self) -> u64 {
        self.built.elapsed().as_nanos() as u64
    }
}

fn is_long(from: u64, to: u64) -> bool {
    to.saturating_sub(from) >= IDLE.as_nanos() as u64
}
