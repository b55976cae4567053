//! Standing in line: for a Slot of the WorkQ, or for a place of a table of its own.
//!
//! Both lines keep ADR 0004. A waiter that was notified owns nothing: it takes what it waits for when it is polled. A
//! waiter that is not polled stops nobody:
//!
//! - As many are notified as there is room for, less those that were notified before and have taken nothing.
//! - If there is room and others are left, a *turn* is rung for (`Shared::rung`). That turn does not count those that were
//!   notified before. So each turn notifies some more, until all are notified.
//! - In busy mode nobody hears a ring. There a waiter that is polled, and finds room that others were notified of,
//!   overtakes them after a number of such polls ([`Waiters::overtake`]).
//!
//! Messages and other jobs of one connection or sync event, and the receives of one connection, are
//! members of an [`Order`](crate::sync::Order): they take what they wait for in the order in which
//! they came into the line.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::full::Refused;
use super::mode::Spin;
use super::places::{Places, Wanted};
use super::shared::{Attachment, Shared};
use super::wait::MISSES;
use crate::error::JobError;
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{Turn, WaitNode, Waiters};

/// The Slots.
impl Wanted for Shared {
    fn line(&self) -> &Waiters {
        &self.waiters
    }

    fn available(&self) -> usize {
        match self.pause.is_on() {
            true => 0,
            false => self.core.table.free().free(),
        }
    }
}

impl Attachment {
    /// Waits in line and takes what `wanted` has. `enqueue` stands in that line; `take` takes, and returns `None` if there is
    /// nothing.
    pub(super) fn poll_in_line<'a, T>(
        &self,
        wanted: &impl Wanted,
        node: Pin<&WaitNode>,
        spin: &mut Spin,
        cx: &mut Context<'_>,
        enqueue: impl Fn(&Waker),
        take: impl Fn() -> Result<Option<T>, Refused<'a>>,
    ) -> Poll<Result<T, JobError>> {
        let (shared, line) = (&self.shared, wanted.line());
        let policy = shared.policy();
        let leave = || {
            if node.is_linked() {
                line.leave(node);
                shared.tell(wanted, false);
            }
        };
        loop {
            if let Err(error) = self.check_open() {
                leave();
                return Poll::Ready(Err(error));
            }
            let turn = match node.is_linked() {
                true => line.turn(node),
                false if line.is_empty() => Turn::Take,
                false => Turn::Wait,
            };
            let taken = match turn {
                Turn::Take => take(),
                Turn::Wait => Ok(None),
                Turn::Hold => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            let refused = match taken {
                Ok(None) => None,
                // The WorkQ has room, and the device has not: the place in line is kept.
                Err(Refused::Full(full)) => Some(full),
                Ok(Some(taken)) => {
                    leave();
                    return Poll::Ready(Ok(taken));
                }
                Err(Refused::Error(error)) => {
                    leave();
                    return Poll::Ready(Err(error));
                }
            };
            enqueue(cx.waker());
            // Look once more.
            if refused.is_some_and(|full| full.stay()) {
                line.notify_self(node);
                continue;
            }
            shared.resume_if_due();
            if wanted.available() > 0 {
                shared.tell(wanted, false);
                if line.is_notified(node) || policy.is_busy() && line.overtake(node, MISSES) {
                    continue;
                }
            }
            // After it can be found in line: pairs with `Shutdown`.
            fence(Ordering::SeqCst);
            if !self.is_closed() {
                break;
            }
        }
        if policy.is_busy() || !(policy.is_event() || spin.is_over(policy, || shared.now())) {
            if shared.ready() {
                shared.turn();
            }
            shared.missed();
            cx.waker().wake_by_ref();
        } else {
            if let Err(error) = shared.events.register(shared) {
                leave();
                return Poll::Ready(Err(error));
            }
            // The end of any job may be what it waits for.
            if shared.in_use() > 0 && shared.arm() | shared.ready() {
                shared.turn();
            }
            if !shared.is_still(policy) || shared.pause.is_unheard() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

impl Shared {
    /// Notifies as many in line as there is room for. With `overtake` those that were notified before, and have taken
    /// nothing, do not count. If some are left, rings once for another turn.
    #[inline]
    pub(super) fn tell(&self, wanted: &(impl Wanted + ?Sized), overtake: bool) {
        let line = wanted.line();
        if line.is_empty() {
            return;
        }
        let room = wanted.available();
        let mut left = 0;
        line.notify_and_wake(|who| {
            let told = if overtake { 0 } else { who.notified };
            let now = room.saturating_sub(told).min(who.waiting);
            left = who.waiting - now;
            now
        });
        // What is posted waits by event in every mode.
        let heard = !self.mode.load().is_busy() || self.own_loop.entries().is_some();
        let stuck = room > 0 && left > 0 && heard;
        if stuck && !self.rung.swap(true, Ordering::SeqCst) {
            self.events.ring();
        }
    }

    /// Whether `tell` has rung for a turn that nobody has done.
    #[inline]
    pub(super) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }

    /// Does the turn that `tell` rang for, if it has. After the look, so that a ring is not lost with
    /// a look in which a provider panics.
    #[inline]
    pub(super) fn answer_ring(&self) {
        if self.is_rung() && self.rung.swap(false, Ordering::SeqCst) {
            self.overtake();
        }
    }

    #[cold]
    fn overtake(&self) {
        self.tell(self, true);
        let overtake = |places: &dyn Places, _: Option<&_>| self.tell(places, true);
        self.core.registry.each(overtake);
    }
}
