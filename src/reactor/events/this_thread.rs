//! Knows for which WorkQ this thread polls: for the caller's own loop, or in `WorkQ::block_on`. A
//! WorkQ is identified by its address.

use std::cell::Cell;
use std::ptr;
use std::thread::LocalKey;

type WorkQ = Cell<*const ()>;

// The two are const and have no destructors: they allocate nothing, and can be used while a thread
// ends.
thread_local! {
    static IN_OWN_LOOP: WorkQ = const { Cell::new(ptr::null()) };
    static IN_BLOCK_ON: WorkQ = const { Cell::new(ptr::null()) };
}

/// A guard: while it lives, this thread counts as polling for a WorkQ. Guards can be nested, for
/// other WorkQs; the drop restores the outer one.
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

/// Marks that this thread polls for the caller's own loop of a WorkQ, until the result is dropped.
/// The futures that it polls wait by event in every mode, since the loop notices that they
/// complete.
pub(in crate::reactor) fn enter_own_loop<T>(workq: &T) -> Doing {
    Doing::enter(&IN_OWN_LOOP, workq)
}

/// Returns true if this thread polls for the caller's own loop of this WorkQ.
#[inline]
pub(in crate::reactor) fn is_in_own_loop<T>(workq: &T) -> bool {
    ptr::eq(IN_OWN_LOOP.get(), ptr::from_ref(workq).cast())
}

/// Marks that this thread is in `WorkQ::block_on`, where the thread itself polls for this WorkQ,
/// until the result is dropped.
pub(in crate::reactor) fn enter_block_on<T>(workq: &T) -> Doing {
    Doing::enter(&IN_BLOCK_ON, workq)
}

/// Returns true if this thread is in `WorkQ::block_on` of any WorkQ.
pub(crate) fn polls_here() -> bool {
    !IN_BLOCK_ON.get().is_null()
}

/// Returns true if this thread is in `WorkQ::block_on` of this WorkQ.
pub(super) fn is_in_block_on<T>(workq: &T) -> bool {
    ptr::eq(IN_BLOCK_ON.get(), ptr::from_ref(workq).cast())
}
