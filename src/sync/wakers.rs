//! Wakers, which are user code: they are woken and dropped outside of locks, and a panic of theirs ends here.

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
    /// How many it wakes: fewer than were to be notified if they do not fit.
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

/// Wakes; a panic of the user's waker ends here.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

/// Does what wakes wakers of the user's; a panic of theirs ends here.
pub(crate) fn contain(wakes: impl FnOnce()) {
    let woken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wakes));
    if let Err(payload) = woken {
        tracing::error!("a waker panicked; the panic was contained");
        // It is user code as well, and may panic when it is dropped.
        std::mem::forget(payload);
    }
}

/// Drops what may hold a waker of the user's; a panic of that ends here.
pub(crate) fn discard<T>(waker: T) {
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(waker)));
    if let Err(payload) = dropped {
        tracing::error!("a waker panicked when it was dropped; the panic was contained");
        std::mem::forget(payload);
    }
}
