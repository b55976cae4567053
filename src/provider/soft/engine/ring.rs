//! A bounded ring between threads, in which each entry shows whether it is full.
//!
//! Neither side reads a counter of the other side: the sender writes an entry, and the receiver
//! polls the next one. So only the entries travel between CPUs, once each way, and neither side
//! needs a locked instruction. Positions only grow, and each side keeps its own next position.
#![expect(unsafe_code, reason = "the entry's number says whose its value is")]

use std::mem::MaybeUninit;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A ring of values. Values that are still in the ring when it is dropped are not dropped.
pub(in super::super) struct Ring<T> {
    entries: Box<[RingEntry<T>]>,
}

/// An entry, aligned to cache lines.
#[repr(C, align(64))]
struct RingEntry<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    /// The position of the last value in this entry, plus one; 0 if no value was put here.
    number: AtomicU64,
}

// SAFETY: a value belongs to its sender until the number is stored (Release), and to the receiver
// once it has seen that number (Acquire). `put`'s contract says that the receiver is done with a
// value before the next one is put. Values move between threads.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// Returns a ring for at least `capacity` values.
    pub(in super::super) fn new(capacity: usize) -> Ring<T> {
        let entry = |_| RingEntry {
            number: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Ring {
            entries: (0..capacity.next_power_of_two()).map(entry).collect(),
        }
    }

    #[inline(always)]
    fn entry(&self, position: u64) -> &RingEntry<T> {
        // The number of entries is a power of two, and at least 1.
        &self.entries[position as usize & (self.entries.len() - 1)]
    }

    /// Returns true if a value was put at this position, or at a later position of the same entry.
    #[inline(always)]
    pub(in super::super) fn holds(&self, position: u64) -> bool {
        self.entry(position).number.load(Ordering::Acquire) > position
    }

    /// # Safety
    ///
    /// Each position is put once, and only after the value `capacity` positions earlier was taken.
    #[inline(always)]
    pub(in super::super) unsafe fn put(&self, position: u64, value: T) {
        let entry = self.entry(position);
        entry.value.with_mut(|place| {
            // SAFETY: the entry is empty, as the caller promises, so no other thread reaches the
            // value until the number is stored below.
            unsafe { place.write(MaybeUninit::new(value)) }
        });
        entry.number.store(position + 1, Ordering::Release);
    }

    /// Takes the value at this position, if there is one.
    ///
    /// # Safety
    ///
    /// One caller at a time asks for each position in turn, until it has taken the value, and then
    /// never asks for that position again.
    #[inline(always)]
    pub(in super::super) unsafe fn get(&self, position: u64) -> Option<T> {
        if !self.holds(position) {
            return None;
        }
        self.entry(position).value.with(|place| {
            // SAFETY: the value was put, as the number shows, and no sender puts another one before
            // this call has returned.
            let value = unsafe { place.read() };
            // SAFETY: it is initialized, and this call alone takes it.
            Some(unsafe { value.assume_init() })
        })
    }
}
