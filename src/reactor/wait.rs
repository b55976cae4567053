//! How an Op waits: for an event, or busily. How it waits in line for a Slot is in [`super::in_line`].
//!
//! In event mode a poll that finds nothing stores the waker, makes sure that this runtime is registered, arms, looks
//! once more, and only then sleeps. In busy mode it looks a few dozen times, wakes itself, and gives the CPU up after
//! a budget: a spinning engine may share it. In Hybrid mode it does the one for a bounded time, and then the other.
//!
//! The mode may change meanwhile: who is about to sleep asks whether it did.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use super::mode::{Policy, Spin};
use super::shared::{Attachment, Shared};
use super::slot::Slot;
use super::submit::Prepared;
use super::target::{Outcome, Target};
use super::this_thread;
use crate::device::Token;
use crate::error::{JobError, Reason};
use crate::sync::WaitNode;
use crate::sync::atomic::fence;

/// Looks in one busy poll. Without `pause`: one costs as much as eighty loads.
pub(super) const LOOKS: usize = if cfg!(tokio_doca_loom) { 1 } else { 32 };
/// Busy polls that find nothing before the CPU is given up: about 30 us.
pub(super) const MISSES: u32 = 256;
/// And how many of them are forgiven then.
const FORGIVEN: u32 = 64;

/// What an Op waits for: the end of a Job, or of a receive.
pub(super) trait Awaited {
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
    /// Waits in line for a Slot. Once there is one, `prepare` takes the leases of the job, and says who is notified of its end.
    pub(super) fn poll_queued(
        &self,
        node: Pin<&WaitNode>,
        spin: &mut Spin,
        cx: &mut Context<'_>,
        prepare: &impl Fn() -> Result<(Prepared, Option<Target>), JobError>,
    ) -> Poll<Result<Token, JobError>> {
        let shared = &self.shared;
        let enqueue = |waker: &Waker| shared.enqueue(self.order.get(), node, waker);
        let take = || {
            let Some(slot) = shared.core.table.take() else {
                return Ok(None);
            };
            let (prepared, target) = match prepare() {
                Ok(prepared) => prepared,
                Err(error) => {
                    drop(slot);
                    shared.after_free();
                    return Err(error.into());
                }
            };
            self.launch(slot, prepared, target).map(Some)
        };
        self.poll_in_line(&**shared, node, spin, cx, enqueue, take)
    }

    /// Waits as the policy says.
    #[inline(always)]
    pub(super) fn poll_end<A: Awaited>(
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
                return Poll::Ready(Waited::Lost(JobError::of(Reason::Unheard)));
            }
        }
        // Look first: what is over need not ring. Not if an event will come: that looks for all at once.
        if !shared.expected.load(Ordering::Relaxed) && self.queue.ready() {
            shared.turn();
            if let Some(outcome) = end.take() {
                return Poll::Ready(Waited::Over(outcome));
            }
        }
        end.register(cx.waker());
        // Arm, then look. Who armed before has this one's event rung for too. Pairs with `event_turn`: either that sees that
        // this Op sleeps, or this sees that no event is expected.
        fence(Ordering::SeqCst);
        if !shared.expected.load(Ordering::Relaxed) && shared.arm() | shared.ready() {
            shared.turn();
        }
        // Also without a look of one's own: somebody else may have reaped it before the waker was there.
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
        if let Some(outcome) = self.look(end, fresh) {
            return Poll::Ready(Waited::Over(outcome));
        }
        self.shared.missed();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Busily while its time is not over, and then by event.
    fn poll_hybrid<A: Awaited>(
        &self,
        end: &A,
        fresh: bool,
        policy: Policy,
        spin: &mut Spin,
        cx: &mut Context<'_>,
    ) -> Poll<Waited<A::End>> {
        if let Some(outcome) = self.look(end, fresh) {
            return Poll::Ready(Waited::Over(outcome));
        }
        if spin.is_over(policy, || self.shared.now()) {
            return self.poll_event(end, fresh, policy, cx);
        }
        self.shared.missed();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks for a while.
    #[inline(always)]
    fn look<A: Awaited>(&self, end: &A, fresh: bool) -> Option<A::End> {
        let shared = &*self.shared;
        // With others in flight there is something better to do: their polls look as well, and find more at once.
        let several = shared.core.table.free().several_taken();
        if fresh && several {
            return None;
        }
        for _ in 0..if several { 1 } else { LOOKS } {
            if let Some(outcome) = end.take() {
                shared.misses.store(0, Ordering::Relaxed);
                return Some(outcome);
            }
            if self.queue.ready() {
                shared.turn();
                let outcome = end.take();
                if outcome.is_some() {
                    shared.misses.store(0, Ordering::Relaxed);
                }
                // The turn may have been long, or woken others: they have theirs now.
                return outcome;
            }
        }
        None
    }
}

impl Shared {
    /// How what is polled here waits.
    #[inline]
    pub(super) fn policy(&self) -> Policy {
        match this_thread::is_in_own_loop(self) {
            true => Policy::EVENT,
            false => self.mode.load(),
        }
    }

    /// Whether it waits so still. To be asked by who is about to sleep, after it can be found.
    pub(super) fn is_still(&self, policy: Policy) -> bool {
        this_thread::is_in_own_loop(self) || self.mode.is_still(policy)
    }
}

/// How waiting ended.
pub(super) enum Waited<E> {
    Over(E),
    /// The Job goes on, but nobody would hear of its end.
    Lost(JobError),
}

impl Shared {
    /// A busy poll found nothing: after a budget the CPU is given up once.
    pub(super) fn missed(&self) {
        let misses = self.misses.load(Ordering::Relaxed) + 1;
        if misses < MISSES {
            self.misses.store(misses, Ordering::Relaxed);
        } else {
            self.misses.store(MISSES - FORGIVEN, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }
}
