//! An allocator that counts the allocations of each thread. A program that counts sets [`Counting`]
//! as its global allocator.
#![expect(unsafe_code, reason = "a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The system's allocator, whose calls are counted.
pub struct Counting;

const THREADS: usize = 1024;
static TIDS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];
static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

// The value is const and has no destructor, so that the allocator itself may use it.
thread_local!(static PLACE: Cell<usize> = const { Cell::new(usize::MAX) });

/// Returns the index of this thread's count, and assigns one at the first call.
fn place() -> usize {
    PLACE.with(|place| {
        if place.get() == usize::MAX {
            let free = NEXT.fetch_add(1, Relaxed) % THREADS;
            TIDS[free].store(nix::unistd::gettid().as_raw(), Relaxed);
            place.set(free);
        }
        place.get()
    })
}

fn count() {
    COUNTS[place()].fetch_add(1, Relaxed);
}

// SAFETY: every call goes to the system's allocator. Counting allocates nothing.
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

/// Returns the number of allocations of a thread so far.
pub fn of_thread(tid: i32) -> u64 {
    TIDS.iter()
        .zip(&COUNTS)
        .filter(|(known, _)| known.load(Relaxed) == tid)
        .map(|(_, count)| count.load(Relaxed))
        .sum()
}

/// Returns the number of allocations of this thread so far.
pub fn here() -> u64 {
    COUNTS[place()].load(Relaxed)
}

/// Returns the number of allocations of all threads so far.
pub fn everywhere() -> u64 {
    COUNTS.iter().map(|count| count.load(Relaxed)).sum()
}
