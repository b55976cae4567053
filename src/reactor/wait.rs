//! How an Op waits: in line for a Slot, for an event, or busily.
//!
//! In event mode a poll that finds nothing stores the waker, makes sure that this runtime is registered, arms, looks
//! once more, and only then sleeps. In busy mode it looks a few dozen times, wakes itself, and gives the CPU up after
//! a budget: a spinning engine may share it. In Hybrid mode it does the one for a bounded time, and then the other.
//!
//! The mode may change meanwhile: who is about to sleep asks whether it did.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use super::flight::Prepared;
use super::held::Outcome;
use super::mode::{Policy, Spin};
use super::slot::Slot;
use super::target::Target;
use super::workq::{Attachment, Shared};
use crate::device::Token;
use crate::error::{ErrorKind, JobError, Reason};
use crate::sync::WaitNode;
use crate::sync::atomic::fence;

/// Looks in one busy poll. Without `pause`: one costs as much as eighty loads.
pub(super) const LOOKS: usize = if cfg!(tokio_doca_loom) { 1 } else { 32 };
/// Busy polls that find nothing before the CPU is given up: about 30 us.
pub(super) const MISSES: u32 = 256;
/// And how many of them are forgiven then.
const FORGIVEN: u32 = 64;

/// What one in line knows of a Slot that is free, and that others were told of.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// How many had been taken out of the line when it was seen first.
    taken: u32,
    /// Polls since, without another one taken.
    polls: u32,
}

impl Patience {
    /// Whether whoever was told is not polled, as far as can be known: nothing was taken for so many polls.
    pub(super) fn is_over(&mut self, taken: u32, limit: u32) -> bool {
        if taken != self.taken {
            *self = Patience { taken, polls: 0 };
        }
        self.polls += 1;
        self.polls > limit
    }
}

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
    /// Waits for a Slot; `prepare` takes the Leases of the Job once there is one, and says who is to be told of its end.
    pub(super) fn poll_queued(
        &self,
        node: Pin<&WaitNode>,
        patience: &mut Patience,
        spin: &mut Spin,
        cx: &mut Context<'_>,
        prepare: &impl Fn() -> Result<(Prepared, Option<Target>), JobError>,
    ) -> Poll<Result<Token, JobError>> {
        let shared = &*self.shared;
        let policy = shared.mode.load();
        let leave = || {
            if node.is_linked() {
                shared.waiters.leave(node);
                shared.pass_on(false);
            }
        };
        loop {
            if let Err(error) = self.check_open() {
                leave();
                return Poll::Ready(Err(error));
            }
            let first = match node.is_linked() {
                true => shared.waiters.is_notified(node),
                false => shared.waiters.is_empty(),
            };
            if first && let Some(index) = shared.core.table.free().take() {
                let launched = prepare()
                    .inspect_err(|_| self.give_back(index))
                    .and_then(|(prepared, target)| self.launch(index, prepared, target));
                match launched {
                    // The device is full, and not the WorkQ: the place in line is kept.
                    Err(error) if error.kind() == ErrorKind::Again => {}
                    launched => {
                        shared.taken.fetch_add(1, Ordering::Relaxed);
                        leave();
                        return Poll::Ready(launched);
                    }
                }
            }
            shared.enqueue(node, cx.waker());
            // Look once more.
            let full = shared.device_full.load(Ordering::SeqCst);
            if !full && shared.core.table.free().free() > 0 {
                shared.pass_on(false);
                if shared.waiters.is_notified(node) {
                    continue;
                }
                // There is one, and somebody was told of it. Who is polled overtakes who is not. In busy mode all are polled
                // in turn, and one of them may only have lost its CPU for a while.
                let limit = if policy.is_event() { 1 } else { MISSES };
                if patience.is_over(shared.taken.load(Ordering::Relaxed), limit) {
                    shared.waiters.notify_self(node);
                    continue;
                }
                cx.waker().wake_by_ref();
            }
            if self.is_closed() {
                continue;
            }
            break;
        }
        if policy.is_busy() || !(policy.is_event() || spin.is_over(policy, || shared.now())) {
            if shared.ready() {
                shared.turn();
            }
            shared.missed();
            cx.waker().wake_by_ref();
        } else {
            if let Err(error) = shared.events.register(&self.shared) {
                leave();
                return Poll::Ready(Err(error));
            }
            if shared.in_use() > 0 && shared.arm() | shared.ready() {
                shared.turn();
            }
            if !shared.mode.is_still(policy) {
                cx.waker().wake_by_ref();
            }
        }
        // The device was full. With nothing in flight no completion will say that it has room again: this one asks once
        // more, or, if it is dropped before, the next.
        if shared.device_full.load(Ordering::SeqCst) && !shared.core.table.any_in_flight() {
            shared.device_full.store(false, Ordering::SeqCst);
            shared.waiters.notify_self(node);
            cx.waker().wake_by_ref();
        }
        Poll::Pending
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
                if !shared.mode.is_still(policy) {
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
