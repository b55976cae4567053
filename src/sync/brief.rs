//! A mutex that is unlocked by a store.
//!
//! std's mutex is unlocked by a locked instruction, which finds out whether a thread sleeps. Here
//! no thread sleeps until it is woken: a thread that finds the mutex locked checks again and again,
//! after a while every 50 us. So it is for data that most often one thread locks, several times for
//! each job, and that is not locked during a call of a driver that may take long.
#![expect(unsafe_code, reason = "the lock says who reaches the content")]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError, TryLockResult};

use super::atomic::{AtomicBool, Ordering};
use super::lock::Lock;

/// The mutex. [`lock`](super::lock) locks it. A panic unlocks it.
pub(crate) struct BriefMutex<T> {
    taken: AtomicBool,
    content: UnsafeCell<T>,
}

// SAFETY: there is one `BriefGuard` at a time, and Release and Acquire order one after the other.
unsafe impl<T: Send> Sync for BriefMutex<T> {}

/// A lock on the content. A guard may be shared between threads only if the content may.
pub(crate) struct BriefGuard<'a, T>(&'a BriefMutex<T>, PhantomData<&'a mut T>);

impl<T> BriefMutex<T> {
    pub(crate) fn new(content: T) -> BriefMutex<T> {
        BriefMutex {
            taken: AtomicBool::new(false),
            content: UnsafeCell::new(content),
        }
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.content.get_mut()
    }

    #[inline(always)]
    fn take(&self) -> Option<BriefGuard<'_, T>> {
        let free = self
            .taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        free.is_ok().then(|| BriefGuard(self, PhantomData))
    }

    #[cold]
    fn wait(&self) -> BriefGuard<'_, T> {
        let mut looks = 0_u32;
        loop {
            looks = looks.saturating_add(1);
            match looks {
                #[cfg(tokio_doca_loom)]
                _ => ::loom::thread::yield_now(),
                #[cfg(not(tokio_doca_loom))]
                ..100 => std::hint::spin_loop(),
                #[cfg(not(tokio_doca_loom))]
                100..110 => std::thread::yield_now(),
                // The thread that has the lock may need this CPU, or waits for the kernel.
                #[cfg(not(tokio_doca_loom))]
                _ => std::thread::sleep(std::time::Duration::from_micros(50)),
            }
            if !self.taken.load(Ordering::Relaxed)
                && let Some(guard) = self.take()
            {
                return guard;
            }
        }
    }
}

impl<T> Lock for BriefMutex<T> {
    type Guard<'a>
        = BriefGuard<'a, T>
    where
        T: 'a;

    #[inline(always)]
    fn acquire(&self) -> LockResult<BriefGuard<'_, T>> {
        Ok(self.take().unwrap_or_else(|| self.wait()))
    }

    #[inline(always)]
    fn try_acquire(&self) -> TryLockResult<BriefGuard<'_, T>> {
        self.take().ok_or(TryLockError::WouldBlock)
    }
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*self.0.content.get() }
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.0.content.get() }
    }
}

impl<T> Drop for BriefGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;
    use crate::sync::{lock, try_lock};

    #[test]
    fn many_threads_have_it_one_after_the_other() {
        let sum = Arc::new(BriefMutex::new([0_u64; 2]));
        let thread = |_| {
            let sum = Arc::clone(&sum);
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    let mut both = lock(&*sum);
                    both[0] += 1;
                    both[1] += 1;
                    assert_eq!(both[0], both[1]);
                }
            })
        };
        let threads: Vec<_> = (0..4).map(thread).collect();
        threads.into_iter().for_each(|it| it.join().unwrap());
        assert_eq!(lock(&*sum)[0], 80_000);
    }

    #[test]
    fn it_is_refused_while_it_is_taken_and_a_panic_gives_it_back() {
        let mutex = BriefMutex::new(7);
        let guard = lock(&mutex);
        assert!(try_lock(&mutex).is_none());
        drop(guard);
        let panics = AssertUnwindSafe(|| {
            let _guard = lock(&mutex);
            panic!("under the lock");
        });
        assert!(catch_unwind(panics).is_err());
        assert_eq!(try_lock(&mutex).as_deref(), Some(&7));
    }
}

/// A loom model of the mutex, and a twin that must fail.
#[cfg(all(test, tokio_doca_loom))]
mod loom {
    use std::sync::Arc;

    use super::*;
    use crate::sync::lock;
    use crate::sync::loom::{TrackedCell, check, mutant, spawn};

    fn two_threads(give_back: fn(BriefGuard<'_, TrackedCell>)) {
        check(3, move || {
            let mutex = Arc::new(BriefMutex::new(TrackedCell::new()));
            let other = Arc::clone(&mutex);
            let other = spawn(move || {
                let guard = lock(&*other);
                guard.write();
                give_back(guard);
            });
            let guard = lock(&*mutex);
            guard.write();
            give_back(guard);
            other.join().expect("it has not panicked");
        });
    }

    #[test]
    fn one_thread_has_it_at_a_time() {
        two_threads(|guard| drop(guard));
    }

    #[test]
    fn mutant_that_gives_it_back_relaxed_is_found() {
        mutant("Causality violation", || {
            two_threads(|guard| {
                let guard = std::mem::ManuallyDrop::new(guard);
                guard.0.taken.store(false, Ordering::Relaxed);
            });
        });
    }
}
