//! The clock of a WorkQ and its timerfd as loom sees them: time passes only in [`Clock::raise`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::device::Signal;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};

/// All words are read and written by exchanges, so that no thread sees an old value. A thread that
/// receives a signal of the timerfd sees all that another thread did before it set the timerfd.
pub(in crate::reactor) struct Clock {
    now: AtomicU64,
    /// When the timerfd signals. The field is not in `Timerfd`, which lies in a `OnceLock`: loom
    /// does not know that a thread that finds the timerfd there comes after the thread that made
    /// it.
    due: AtomicU64,
}

/// The value of `due` while the timerfd is not set.
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

    /// Lets the time pass until the timerfd is due. Returns true if the signal of the timerfd is
    /// received, and false if another thread takes the signal back by setting the timerfd just
    /// then.
    #[cfg(test)]
    pub(in crate::reactor) fn raise(&self) -> bool {
        let due = self.due.fetch_add(0, Relaxed);
        if due == NEVER {
            return false;
        }
        self.now.fetch_max(due, Relaxed);
        let heard = |due| (due <= self.now()).then_some(NEVER);
        self.due.fetch_update(AcqRel, Relaxed, heard).is_ok()
    }
}

/// The timerfd of a loom model: a descriptor for the event handle that is never signalled itself.
pub(super) struct Timerfd(Signal);

impl Timerfd {
    pub(in crate::reactor) fn new() -> nix::Result<Timerfd> {
        let errno = |error: io::Error| nix::Error::from_raw(error.raw_os_error().unwrap_or(0));
        Signal::new().map(Timerfd).map_err(errno)
    }

    /// Allows time to pass up to `due`. The caller notifies the driver of the model.
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
