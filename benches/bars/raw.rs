//! The bare baselines: a posted descriptor and a flag, and the same with an eventfd and an epoll
//! instance.
#![expect(unsafe_code, reason = "copies through raw addresses, as a device does")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::sys::Edge;

const SLOTS: usize = 64;

/// A copy for a device to do: two addresses and a length.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    src: *const u8,
    dst: *mut u8,
    len: usize,
}

// SAFETY: a descriptor holds only addresses and a length. Its copies are safe by the promise of the
// caller of `new`.
unsafe impl Send for Descriptor {}
// SAFETY: as for `Send` above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// # Safety
    ///
    /// For as long as the descriptor is used, `len` bytes at both addresses must be valid and
    /// disjoint, and nothing else may access them.
    pub(crate) unsafe fn new(src: *const u8, dst: *mut u8, len: usize) -> Descriptor {
        Descriptor { src, dst, len }
    }

    /// Returns the same copy, `by` bytes further on in the destination.
    ///
    /// # Safety
    ///
    /// As for `new`.
    pub(crate) unsafe fn further(mut self, by: usize) -> Descriptor {
        self.dst = self.dst.wrapping_add(by);
        self
    }

    /// Copies, by one call of memcpy with a length that the compiler does not know.
    #[inline(always)]
    pub(crate) fn copy(&self) {
        // SAFETY: the bytes are valid and disjoint, as the caller of `new` promised.
        unsafe { std::ptr::copy_nonoverlapping(self.src, self.dst, black_box(self.len)) }
    }
}

/// A ring of descriptors with an inline engine: the minimum that any device needs.
pub(crate) struct Ring {
    ring: [Descriptor; SLOTS],
    tail: AtomicU32,
    head: u32,
    done: [AtomicBool; SLOTS],
    armed: AtomicBool,
    bell: EventFd,
}

impl Ring {
    pub(crate) fn new() -> Ring {
        let none = Descriptor {
            src: std::ptr::null(),
            dst: std::ptr::null_mut(),
            len: 0,
        };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ring {
            ring: [none; SLOTS],
            tail: AtomicU32::new(0),
            head: 0,
            done: [const { AtomicBool::new(false) }; SLOTS],
            armed: AtomicBool::new(false),
            bell: EventFd::from_value_and_flags(0, flags).expect("an eventfd"),
        }
    }

    /// Posts a descriptor, and returns the slot of its flag.
    #[inline(always)]
    fn post(&mut self, job: Descriptor) -> usize {
        let tail = self.tail.load(Ordering::Relaxed);
        let slot = tail as usize % SLOTS;
        self.done[slot].store(false, Ordering::Relaxed);
        self.ring[slot] = job;
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        slot
    }

    /// Acts as the engine: takes the next descriptor, copies, sets the flag.
    #[inline(always)]
    fn engine(&mut self, always_ring: bool) {
        if self.tail.load(Ordering::Acquire) == self.head {
            return;
        }
        let slot = self.head as usize % SLOTS;
        self.ring[slot].copy();
        self.head = self.head.wrapping_add(1);
        self.done[slot].store(true, Ordering::Release);
        if always_ring || self.armed.load(Ordering::Relaxed) {
            let _ = self.bell.write(1);
        }
    }

    /// Runs the busy loop: posts, and polls until the flag is set. It has no `pause`, which costs
    /// as much as eighty loads.
    #[allow(clippy::missing_spin_loop, reason = "the flag is set already")]
    #[inline(always)]
    pub(crate) fn run(&mut self, job: Descriptor) {
        let slot = self.post(black_box(job));
        self.engine(false);
        while !self.done[slot].load(Ordering::Acquire) {}
    }

    /// Runs the event loop: posts, arms, sleeps until the event comes, checks.
    #[inline(always)]
    pub(crate) fn run_event(&mut self, edge: &Edge, job: Descriptor) {
        let slot = self.post(black_box(job));
        self.engine(true);
        loop {
            self.armed.store(true, Ordering::SeqCst);
            edge.wait();
            if self.done[slot].load(Ordering::Acquire) {
                self.armed.store(false, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Makes the epoll instance in which the event loop waits.
    pub(crate) fn edge(&self) -> Edge {
        Edge::on(&self.bell)
    }
}
