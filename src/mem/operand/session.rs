//! The state of a hash session, and the Lease on that state.
//!
//! A device may be using the state: a job in flight has the Lease, so that neither the next job nor
//! a copy touches the state meanwhile. A refused Lease is `InUse`.
#![expect(unsafe_code, reason = "the holder of the Lease has the state")]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Algorithm, Hasher, SessionRef};
use crate::error::{JobError, Reason};
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Session {
    algorithm: Algorithm,
    leased: AtomicBool,
    state: UnsafeCell<Hasher>,
}

// SAFETY: only the holder of the Lease reaches the state, and the Lease has one holder at a time.
unsafe impl Sync for Session {}

impl Session {
    pub(crate) fn new(algorithm: Algorithm) -> Arc<Session> {
        Arc::new(Session {
            algorithm,
            leased: AtomicBool::new(false),
            state: UnsafeCell::new(Hasher::new(algorithm)),
        })
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Takes the Lease on the state.
    pub(crate) fn lease(self: &Arc<Session>) -> Result<SessionLease, JobError> {
        // Acquire: pairs with the Release of the last Lease, in `drop`.
        let leased =
            self.leased
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        match leased {
            Ok(_) => Ok(SessionLease(Arc::clone(self))),
            Err(_) => Err(JobError::of(Reason::SessionInUse)),
        }
    }
}

/// The right to a session's state, and a reference to it.
pub(crate) struct SessionLease(Arc<Session>);

impl SessionLease {
    /// Returns the reference to the state that the device is lent.
    pub(crate) fn for_device(&self) -> SessionRef {
        self.0.state.with_mut(|state| {
            // SAFETY: the state of an Arc's content is at no null address.
            let state = unsafe { NonNull::new_unchecked(state) };
            // SAFETY: this is the Lease, which goes with the Job and keeps the state.
            unsafe { SessionRef::new(state) }
        })
    }

    /// Returns a copy of the state after what was hashed so far.
    pub(crate) fn get(&mut self) -> Hasher {
        self.0.state.with(|state| {
            // SAFETY: this is the Lease, and `&mut self` makes this its only use: none is lent to a
            // device.
            unsafe { &*state }.clone()
        })
    }

    /// Replaces the state, so that the next part continues from `hasher`.
    pub(crate) fn set(&mut self, hasher: Hasher) {
        self.0.state.with_mut(|state| {
            // SAFETY: as above.
            unsafe { *state = hasher };
        });
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        self.0.leased.store(false, Ordering::Release);
    }
}
