//! The clock of a WorkQ, and a timerfd that signals by that clock. `modelled.rs` replaces both
//! under loom.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

pub(in crate::reactor) struct Clock(Instant);

impl Clock {
    pub(in crate::reactor) fn new() -> Clock {
        Clock(Instant::now())
    }

    /// Returns the nanoseconds since the clock was made.
    #[inline]
    pub(in crate::reactor) fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

pub(super) struct Timerfd(TimerFd);

impl Timerfd {
    pub(in crate::reactor) fn new() -> nix::Result<Timerfd> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map(Timerfd)
    }

    /// Sets the timerfd to signal once, at `due` on the clock of the WorkQ, or at once if that time
    /// has passed. Replaces the time that was set before; the kernel takes back a signal that was
    /// not received yet.
    pub(in crate::reactor) fn set(&self, clock: &Clock, due: u64) -> nix::Result<()> {
        let left = Duration::from_nanos(due.saturating_sub(clock.now()).max(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(left));
        self.0.set(once, TimerSetTimeFlags::empty())
    }
}

impl AsFd for Timerfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
