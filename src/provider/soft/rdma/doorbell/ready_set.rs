//! Which endpoints of a queue have something to do, and who is rung for when one has.

use std::sync::Arc;

use super::flags::Flags;
use crate::device::Signal;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

pub(in super::super) struct ReadySet {
    flags: Flags,
    /// Somebody sleeps, and is to be rung for.
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

    /// An endpoint has something to do: who sleeps is woken.
    pub(in super::super) fn mark_ready(&self, number: u32) {
        self.flags.set(number);
        self.ring();
    }

    /// The same, by who looks, and passes on what it leaves.
    pub(in super::super) fn set(&self, number: u32) {
        self.flags.set(number);
    }

    /// For who looks: one that has something to do.
    pub(in super::super) fn take(&self) -> Option<u32> {
        self.flags.take()
    }

    /// Whether one has something to do. Who looks takes some out for a moment: to be asked when nobody does.
    #[inline]
    pub(in super::super) fn any(&self) -> bool {
        self.flags.any()
    }

    /// Who looked leaves the rest: whoever armed meanwhile may have seen none of it.
    #[inline]
    pub(in super::super) fn pass_on(&self) {
        if self.any() {
            self.ring();
        }
    }

    /// Whoever arms will be rung for. The look comes after it.
    pub(in super::super) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
        // Pairs with `ring`.
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(in super::super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    fn ring(&self) {
        // Pairs with `arm`: either it sees what was ready, or this sees that it armed.
        fence(Ordering::SeqCst);
        if self.is_armed() && self.armed.swap(false, Ordering::SeqCst) {
            self.signal.ring();
        }
    }
}
