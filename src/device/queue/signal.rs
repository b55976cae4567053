//! The signal of a WorkQ: an eventfd that never leaves the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The event handle of a WorkQ. A provider signals it once per `arm`, for the next completion.
#[derive(Debug)]
pub struct Signal(EventFd);

impl Signal {
    /// Returns a new signal, for a WorkQ or for a test that drives a provider without one.
    ///
    /// # Errors
    ///
    /// The error of `eventfd(2)`, if that fails.
    pub fn new() -> io::Result<Signal> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Signal(EventFd::from_value_and_flags(0, flags)?))
    }

    /// Makes the event handle readable: one system call.
    pub fn raise(&self) {
        // The counter is full after almost 2^64 signals without a read. The handle is readable
        // then, which is all that counts.
        let _ = self.0.write(1);
    }

    /// Makes the event handle unreadable until the next signal: one system call.
    pub(crate) fn quiet(&self) {
        // The read fails if there was no signal.
        let _ = self.0.read();
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
