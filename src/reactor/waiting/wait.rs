//! How an Op waits: for an event, or busily. How it waits in line for a Slot is in
//! [`super::in_line`].
//!
//! In event mode a poll that finds nothing stores the waker, makes sure that this runtime is
//! registered, arms, which looks once more, and only then sleeps. In busy mode it looks a few dozen
//! times, wakes itself, and gives the CPU up after a budget: a spinning engine may share it. In
//! Hybrid mode the last of those that wait does that for a bounded time, and then sleeps as the
//! others do (`spin.rs`).
//!
//! The mode may change meanwhile: who is about to sleep asks whether it did.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use crate::error::{JobError, Reason};
use crate::reactor::mode::{LOOKS, Policy};
use crate::reactor::slots::{Outcome, Slot};
use crate::reactor::spin::Spin;
use crate::reactor::workq::Attachment;
use crate::sync::atomic::fence;

/// Looks that a queue is asked for at once: whether another thread has collected the end is asked
/// after as many.
const AT_ONCE: usize = 16;

/// What an Op waits for: the end of a Job, or of a receive.
pub(in crate::reactor) trait Awaited {
    type End;

    /// How it ended, if it has.
    fn take(&self) -> Option<Self::End>;

    /// Stores the waker to be woken at the end. `take` must be asked once more afterwards.
    fn register(&self, waker: &Waker);
}

impl Awaited for &Slot {
    type End = Outcome;

    #[inline(always)]
    fn take(&self) -> Option<Outcome> {
        Slot::take(self)
    }

    fn register(&self, waker: &Waker) {
        Slot::register(self, waker);
    }
}

impl Attachment {
    /// Waits as the policy says.
    #[inline(always)]
    pub(in crate::reactor) fn poll_end<A: Awaited>(
        &self,
        end: &A,
        fresh: bool,
        policy: Policy,
        spin: &mut Spin,
        cx: &mut Context<'_>,
    ) -> Poll<Waited<A::End>> {
        if policy.is_event() {
            self.poll_event(end, fresh, policy, cx)
        } else if policy.is_busy() {
            self.poll_busy(end, fresh, cx)
        } else {
            self.poll_hybrid(end, fresh, policy, spin, cx)
        }
    }

    fn poll_event<A: Awaited>(
        &self,
        end: &A,
        fresh: bool,
        policy: Policy,
        cx: &mut Context<'_>,
    ) -> Poll<Waited<A::End>> {
        let shared = &*self.shared;
        if !fresh {
            if let Some(outcome) = end.take() {
                return Poll::Ready(Waited::Over(outcome));
            }
            // It may be another runtime than the last time.
            if shared.events.register(&self.shared).is_err() {
                return Poll::Ready(Waited::Lost(JobError::of(Reason::CannotWake)));
            }
        }
        // Look first: what has completed need not ring. Not if an event will come: that looks for
        // all at once.
        if !shared.expected.load(Ordering::Relaxed) && self.queue.ready() {
            shared.turn();
            if let Some(outcome) = end.take() {
                return Poll::Ready(Waited::Over(outcome));
            }
        }
        end.register(cx.waker());
        // Arm, then look. Who armed before has this one's event rung for too. Pairs with
        // `event_turn`: either that sees that this Op sleeps, or this sees that no event is
        // expected.
        fence(Ordering::SeqCst);
        if !shared.expected.load(Ordering::Relaxed) && shared.arm() {
            shared.turn();
        }
        // Also without a look of one's own: somebody else may have reaped it before the waker was
        // there.
        match end.take() {
            Some(outcome) => Poll::Ready(Waited::Over(outcome)),
            None => {
                if !shared.is_still(policy) {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    fn poll_busy<A: Awaited>(
        &self,
        end: &A,
        fresh: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Waited<A::End>> {
        if let Some(outcome) = self.look(end, fresh, LOOKS) {
            return Poll::Ready(Waited::Over(outcome));
        }
        self.shared.misses.add();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Busily while it spins, and then by event.
    fn poll_hybrid<A: Awaited>(
        &self,
        end: &A,
        fresh: bool,
        policy: Policy,
        spin: &mut Spin,
        cx: &mut Context<'_>,
    ) -> Poll<Waited<A::End>> {
        let shared = &self.shared;
        // First: whoever does not spin does not look either if an event will come.
        if !shared.spins(policy, spin) {
            return self.poll_event(end, fresh, policy, cx);
        }
        if let Some(outcome) = self.look(end, fresh, spin.looks()) {
            shared.spun(policy, spin);
            return Poll::Ready(Waited::Over(outcome));
        }
        shared.misses.add();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks for a while, `looks` times at most.
    #[inline(always)]
    fn look<A: Awaited>(&self, end: &A, fresh: bool, looks: usize) -> Option<A::End> {
        let shared = &*self.shared;
        // With others in flight there is something better to do: their polls look as well, and find
        // more at once.
        let several = shared.core.table.free().several_taken();
        if fresh && several {
            return None;
        }
        let mut left = if several { 1 } else { looks };
        while left > 0 {
            if let Some(outcome) = end.take() {
                shared.misses.reset();
                return Some(outcome);
            }
            let at_once = left.min(AT_ONCE);
            left -= at_once;
            if shared.look(&self.queue, at_once) {
                let outcome = end.take();
                if outcome.is_some() {
                    shared.misses.reset();
                }
                // The turn may have been long, or woken others: they have theirs now.
                return outcome;
            }
        }
        None
    }
}

/// How waiting ended.
pub(in crate::reactor) enum Waited<E> {
    Over(E),
    /// The Job continues, but nobody would hear of its end.
    Lost(JobError),
}
