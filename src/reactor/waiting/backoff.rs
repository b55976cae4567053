//! [`Backoff`], the pauses of a future between its polls, kept by the timer of its WorkQ. Each
//! pause ends at a multiple of its length, so that many pauses end at the same time.
#![expect(unsafe_code, reason = "is queued in a line, and pins its nodes")]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project::pin_project;

use crate::error::JobError;
use crate::reactor::spin::Spin;
use crate::reactor::workq::{Shared, WorkQ};
use crate::sync::WaitNode;

/// The first pause and the longest one, in nanoseconds: 131 us and 8.4 ms.
const FIRST: u64 = 1 << 17;
const LONGEST: u64 = 1 << 23;

/// The pauses of a future between polls. Each is twice as long as the one before, and at most
/// `LONGEST`.
#[pin_project]
pub struct Backoff {
    // Dropped before `workq`, which keeps alive the list that the node is in.
    #[pin]
    node: WaitNode,
    workq: WorkQ,
    /// When the current pause ends; `None` if there is no pause.
    until: Option<u64>,
    /// The length of the last pause.
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

    /// Returns a `Backoff` whose first pause has begun and ends after `time`. In busy mode the
    /// pause ends at once.
    pub(crate) fn after(workq: WorkQ, time: Duration) -> Backoff {
        let until = workq.0.now() + time.as_nanos() as u64;
        Backoff {
            until: Some(until),
            ..Backoff::new(workq)
        }
    }

    /// Returns a `Backoff` whose first pause has begun and ends at `until`.
    #[cfg(all(test, tokio_doca_loom))]
    pub(in crate::reactor) fn until(workq: WorkQ, until: u64) -> Backoff {
        Backoff {
            until: Some(until),
            ..Backoff::new(workq)
        }
    }

    /// Continues after a poll that found nothing: continues the current pause, or begins another
    /// one if it has ended. While the mode is to spin, wakes the task at once instead.
    ///
    /// # Errors
    ///
    /// As for [`Backoff::poll`].
    pub(crate) fn resume(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Result<(), JobError> {
        if self.as_mut().poll(cx)?.is_pending() {
            return Ok(());
        }
        self.as_mut().begin();
        if self.poll(cx)?.is_ready() {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    /// Begins a pause before the next poll, unless the mode spins.
    fn begin(self: Pin<&mut Self>) {
        let this = self.project();
        let shared = &this.workq.0;
        let policy = shared.policy();
        // The future does not share the WorkQ's spin: no queue reports what it waits for, so other
        // futures gain nothing by its polls.
        let mut is_over = || this.spin.is_time_over(policy.spin(), || shared.now());
        if policy.is_busy() || !(policy.is_event() || is_over()) {
            return;
        }
        *this.pause = (*this.pause * 2).clamp(FIRST, LONGEST);
        *this.until = Some((shared.now() / *this.pause + 1) * *this.pause);
    }

    /// Sleeps until the pause has ended. Returns at once if no pause was begun.
    ///
    /// # Errors
    ///
    /// `BadState` if no runtime or loop would notice the end of the pause; the error of the system
    /// if it has no timer.
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
        // `register` comes before the future is in line, since it panics in a runtime without I/O.
        shared.events.register(shared)?;
        enqueue(shared, node, cx.waker());
        shared.timer.signal_at(&**shared, until)?;
        shared.turn_if_asked();
        // Registered once more: the timer may be new, and this runtime may not be registered with
        // the handle that has it.
        shared.events.register(shared)?;
        if !shared.is_still(policy) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Puts a future in line for the timer of its WorkQ.
fn enqueue(shared: &Shared, node: Pin<&WaitNode>, waker: &Waker) {
    // SAFETY: Shared is in an Arc, of which the `Backoff` that has the node owns a count: its node
    // is dropped first, by the order of its fields, and is in this line alone.
    unsafe { shared.timer.line.enqueue(node, waker) };
}
