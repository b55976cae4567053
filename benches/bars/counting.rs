//! An allocator that counts what each thread, and the whole process, asks for.
#![expect(unsafe_code, reason = "a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) struct Counting;

static ALL: AtomicU64 = AtomicU64::new(0);

// Const and without a destructor: the allocator itself may use it.
thread_local!(static HERE: Cell<u64> = const { Cell::new(0) });

fn count() {
    HERE.with(|here| here.set(here.get() + 1));
    ALL.fetch_add(1, Relaxed);
}

// SAFETY: it is the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Allocations of this thread so far.
pub(crate) fn here() -> u64 {
    HERE.with(Cell::get)
}

/// Allocations of all threads so far.
pub(crate) fn everywhere() -> u64 {
    ALL.load(Relaxed)
}
