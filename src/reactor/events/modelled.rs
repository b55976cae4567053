//! The clock of a WorkQ and its timerfd as loom sees them: time passes only in [`Clock::ring`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::device::Signal;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// All words are read and written by exchanges, so that no thread sees an old value. The thread
/// that receives a signal of the timerfd sees what a thread did before it set the timerfd.
pub(in crate::reactor) struct Clock {
    now: AtomicU64,
    /// When the timerfd signals. It is no field of the timerfd, since a `OnceLock` has that: loom
    /// does not see that a thread which finds the timerfd comes after the thread that made it.
    due: AtomicU64,
}

/// The time of a timerfd that does not signal.
const NEVER: u64 = u64::MAX;

impl Clock {
    pub(in crate::reactor) fn new() -> Clock {
        Clock {
            now: AtomicU64::new(0),
            due: AtomicU64::new(NEVER),
        }
    }

    pub(in crate::reactor) fn now(&self) -> u64 {
        self.now.fetch_add(0, Relaxed)
    }

    /// Lets the time pass until the timerfd is due. Returns true if its signal is received then: a
    /// thread that sets the timerfd between the two takes the signal back.
    #[cfg(test)]
    pub(in crate::reactor) fn ring(&self) -> bool {
        let due = self.due.fetch_add(0, Relaxed);
        if due == NEVER {
            return false;
        }
        self.now.fetch_max(due, Relaxed);
        let heard = |due| (due <= self.now()).then_some(NEVER);
        self.due.fetch_update(AcqRel, Acquire, heard).is_ok()
    }
}

/// A descriptor for the event handle, which is never signalled.
pub(super) struct Timerfd(Signal);

impl Timerfd {
    pub(in crate::reactor) fn new() -> nix::Result<Timerfd> {
        let errno = |error: io::Error| nix::Error::from_raw(error.raw_os_error().unwrap_or(0));
        Signal::new().map(Timerfd).map_err(errno)
    }

    /// Lets time pass as far as `due` from now on. The caller notifies the driver of the model.
    pub(in crate::reactor) fn set(&self, clock: &Clock, due: u64) -> nix::Result<()> {
        clock.due.swap(due, AcqRel);
        Ok(())
    }
}

impl AsFd for Timerfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
