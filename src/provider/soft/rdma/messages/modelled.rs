//! The replacement of [`Memory`](super::memory::Memory) under loom. Words are atomics of loom, and
//! pieces are tracked: a payload that is read before it was published, or overwritten before it was
//! read, fails the model.
#![expect(unsafe_code, reason = "keeps the promise of the real one")]

use std::collections::BTreeMap;
use std::ptr::NonNull;

use super::super::super::fabric::Mapping;
use crate::device::Segment;
use crate::sync::atomic::AtomicU64;
use crate::sync::loom::TrackedCell;

/// The number of bytes that are tracked together.
const GRAIN: usize = 64;

pub(in super::super) struct Memory {
    /// The words that a model uses. Loom must not know of any other words.
    words: BTreeMap<usize, AtomicU64>,
    grains: Box<[TrackedCell]>,
    bytes: NonNull<[u8]>,
}

// SAFETY: the threads of a model take turns.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    ///
    /// None; the contract exists for the real `Memory`.
    pub(in super::super) unsafe fn new(_: Mapping, len: usize) -> Memory {
        Memory::modelled(len, [])
    }

    /// Returns `len` bytes, with words at these offsets.
    pub(in super::super) fn modelled(len: usize, words: impl IntoIterator<Item = usize>) -> Memory {
        let word = |at| (at, AtomicU64::new(0));
        Memory {
            words: words.into_iter().map(word).collect(),
            grains: (0..len / GRAIN).map(|_| TrackedCell::new()).collect(),
            bytes: NonNull::from(Box::leak(vec![0; len].into_boxed_slice())),
        }
    }

    pub(super) fn discard(&self, _: usize, _: usize) {}

    pub(in super::super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(in super::super) fn is_ours(&self) -> bool {
        true
    }

    pub(in super::super) fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[&at]
    }

    pub(super) fn to_read(&self, at: usize, len: usize) -> Segment {
        self.piece(at, len, TrackedCell::read)
    }

    pub(super) fn to_write(&self, at: usize, len: usize) -> Segment {
        self.piece(at, len, TrackedCell::write)
    }

    /// Returns a piece. The caller must copy it at once, and no other thread runs in between.
    fn piece(&self, at: usize, len: usize, touch: fn(&TrackedCell)) -> Segment {
        assert!(at <= self.len() && len <= self.len() - at);
        for grain in &self.grains[at / GRAIN..(at + len).div_ceil(GRAIN)] {
            touch(grain);
        }
        // SAFETY: the piece lies in the bytes.
        let addr = unsafe { self.bytes.cast().byte_add(at) };
        // SAFETY: as above. The caller copies the piece at once, and no other thread runs in
        // between.
        unsafe { Segment::new(addr, len, 0) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `modelled` leaked it, and nothing else refers to it any more.
        drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
    }
}
