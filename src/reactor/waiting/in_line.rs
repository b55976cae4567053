//! How an operation waits in line: for a slot of the WorkQ, or for an entry of another table.
//!
//! All lines follow ADR 0004. A waiter that was notified owns nothing yet: it takes its slot or
//! entry when it is polled. A waiter that is not polled does not hold up the others:
//!
//! - A turn notifies as many waiters as there are free slots or entries, less those that were
//!   notified before and have taken nothing (`notify.rs`).
//! - If slots or entries are free and other waiters are left, another turn is requested
//!   (`Shared::signalled`). That turn does not count the waiters that were notified before. So each
//!   turn notifies some more waiters, until all are notified.
//! - In busy mode no thread receives a signal. There a waiter that is polled, and finds free slots
//!   or entries that others were notified of, overtakes them after a number of such polls
//!   (`Waiters::overtake`).
//!
//! Messages and other jobs of one connection or sync event, and the receives of one connection, are
//! members of an [`Order`](crate::sync::Order): they take their slots or entries in the order in
//! which they joined the line.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::error::JobError;
use crate::reactor::entry_table::Wanted;
use crate::reactor::mode::{MISSES, Policy};
use crate::reactor::spin::Spin;
use crate::reactor::workq::{Attachment, LaunchError};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{Turn, WaitNode};

impl Attachment {
    /// Waits in the line of `wanted`, and takes a slot or an entry from it. `enqueue` puts the
    /// operation in that line. `take` takes a slot or entry, and returns `None` if none is free.
    pub(in crate::reactor) fn poll_in_line<'a, T>(
        &self,
        wanted: &impl Wanted,
        node: Pin<&WaitNode>,
        spin: &mut Spin,
        cx: &mut Context<'_>,
        enqueue: impl Fn(&Waker),
        take: impl Fn() -> Result<Option<T>, LaunchError<'a>>,
    ) -> Poll<Result<T, JobError>> {
        let (shared, line) = (&self.shared, wanted.line());
        let policy = shared.policy();
        let end = |ended| {
            if node.is_linked() {
                line.leave(node);
                shared.notify_line(wanted, false);
            }
            Poll::Ready(ended)
        };
        loop {
            if let Err(error) = self.check_open() {
                return end(Err(error));
            }
            let taken = match line.turn_of(node) {
                Turn::Take => take(),
                Turn::Wait => Ok(None),
                Turn::Hold => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            let refused = match taken {
                Ok(None) => None,
                // The WorkQ has a slot, but the device is full: the operation stays in line.
                Err(LaunchError::Full(full)) => Some(full),
                Ok(Some(taken)) => {
                    shared.spun(policy, spin);
                    return end(Ok(taken));
                }
                Err(LaunchError::Error(error)) => return end(Err(error)),
            };
            enqueue(cx.waker());
            // Check once more, now that the operation is in line.
            if refused.is_some_and(|full| full.stay()) {
                line.notify_self(node);
                continue;
            }
            shared.resume_if_due();
            if wanted.available() > 0 {
                shared.notify_line(wanted, false);
                if line.is_notified(node) || policy.is_busy() && line.overtake(node, MISSES) {
                    continue;
                }
            }
            // The WorkQ is checked after the operation was put in line: pairs with `Shutdown`.
            fence(Ordering::SeqCst);
            if !self.is_closed() {
                break;
            }
        }
        if let Err(error) = self.sleep_in_line(policy, spin, cx) {
            return end(Err(error));
        }
        Poll::Pending
    }

    /// Waits as `policy` says until the waiter is notified, or there may be a slot or entry to
    /// take.
    ///
    /// # Errors
    ///
    /// Fails if `Events::register` fails, since nothing would then wake this operation.
    fn sleep_in_line(
        &self,
        policy: Policy,
        spin: &mut Spin,
        cx: &mut Context<'_>,
    ) -> Result<(), JobError> {
        let shared = &self.shared;
        if shared.spins(policy, spin) {
            if shared.ready() {
                shared.turn();
            }
            shared.misses.add();
            cx.waker().wake_by_ref();
            return Ok(());
        }
        shared.events.register(shared)?;
        // The operation may wait for the completion of any job.
        if shared.in_use() > 0 && shared.arm() {
            shared.turn();
        }
        if !shared.is_still(policy) || shared.pause.is_without_event() {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }
}
