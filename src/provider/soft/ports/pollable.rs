//! What a queue knows of an endpoint, or of a sync event.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::sync::Arc;

use crate::device::Completion;

/// An endpoint, or a sync event. `R` is what the reaper of the queue works on.
pub(in super::super) trait Pollable<R>: Send + Sync {
    /// Does a part of what there is to do.
    ///
    /// # Safety
    ///
    /// As for `Queue::reap`.
    unsafe fn poll(self: Arc<Self>, reaper: &mut R, out: &mut [Completion]) -> Progress;

    /// Returns true if `poll` would find something that nobody told the queue. For ports that are
    /// watched.
    fn is_due(&self) -> bool {
        false
    }

    /// Reads what rang for this port alone.
    fn rang(&self) {}

    /// Gives memory back that an idle port has no use for, and returns whether there was any.
    /// `rested` says that nothing was done with the port for a while; else that shows when this is
    /// called again.
    fn give_back(&self, _rested: bool) -> bool {
        false
    }

    /// The queue is gone: nothing is handed out any more.
    fn end(&self);
}

/// What a poll came to.
pub(in super::super) struct Progress {
    /// Completions.
    pub(in super::super) filled: usize,
    /// There is more to do at once.
    pub(in super::super) more: bool,
    /// The port is retired, and nothing is left: the queue forgets it.
    pub(in super::super) finished: bool,
}
