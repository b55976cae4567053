//! The pause of a future between two looks, by the timer of its WorkQ. It ends at a multiple of its
//! length, so that many naps share their ends.
#![expect(unsafe_code, reason = "stands in a line, and pins its nodes")]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project::pin_project;

use crate::error::JobError;
use crate::reactor::spin::Spin;
use crate::reactor::workq::{Shared, WorkQ};
use crate::sync::WaitNode;

/// The first pause of a nap, and the longest, in nanoseconds: 131 us and 8.4 ms.
const FIRST: u64 = 1 << 17;
const LONGEST: u64 = 1 << 23;

/// The pauses of a future between looks, each twice as long as the one before.
#[pin_project]
pub struct Backoff {
    // Dropped before the handle that keeps its list.
    #[pin]
    node: WaitNode,
    workq: WorkQ,
    /// When it ends, while it continues.
    until: Option<u64>,
    /// How long the last one was.
    pause: u64,
    spin: Spin,
}

impl Backoff {
    pub(crate) fn new(workq: WorkQ) -> Backoff {
        Backoff {
            node: WaitNode::new(),
            workq,
            until: None,
            pause: 0,
            spin: Spin::default(),
        }
    }

    /// One that has begun, and ends after this time; at once while the mode is busy-polling.
    pub(crate) fn after(workq: WorkQ, time: Duration) -> Backoff {
        let until = workq.0.now() + time.as_nanos() as u64;
        Backoff {
            until: Some(until),
            ..Backoff::new(workq)
        }
    }

    /// One that has begun, and ends then.
    #[cfg(all(test, tokio_doca_loom))]
    pub(in crate::reactor) fn until(workq: WorkQ, until: u64) -> Backoff {
        Backoff {
            until: Some(until),
            ..Backoff::new(workq)
        }
    }

    /// A look found nothing: sleeps on, or begins another pause if that has passed. While the mode
    /// spins the task is woken at once.
    ///
    /// # Errors
    ///
    /// As for [`Backoff::poll`].
    pub(crate) fn go_on(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Result<(), JobError> {
        if self.as_mut().poll(cx)?.is_pending() {
            return Ok(());
        }
        self.as_mut().begin();
        if self.poll(cx)?.is_ready() {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    /// The next look is to come after a while. Not while the mode spins.
    fn begin(self: Pin<&mut Self>) {
        let this = self.project();
        let shared = &this.workq.0;
        let policy = shared.policy();
        // The spin is its own: what it waits for no queue tells, so that others gain nothing by it.
        let mut is_over = || this.spin.is_time_over(policy.spin(), || shared.now());
        if policy.is_busy() || !(policy.is_event() || is_over()) {
            return;
        }
        *this.pause = (*this.pause * 2).clamp(FIRST, LONGEST);
        *this.until = Some((shared.now() / *this.pause + 1) * *this.pause);
    }

    /// Sleeps until it has completed; at once if none was begun.
    ///
    /// # Errors
    ///
    /// `BadState` where nobody would hear of its end; what the system says if there is no timer.
    pub(crate) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let this = self.project();
        let (shared, node) = (&this.workq.0, this.node.as_ref());
        let policy = shared.policy();
        let Some(until) = *this.until else {
            return Poll::Ready(Ok(()));
        };
        if policy.is_busy() || shared.now() >= until {
            *this.until = None;
            shared.timer.line.leave(node);
            return Poll::Ready(Ok(()));
        }
        // First: it panics in a runtime without I/O.
        shared.events.register(shared)?;
        enqueue(shared, node, cx.waker());
        shared.timer.ring_at(&**shared, until)?;
        shared.turn_if_asked();
        // Once more: the timer may be new, and this runtime may not have heard of it.
        shared.events.register(shared)?;
        if !shared.is_still(policy) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// waits in line for the timer.
fn enqueue(shared: &Shared, node: Pin<&WaitNode>, waker: &Waker) {
    // SAFETY: Shared is in an Arc, of which the `Backoff` that has the node owns a count: its node
    // is dropped first, by the order of its fields, and stands in this line alone.
    unsafe { shared.timer.line.enqueue(node, waker) };
}
