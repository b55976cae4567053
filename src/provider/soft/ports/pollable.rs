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

    /// Returns true if `poll` would find something for which the port was not made ready. The queue
    /// asks the ports that are watched.
    fn is_due(&self) -> bool {
        false
    }

    /// Reads the wake-ups for this port alone.
    fn rang(&self) {}

    /// Gives memory back that an idle port has no use for, and returns whether there was any. With
    /// `rested`, the port was not used for a while; otherwise the port finds out by comparing with
    /// the last call.
    fn give_back(&self, _rested: bool) -> bool {
        false
    }

    /// Ends the port, since the queue is gone. Nothing is handed out any more.
    fn end(&self);
}

/// The result of a poll.
pub(in super::super) struct Progress {
    /// The number of completions.
    pub(in super::super) filled: usize,
    /// The port has more to do at once.
    pub(in super::super) more: bool,
    /// The port is retired and has nothing left to do: the queue removes it.
    pub(in super::super) finished: bool,
}
