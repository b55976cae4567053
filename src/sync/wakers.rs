//! Wakers, which are code of the application: they are woken and dropped outside of locks, and
//! their panics are contained here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use arrayvec::ArrayVec;

use super::blocking::Threads;
use super::process::EachProcess;

/// The maximum number of wakers that are carried out of a lock at once.
pub(super) const BATCH: usize = 32;

/// Wakers to be woken once no lock is held.
#[derive(Default)]
pub(super) struct WakeBatch {
    wakers: ArrayVec<Waker, BATCH>,
}

impl WakeBatch {
    /// Returns the number of wakers. It is less than the number of nodes to notify if not all of
    /// them fit.
    pub(super) fn len(&self) -> usize {
        self.wakers.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.wakers.is_full()
    }

    /// Adds a waker. The batch must not be full.
    pub(super) fn put(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Wakes them all. A waker that panics does not stop the others: the panic is contained and
    /// logged.
    pub(super) fn wake(self) {
        self.wakers.into_iter().for_each(wake);
    }
}

/// Wakes a waker of the application, and contains its panic.
pub(crate) fn wake(waker: Waker) {
    contain("a waker", || waker.wake());
}

/// Drops a value that may hold a waker of the application, and contains a panic of its drop.
pub(crate) fn discard<T>(waker: T) {
    contain("the drop of a waker", || drop(waker));
}

/// Runs code of the application, which `what` names. Contains its panic, which is logged, and a
/// panic of a subscriber to the log.
pub(crate) fn contain(what: &str, code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        // The payload is the application's as well, and may panic when it is dropped.
        std::mem::forget(payload);
        log(|| tracing::error!("{what} panicked; the panic was contained"));
    }
}

/// Writes to the log on another thread, for a caller that may hold a lock. If no thread can be
/// started, the caller writes.
#[cold]
pub(crate) fn log_later(write: impl FnOnce() + Send + 'static) {
    // A thread for the log alone, which no blocking call delays.
    static THREAD: EachProcess<Threads> = EachProcess::new(|| Threads::new(1));
    if let Err((_, write)) = THREAD.get().run(Box::new(|| log(write))) {
        write();
    }
}

/// Writes to the log, and contains a panic of a subscriber. A caller that may hold a lock uses
/// `log_later` instead.
#[cold]
pub(crate) fn log(write: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(write)) {
        std::mem::forget(payload);
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;
    use crate::sync::lock;

    /// A subscriber may take the lock under which the error was found.
    #[test]
    fn what_is_found_under_a_lock_is_logged_without_it() {
        let (wrote, written) = mpsc::channel();
        let found = Arc::new(Mutex::new(0));
        let guard = lock(&*found);
        let again = Arc::clone(&found);
        log_later(move || wrote.send(*lock(&*again)).expect("the test waits for it"));
        drop(guard);
        assert_eq!(written.recv(), Ok(0));
    }
}
