//! What the code on this thread does for a WorkQ: it polls for the caller's own loop, or it is in
//! `WorkQ::block_on`. A WorkQ is named by its address.

use std::cell::Cell;
use std::ptr;
use std::thread::LocalKey;

type WorkQ = Cell<*const ()>;

// Const and without destructors: they allocate nothing and outlive nothing.
thread_local! {
    static IN_OWN_LOOP: WorkQ = const { Cell::new(ptr::null()) };
    static IN_BLOCK_ON: WorkQ = const { Cell::new(ptr::null()) };
}

/// Marks that this thread does something for a WorkQ, until it is dropped. A call inside it may do
/// the same for another WorkQ.
pub(in crate::reactor) struct Doing {
    what: &'static LocalKey<WorkQ>,
    before: *const (),
}

impl Doing {
    fn enter<T>(what: &'static LocalKey<WorkQ>, workq: &T) -> Doing {
        let before = what.replace(ptr::from_ref(workq).cast());
        Doing { what, before }
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        self.what.set(self.before);
    }
}

/// Marks that this thread polls for the loop of a WorkQ from here on. The futures that it polls
/// then wait by event in every mode: the loop notices their end.
pub(in crate::reactor) fn enter_own_loop<T>(workq: &T) -> Doing {
    Doing::enter(&IN_OWN_LOOP, workq)
}

/// Returns true if this thread polls for the loop of this WorkQ.
#[inline]
pub(in crate::reactor) fn is_in_own_loop<T>(workq: &T) -> bool {
    ptr::eq(IN_OWN_LOOP.get(), ptr::from_ref(workq).cast())
}

/// Marks that this thread polls for the jobs of a WorkQ all the time from here on.
pub(in crate::reactor) fn enter_block_on<T>(workq: &T) -> Doing {
    Doing::enter(&IN_BLOCK_ON, workq)
}

/// Returns true if this thread polls any WorkQ all the time.
pub(crate) fn polls_here() -> bool {
    !IN_BLOCK_ON.get().is_null()
}

/// Returns true if this thread polls for the jobs of this WorkQ all the time.
pub(super) fn is_in_block_on<T>(workq: &T) -> bool {
    ptr::eq(IN_BLOCK_ON.get(), ptr::from_ref(workq).cast())
}
