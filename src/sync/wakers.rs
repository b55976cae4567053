//! Wakers, which are code of the application: they are woken and dropped outside of locks, and
//! their panics end here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use arrayvec::ArrayVec;

/// How many wakers are carried out of a lock at once.
pub(super) const BATCH: usize = 32;

/// Wakers to be woken once no lock is held.
#[derive(Default)]
pub(super) struct WakeBatch {
    wakers: ArrayVec<Waker, BATCH>,
}

impl WakeBatch {
    /// Returns how many it wakes: fewer than were to be notified if they do not fit.
    pub(super) fn len(&self) -> usize {
        self.wakers.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.wakers.is_full()
    }

    /// There must be room for it.
    pub(super) fn put(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Wakes them all. A waker that panics stops nobody else: the panic ends here, with a log line.
    pub(super) fn wake(self) {
        self.wakers.into_iter().for_each(wake);
    }
}

/// Wakes. A panic of the application's waker ends here.
pub(crate) fn wake(waker: Waker) {
    contain("a waker", || waker.wake());
}

/// Drops what may hold a waker of the application's. A panic of its drop ends here.
pub(crate) fn discard<T>(waker: T) {
    contain("the drop of a waker", || drop(waker));
}

/// Runs code of the application's, which `what` names. A panic ends here, with a log line, and so
/// does a panic of what subscribes to the log.
pub(crate) fn contain(what: &str, code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        // It is the application's as well, and may panic when it is dropped.
        std::mem::forget(payload);
        log(|| tracing::error!("{what} panicked; the panic was contained"));
    }
}

/// Writes to the log. A panic of a subscriber ends here.
#[cold]
pub(crate) fn log(write: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(write)) {
        std::mem::forget(payload);
    }
}
