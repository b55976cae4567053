//! The time limits of jobs that wait for a peer. All ports of a queue share one timer.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::error::{Error, Result};
use crate::sync::log_later;

/// The value that means that there is no time limit.
const NEVER: u64 = u64::MAX;

pub(super) struct Timer {
    fd: TimerFd,
    /// The earliest time limit, in nanoseconds since `built`.
    due: AtomicU64,
    /// The time limit for which the descriptor is set.
    set: AtomicU64,
    built: Instant,
}

impl Timer {
    pub(super) fn new() -> Result<Timer> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let fd = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)
            .map_err(|errno| Error::os(None, "timerfd_create", errno.into()))?;
        Ok(Timer {
            fd,
            due: AtomicU64::new(NEVER),
            set: AtomicU64::new(NEVER),
            built: Instant::now(),
        })
    }

    /// Notes that a job waits for its peer until `due`.
    pub(super) fn note(&self, due: Instant) {
        let due = due.saturating_duration_since(self.built).as_nanos() as u64;
        self.due.fetch_min(due, Ordering::SeqCst);
    }

    /// Returns true if a time limit has passed.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due != NEVER && self.built.elapsed().as_nanos() as u64 >= due
    }

    /// Forgets the time limit. Ports that still have one note it again when they are polled.
    pub(super) fn forget(&self) {
        self.due.store(NEVER, Ordering::SeqCst);
    }

    /// Sets the descriptor to expire at the earliest time limit. The caller holds the reaper's
    /// lock, so that the descriptor keeps the most recent value of `due`.
    pub(super) fn arm(&self) {
        let due = self.due.load(Ordering::SeqCst);
        if due == NEVER || self.set.swap(due, Ordering::SeqCst) == due {
            return;
        }
        let now = self.built.elapsed().as_nanos() as u64;
        let left = Duration::from_nanos(due.saturating_sub(now).max(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(left));
        if let Err(errno) = self.fd.set(once, TimerSetTimeFlags::empty()) {
            log_later(move || tracing::error!(%errno, "a time limit cannot be kept"));
        }
    }

    /// Reads the expiration from the descriptor.
    pub(super) fn rang(&self) {
        let mut read = [0; 8];
        let _ = nix::unistd::read(&self.fd, &mut read);
        self.set.store(NEVER, Ordering::SeqCst);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
