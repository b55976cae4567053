//! How an operation in flight waits for its completion: by event, or busily. [`super::in_line`]
//! says how it waits in line for a slot.
//!
//! In event mode a poll that finds nothing registers this runtime, stores the waker, arms, which
//! polls once more, and only then sleeps. In busy mode an operation polls the queue a few dozen
//! times and wakes itself. After a number of such polls it yields the CPU, which it may share with
//! an engine that spins. In Hybrid mode the operation that began to wait last polls in this way for
//! a bounded time, and then sleeps as the others do (`spin.rs`).
//!
//! The mode may change meanwhile, so an operation that is about to sleep checks the mode again.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::error::{JobError, Reason};
use crate::reactor::mode::{LOOKS, Policy};
use crate::reactor::slots::Awaited;
use crate::reactor::spin::Spin;
use crate::reactor::workq::Attachment;
use crate::sync::atomic::fence;

/// The maximum number of polls of a queue in one call of `poll_queue_for`. After each call the
/// operation checks whether another thread has collected its completion.
const AT_ONCE: usize = 16;

impl Attachment {
    /// Takes the outcome of an operation that has completed since it was polled last. In Hybrid
    /// mode the operation takes it when it polls, which the statistics of spins count.
    #[inline(always)]
    pub(in crate::reactor) fn take_end<A: Awaited>(
        &self,
        end: &A,
        policy: Policy,
    ) -> Option<A::End> {
        let is_busy = policy.is_busy();
        let outcome = (is_busy || policy.is_event()).then(|| end.take())??;
        if is_busy {
            self.shared.misses.reset();
        }
        Some(outcome)
    }

    /// Waits for `end` as `policy` says. `fresh` is true if the operation was submitted in this
    /// poll.
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
            self.poll_busy(end, fresh, LOOKS, cx)
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
                return Poll::Ready(Waited::Done(outcome));
            }
            // The operation may be polled on another runtime than the last time.
            if shared.events.register(&self.shared).is_err() {
                return Poll::Ready(Waited::Lost(JobError::of(Reason::CannotWake)));
            }
        }
        // Poll first: if the job has completed already, no event is needed. If another operation
        // has armed, no poll is needed: the turn of that event polls for all waiters at once.
        if !shared.expected.load(Ordering::Relaxed) && self.queue.ready() {
            shared.turn();
            if let Some(outcome) = end.take() {
                return Poll::Ready(Waited::Done(outcome));
            }
        }
        end.register(cx.waker());
        // Arm, then poll. If another operation has armed before, that event is for this operation
        // too. Pairs with `event_turn`: either the turn sees that this operation sleeps, or this
        // thread sees that no event is expected.
        fence(Ordering::SeqCst);
        if !shared.expected.load(Ordering::Relaxed) && shared.arm() {
            shared.turn();
        }
        // Checked even if this thread did not poll: another thread may have reaped the completion
        // before the waker was stored.
        match end.take() {
            Some(outcome) => Poll::Ready(Waited::Done(outcome)),
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
        looks: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Waited<A::End>> {
        if let Some(outcome) = self.poll_for(end, fresh, looks) {
            return Poll::Ready(Waited::Done(outcome));
        }
        self.shared.misses.add();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits busily while the operation spins, and then by event.
    fn poll_hybrid<A: Awaited>(
        &self,
        end: &A,
        fresh: bool,
        policy: Policy,
        spin: &mut Spin,
        cx: &mut Context<'_>,
    ) -> Poll<Waited<A::End>> {
        // Checked before polling: an operation that does not spin need not poll if an event will
        // come.
        if !self.shared.spins(policy, spin) {
            return self.poll_event(end, fresh, policy, cx);
        }
        let polled = self.poll_busy(end, fresh, spin.looks(), cx);
        if polled.is_ready() {
            self.shared.spun(policy, spin);
        }
        polled
    }

    /// Polls the operation's queue up to `looks` times. Returns the outcome if it was found.
    #[inline(always)]
    fn poll_for<A: Awaited>(&self, end: &A, fresh: bool, looks: usize) -> Option<A::End> {
        let shared = &*self.shared;
        // With several jobs in flight, each operation polls less: all of them poll, and each poll
        // finds more.
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
            if let Some(ended) = shared.poll_queue_for(&self.queue, at_once, Some(end)) {
                let outcome = ended.or_else(|| end.take());
                if outcome.is_some() {
                    shared.misses.reset();
                }
                // The turn may have been long, or have woken other operations: they are polled
                // next.
                return outcome;
            }
        }
        None
    }
}

/// The result of waiting for a completion.
pub(in crate::reactor) enum Waited<E> {
    Done(E),
    /// The job continues, but no runtime or loop would notice its completion.
    Lost(JobError),
}
