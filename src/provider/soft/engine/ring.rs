//! A bounded ring between threads, in which each entry says itself whether it is full.
//!
//! Neither side reads a counter of the other's: whoever puts writes an entry, whoever gets looks at
//! the next one. So the only lines that travel between CPUs are the entries, once each way, and
//! neither side needs a locked instruction. Positions count up for ever; where the next one is,
//! each side knows by itself.
#![expect(unsafe_code, reason = "the entry's number says whose its value is")]

use std::mem::MaybeUninit;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What is in it when it goes is not dropped.
pub(in super::super) struct Ring<T> {
    entries: Box<[RingEntry<T>]>,
}

/// One line, or a pair of lines, of its own.
#[repr(C, align(64))]
struct RingEntry<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    /// One more than the last position that was put here.
    number: AtomicU64,
}

// SAFETY: a value is its putter's until the number is stored (Release), and the getter's after it
// saw that (Acquire); that the getter is done with it before the next one is put is `put`'s
// contract. Values go from thread to thread.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// Room for so many values at least.
    pub(in super::super) fn new(room: usize) -> Ring<T> {
        let entry = |_| RingEntry {
            number: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Ring {
            entries: (0..room.next_power_of_two()).map(entry).collect(),
        }
    }

    #[inline(always)]
    fn entry(&self, position: u64) -> &RingEntry<T> {
        // A power of two, and not empty.
        &self.entries[position as usize & (self.entries.len() - 1)]
    }

    /// Returns true if a value was put at this position, or at a later one of the same entry.
    #[inline(always)]
    pub(in super::super) fn holds(&self, position: u64) -> bool {
        self.entry(position).number.load(Ordering::Acquire) > position
    }

    /// # Safety
    ///
    /// Each position is put once, and only after the value that is `room` positions before it was
    /// got.
    #[inline(always)]
    pub(in super::super) unsafe fn put(&self, position: u64, value: T) {
        let entry = self.entry(position);
        entry.value.with_mut(|place| {
            // SAFETY: no other party reaches the value: it is empty, as the caller promises, until
            // the number says otherwise.
            unsafe { place.write(MaybeUninit::new(value)) }
        });
        entry.number.store(position + 1, Ordering::Release);
    }

    /// The value at this position, if it is there.
    ///
    /// # Safety
    ///
    /// One caller at a time asks for each position in turn, until it got the value, and then never
    /// again.
    #[inline(always)]
    pub(in super::super) unsafe fn get(&self, position: u64) -> Option<T> {
        if !self.holds(position) {
            return None;
        }
        self.entry(position).value.with(|place| {
            // SAFETY: it was put (the number says so), and nobody puts another one before this call
            // has returned.
            let value = unsafe { place.read() };
            // SAFETY: it is initialized, and nobody else gets it.
            Some(unsafe { value.assume_init() })
        })
    }
}
