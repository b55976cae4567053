//! Whether this thread polls for a loop of the caller's own.

use std::cell::Cell;
use std::ptr;

// Const and without a destructor: it allocates nothing and outlives nothing.
thread_local!(static DRIVEN: Cell<*const ()> = const { Cell::new(ptr::null()) });

/// Until it is dropped this thread polls for the loop of a WorkQ, which is named by its address.
/// What is polled then waits by event, whatever the mode: the loop hears of its end.
pub(super) struct Driven(*const ());

impl Driven {
    pub(super) fn enter<T>(workq: &T) -> Driven {
        Driven(DRIVEN.replace(ptr::from_ref(workq).cast()))
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        DRIVEN.set(self.0);
    }
}

/// Whether this thread polls for the loop of this WorkQ.
#[inline]
pub(super) fn is_driven<T>(workq: &T) -> bool {
    ptr::eq(DRIVEN.get(), ptr::from_ref(workq).cast())
}
