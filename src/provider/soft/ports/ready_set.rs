//! The set of a queue's ports that have something to do, and the signal that wakes a sleeping
//! thread.

use std::sync::Arc;

use super::flags::Flags;
use crate::device::Signal;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

pub(in super::super) struct ReadySet {
    flags: Flags,
    /// True if a thread sleeps or is about to sleep, and must be woken.
    armed: AtomicBool,
    signal: Arc<Signal>,
}

impl ReadySet {
    pub(in super::super) fn new(signal: Arc<Signal>) -> ReadySet {
        ReadySet {
            flags: Flags::new(),
            armed: AtomicBool::new(false),
            signal,
        }
    }

    /// Adds a port that has something to do, and wakes the thread that sleeps.
    #[inline]
    pub(in super::super) fn mark_ready(&self, number: u32) {
        self.flags.set(number);
        self.raise();
    }

    /// Adds a port without waking a thread. For callers that poll next themselves, and for the
    /// reaper, which wakes a thread in `pass_on` if it leaves ports in the set.
    pub(in super::super) fn set(&self, number: u32) {
        self.flags.set(number);
    }

    /// Takes the first port at or after `from`, wrapping around. Only the reaper calls this.
    #[inline]
    pub(in super::super) fn take(&self, from: u32) -> Option<u32> {
        self.flags.take(from)
    }

    /// Returns true if a port has something to do. A reaper takes ports out for a moment, so the
    /// result is reliable only while no thread reaps.
    #[inline]
    pub(in super::super) fn any(&self) -> bool {
        self.flags.any()
    }

    /// Wakes a thread that armed meanwhile if the reaper leaves ports in the set: that thread may
    /// have seen none of them.
    #[inline]
    pub(in super::super) fn pass_on(&self) {
        if self.any() {
            self.raise();
        }
    }

    /// Requests a signal. The caller polls afterwards, and then sleeps.
    pub(in super::super) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
        // Pairs with `raise`.
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(in super::super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    fn raise(&self) {
        // Pairs with `arm`: either the thread that sleeps sees the ready port, or this thread sees
        // that the other one has armed.
        fence(Ordering::SeqCst);
        if self.is_armed() && self.armed.swap(false, Ordering::SeqCst) {
            self.signal.raise();
        }
    }
}
