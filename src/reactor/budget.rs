//! What Jobs that are finished inline spend of Tokio's cooperative budget.
//!
//! A task that always finds its answer ready must not starve the others. Tokio's unit is one
//! operation on a socket or a channel; a small inline copy is many times as cheap, and asking for a
//! unit costs as much as the copy. So a thread asks for one unit for eight small copies, or for one
//! of 64 KiB: an endless loop of copies yields after 1,024 small or 128 large ones.
//!
//! Copies and hashes ask before they begin ([`proceed`]). What must be submitted in the order in
//! which it is polled first (messages, receives, jobs of a sync event), or has waited in line, is
//! charged afterwards ([`finished`]), and its outcome is kept if the budget is spent.

use std::cell::Cell;
use std::task::{Context, Poll, ready};

/// What one unit of Tokio's budget buys.
const CREDIT: isize = 8;
/// So many bytes cost as much as a Job.
const BYTES: usize = 8 << 10;

// Const and without a destructor: it allocates nothing and outlives nothing.
thread_local!(static LEFT: Cell<isize> = const { Cell::new(0) });

/// Continues, or yields: the waker is woken at once then.
#[inline(always)]
pub(crate) fn proceed(cx: &mut Context<'_>) -> Poll<()> {
    if LEFT.get() > 0 {
        Poll::Ready(())
    } else {
        buy(cx)
    }
}

/// A Job was finished inline.
#[inline(always)]
pub(crate) fn spent(bytes: usize) {
    LEFT.set(LEFT.get() - 1 - (bytes / BYTES) as isize);
}

/// A Job has completed that was not charged for before. If this is Pending, the waker has been
/// woken, and the outcome is kept for the next poll.
#[inline(always)]
pub(crate) fn finished(cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
    spent(bytes);
    proceed(cx)
}

/// Several Jobs have completed that were not charged for before. If this is Pending, the waker has
/// been woken.
pub(crate) fn finished_all(cx: &mut Context<'_>, jobs: usize, bytes: usize) -> Poll<()> {
    let cost = (jobs + bytes / BYTES) as isize;
    for _ in 0..cost / CREDIT {
        ready!(buy(cx));
    }
    LEFT.set(LEFT.get() - cost % CREDIT);
    proceed(cx)
}

#[cold]
fn buy(cx: &mut Context<'_>) -> Poll<()> {
    ready!(tokio::task::coop::poll_proceed(cx)).made_progress();
    LEFT.set(CREDIT);
    Poll::Ready(())
}
