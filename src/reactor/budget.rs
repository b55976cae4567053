//! Charges jobs that finish inline to Tokio's cooperative budget.
//!
//! A task whose jobs are always ready must not starve other tasks. Tokio's unit is one operation on
//! a socket or a channel. A small inline copy is many times cheaper, and asking Tokio for a unit
//! costs as much as the copy. So a thread asks for one unit for eight small copies, or for 64 KiB:
//! an endless loop of copies yields after 1,024 small ones, or after some 8 MiB.
//!
//! Copies and hashes ask before they begin ([`proceed`]). Two kinds of jobs are charged afterwards
//! ([`finished`]), and their outcome is kept if the budget is spent: those that must be submitted
//! in the order in which they are polled first (jobs of an Rdma or of a sync event), and those that
//! have waited in line. A receive is posted first, and asks before it takes its message.

use std::cell::Cell;
use std::task::{Context, Poll, ready};

/// The number of jobs that one unit of Tokio's budget pays for.
const CREDIT: isize = 8;
/// The number of bytes that cost as much as a job.
const BYTES: usize = 8 << 10;

// The number of jobs that the last unit still pays for, or less than 0 if the last jobs cost more.
// It is const and has no destructor: it
// allocates nothing, and can be used while a thread ends.
thread_local!(static LEFT: Cell<isize> = const { Cell::new(0) });

/// Returns `Ready` if the task may continue. Returns `Pending` if the task shall yield: its waker
/// has been woken.
#[inline(always)]
pub(crate) fn proceed(cx: &mut Context<'_>) -> Poll<()> {
    if LEFT.get() > 0 {
        Poll::Ready(())
    } else {
        buy(cx)
    }
}

/// Charges for a job that was finished inline.
#[inline(always)]
pub(crate) fn spent(bytes: usize) {
    LEFT.set(LEFT.get() - 1 - (bytes / BYTES) as isize);
}

/// Charges for a job that has completed and was not charged for before. If the result is `Pending`,
/// the waker has been woken, and the caller keeps the outcome for the next poll.
#[inline(always)]
pub(crate) fn finished(cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
    spent(bytes);
    proceed(cx)
}

/// Charges for several jobs that have completed and were not charged for before. If the result is
/// `Pending`, the waker has been woken.
pub(crate) fn finished_all(cx: &mut Context<'_>, jobs: usize, bytes: usize) -> Poll<()> {
    LEFT.set(LEFT.get() - (jobs + bytes / BYTES) as isize);
    proceed(cx)
}

#[cold]
fn buy(cx: &mut Context<'_>) -> Poll<()> {
    while LEFT.get() <= 0 {
        ready!(tokio::task::coop::poll_proceed(cx)).made_progress();
        LEFT.set(LEFT.get() + CREDIT);
    }
    Poll::Ready(())
}
