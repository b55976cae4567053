//! [`Awaited`], a completion that an operation waits for, and [`InFlight`], that of a job.

use std::task::Waker;

use super::slot::Slot;
use super::target::{Outcome, OwnRest};
use crate::device::{Completion, Token};

/// The completion that an operation waits for: of a job, a receive or a wait for a sync event.
pub(in crate::reactor) trait Awaited {
    type End;

    /// Takes the outcome, if the operation has completed.
    fn take(&self) -> Option<Self::End>;

    /// Stores the waker, to be woken at the completion. The caller must call `take` once more
    /// afterwards.
    fn register(&self, waker: &Waker);

    /// Ends the operation if `completion` is its own and has no error. Only the operation's poll
    /// calls this, from inside the gate, and then calls `free` outside of it. Adds to `rest` what
    /// must be dropped outside of the gate.
    #[inline(always)]
    fn end(&self, _completion: &Completion, _rest: &mut OwnRest) -> Option<Self::End> {
        None
    }

    /// Takes back what the operation holds, once `end` has ended it.
    #[inline(always)]
    fn free(&self) {}
}

/// A job in flight, whose completion an operation awaits.
pub(in crate::reactor) struct InFlight<'a>(
    pub(in crate::reactor) &'a Slot,
    pub(in crate::reactor) Token,
);

impl Awaited for InFlight<'_> {
    type End = Outcome;

    #[inline(always)]
    fn take(&self) -> Option<Outcome> {
        self.0.take()
    }

    fn register(&self, waker: &Waker) {
        self.0.register(waker);
    }

    #[inline(always)]
    fn end(&self, completion: &Completion, rest: &mut OwnRest) -> Option<Outcome> {
        let result = completion.result;
        let own = completion.token == self.1 && result.is_ok();
        (own && self.0.end_own(self.1.generation(), result, rest)).then_some(result)
    }

    #[inline(always)]
    fn free(&self) {
        self.0.free_after(self.1.generation());
    }
}
