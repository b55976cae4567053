//! The only way in which the crate takes a lock: a poisoned mutex is taken like any other.

use std::sync::{self, LockResult, TryLockResult};

/// A mutex that [`lock`] takes: std's, `BriefMutex`, and loom's in a model. Code that no model runs
/// keeps std's mutex under loom as well.
pub(crate) trait Lock {
    type Guard<'a>
    where
        Self: 'a;

    fn acquire(&self) -> LockResult<Self::Guard<'_>>;

    fn try_acquire(&self) -> TryLockResult<Self::Guard<'_>>;
}

impl<T> Lock for sync::Mutex<T> {
    type Guard<'a>
        = sync::MutexGuard<'a, T>
    where
        T: 'a;

    #[inline(always)]
    fn acquire(&self) -> LockResult<sync::MutexGuard<'_, T>> {
        self.lock()
    }

    #[inline(always)]
    fn try_acquire(&self) -> TryLockResult<sync::MutexGuard<'_, T>> {
        self.try_lock()
    }
}

#[cfg(tokio_doca_loom)]
impl<T> Lock for ::loom::sync::Mutex<T> {
    type Guard<'a>
        = ::loom::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn acquire(&self) -> LockResult<::loom::sync::MutexGuard<'_, T>> {
        self.lock()
    }

    fn try_acquire(&self) -> TryLockResult<::loom::sync::MutexGuard<'_, T>> {
        self.try_lock()
    }
}

/// Locks a mutex if it is free, as [`lock`] does.
#[inline]
pub(crate) fn try_lock<M: Lock>(mutex: &M) -> Option<M::Guard<'_>> {
    match mutex.try_acquire() {
        Ok(guard) => Some(guard),
        Err(sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(sync::TryLockError::WouldBlock) => None,
    }
}

/// Locks a mutex even if a thread has panicked while it held the lock. No code of the application
/// runs under any of the crate's locks, and a panic of the crate's own code leaves nothing half
/// done.
#[inline]
pub(crate) fn lock<M: Lock>(mutex: &M) -> M::Guard<'_> {
    mutex
        .acquire()
        .unwrap_or_else(sync::PoisonError::into_inner)
}
