//! A queue's view of an endpoint or a sync event.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::sync::Arc;

use crate::device::Completion;

/// An endpoint or a sync event. `R` is the state of the queue's reaper.
pub(in super::super) trait Pollable<R>: Send + Sync {
    /// Does a part of the port's work.
    ///
    /// # Safety
    ///
    /// As for `Queue::reap`.
    unsafe fn poll(self: Arc<Self>, reaper: &mut R, out: &mut [Completion]) -> Progress;

    /// Returns true if `poll` would find something although nothing has put the port into the
    /// queue's `ReadySet`. The queue asks this, a few at a time, of the ports in `PolledPorts`.
    fn is_due(&self) -> bool {
        false
    }

    /// Reads the wake-ups on the socket of this port.
    fn rang(&self) {}

    /// Returns memory that an idle port does not need. The result is true if there was any. With
    /// `rested`, the port was not used for a while; otherwise the port finds out whether it is idle
    /// by comparing with the last call.
    fn give_back(&self, _rested: bool) -> bool {
        false
    }

    /// Ends the port, since the queue is gone. No more completions are returned.
    fn end(&self);
}

/// The result of a poll.
pub(in super::super) struct Progress {
    /// The number of completions.
    pub(in super::super) filled: usize,
    /// True if the port has more to do now.
    pub(in super::super) more: bool,
    /// The port is retired and has nothing left to do: the queue removes it.
    pub(in super::super) finished: bool,
}
