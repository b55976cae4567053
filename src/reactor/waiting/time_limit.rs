//! How long a job may take before its future gives it up: as long as the operation says, or as its
//! WorkQ says.
//!
//! The time begins when the job is submitted, or stands in line for a Slot. What is finished inline
//! has no limit, and pays nothing for it. The future itself looks at the time whenever it is polled
//! and finds nothing. The timer of the WorkQ has it polled once the time is over: in flight, its
//! node stands in the timer's line until the job ends or is given up; in line for a Slot, where the
//! node is taken, the timer wakes that line.

use std::pin::Pin;
use std::task::Context;

use crate::reactor::mode::TimeLimit;
use crate::reactor::workq::{Attachment, Shared};
use crate::sync::WaitNode;
use crate::sync::atomic::Ordering;

impl Shared {
    /// The time begins.
    #[inline(always)]
    pub(in crate::reactor) fn begin_limit(&self, limit: TimeLimit) -> TimeLimit {
        let limit = match limit {
            TimeLimit::OF_WORKQ => self.time_limit,
            limit => limit,
        };
        limit.begin(|| self.now())
    }
}

impl Attachment {
    /// Whether the time is over. If not, the task is woken then. The caller stands in line for a
    /// Slot, or `node` is in no line. `spins` says that its spin is not over: in Hybrid mode it has
    /// woken itself.
    pub(in crate::reactor) fn is_over(
        &self,
        limit: TimeLimit,
        is_in_line: bool,
        spins: bool,
        node: Pin<&WaitNode>,
        cx: &mut Context<'_>,
    ) -> bool {
        let shared = &self.shared;
        let end = limit.end();
        if shared.now() >= end {
            return true;
        }
        let policy = shared.policy();
        if policy.is_busy() || spins && !policy.is_event() {
            return false;
        }
        match is_in_line {
            true => shared.limited_in_line.store(true, Ordering::SeqCst),
            false => shared.enqueue_timed(node, cx.waker()),
        }
        let timed = shared.timer.ring_at(&**shared, end);
        shared.turn_if_asked();
        // At last: the timer may be new, and this runtime may not have heard of it.
        let heard = timed.and_then(|()| shared.events.register(shared));
        if heard.is_err() || !shared.is_still(policy) {
            cx.waker().wake_by_ref();
        }
        false
    }
}
