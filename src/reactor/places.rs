//! Places of a table of its own, apart from the depth of the WorkQ, and the line of those who wait for one.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use super::mode::Spin;
use super::wait::{MISSES, Patience};
use super::workq::Attachment;
use crate::device::Completion;
use crate::error::JobError;
use crate::mem::Writing;
use crate::sync::atomic::fence;
use crate::sync::{WaitNode, Waiters};

/// A table of places: receives, or waits.
pub(super) trait Places: Send + Sync {
    /// The upper part of its Tokens.
    fn number(&self) -> u32;

    /// How many places were taken, ever.
    fn posted(&self) -> u64;

    /// Who waits for a place.
    fn line(&self) -> &Waiters;

    /// How many places were taken by those in line.
    fn taken(&self) -> &AtomicU32;

    /// Places that could be had.
    fn available(&self) -> usize;

    /// The device says that what had a place is over. `None`: it names none that is taken.
    fn complete(&self, completion: &Completion) -> Option<Ended>;

    /// Makes all Ops that have a place, or wait for one, poll again.
    fn nudge(&self);
}

/// What is to be done once no lock is held.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) waker: Option<Waker>,
    /// Memory that goes back.
    pub(super) lease: Option<Writing>,
    /// A place is free.
    pub(super) freed: bool,
}

/// Waits for a place, in order. `post` takes one, if there is one; `enqueue` stands in the line of these places.
#[allow(clippy::too_many_arguments, reason = "parts of one future")]
pub(super) fn poll_place<T>(
    at: &Attachment,
    places: &impl Places,
    node: Pin<&WaitNode>,
    patience: &mut Patience,
    spin: &mut Spin,
    cx: &mut Context<'_>,
    enqueue: impl Fn(&mut Context<'_>),
    post: impl Fn() -> Result<Option<T>, JobError>,
) -> Poll<Result<T, JobError>> {
    let (shared, line) = (&at.shared, places.line());
    let policy = shared.mode.load();
    let leave = || {
        if node.is_linked() {
            line.leave(node);
            shared.places_on(places, false);
        }
    };
    loop {
        if let Err(error) = at.check_open() {
            leave();
            return Poll::Ready(Err(error));
        }
        let first = match node.is_linked() {
            true => line.is_notified(node),
            false => line.is_empty(),
        };
        if first && places.available() > 0 {
            let posted = post().transpose();
            if let Some(posted) = posted {
                places.taken().fetch_add(1, Ordering::Relaxed);
                leave();
                return Poll::Ready(posted);
            }
        }
        enqueue(cx);
        // Look once more.
        if places.available() > 0 {
            shared.places_on(places, false);
            if line.is_notified(node) {
                continue;
            }
            // There is one, and somebody was told of it: who is polled overtakes who is not, as for Slots.
            let limit = if policy.is_event() { 1 } else { MISSES };
            if patience.is_over(places.taken().load(Ordering::Relaxed), limit) {
                line.notify_self(node);
                continue;
            }
            cx.waker().wake_by_ref();
        }
        // After it can be found in line: pairs with `Shutdown`.
        fence(Ordering::SeqCst);
        if !at.is_closed() {
            break;
        }
    }
    // The ends of others make room, and they look for them themselves, or sleep and have armed.
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
        if !shared.mode.is_still(policy) {
            cx.waker().wake_by_ref();
        }
    }
    Poll::Pending
}
