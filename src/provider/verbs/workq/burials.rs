//! Who waits until queue pairs are gone that other threads destroy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::sync::lock;

#[derive(Default)]
pub(super) struct Burials {
    /// Threads that destroy one.
    threads: AtomicUsize,
    changed: Mutex<()>,
    bell: Condvar,
}

/// A thread has what it destroys, until this is dropped.
pub(super) struct UnderWay(Arc<Burials>);

impl Burials {
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.threads.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(self))
    }

    /// Whether a thread has something.
    pub(super) fn any(&self) -> bool {
        self.threads.load(Ordering::SeqCst) > 0
    }

    /// Waits while this is so, which [`tell`](Burials::tell) ends.
    pub(super) fn wait_while(&self, mut is_so: impl FnMut() -> bool) {
        let waited = self.bell.wait_while(lock(&self.changed), |()| is_so());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// One has ended. Pairs with the lock of those who look and then wait: the caller has none that
    /// they take.
    pub(super) fn tell(&self) {
        drop(lock(&self.changed));
        self.bell.notify_all();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
        self.0.tell();
    }
}
