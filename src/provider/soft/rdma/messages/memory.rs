//! Memory that two endpoints, of one process or of two, both write: words of eight bytes, and
//! pieces to copy.
#![expect(unsafe_code, reason = "words in memory that processes share")]

use std::ptr::NonNull;

use super::super::super::fabric::Mapping;
use crate::device::Segment;
use crate::sync::atomic::AtomicU64;

pub(in super::super) struct Memory {
    mapping: Mapping,
    len: usize,
}

impl Memory {
    /// Returns a mapping of so many bytes, to be read and written.
    ///
    /// # Safety
    ///
    /// Whoever else of this process reaches it does so by another Memory.
    pub(in super::super) unsafe fn new(mapping: Mapping, len: usize) -> Memory {
        Memory { mapping, len }
    }

    /// Returns how many bytes.
    pub(in super::super) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if this process mapped it: a child of fork(2) does not have it.
    pub(in super::super) fn is_ours(&self) -> bool {
        self.mapping.is_ours()
    }

    /// Returns the word at this byte, a multiple of 8 in the memory.
    #[inline(always)]
    pub(in super::super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.len);
        // SAFETY: eight bytes from a multiple of 8 lie in the memory, whose length is one too
        // (`Arena`).
        let word = unsafe { self.mapping.base().byte_add(at) }.cast::<AtomicU64>();
        // SAFETY:
        // - It is mapped as long as `self` is there, to be read and written, and aligned: a page
        //   is.
        // - This process reaches words by atomics only (`new`); another one that does not tears its
        //   own.
        unsafe { word.as_ref() }
    }

    /// Gives the pages of so many bytes from this one on back, as far as that is possible.
    pub(super) fn discard(&self, at: usize, len: usize) {
        // Else they stay, which is what they did before.
        let _ = self.mapping.discard(at..at + len);
    }

    /// So many bytes from this one on, to be copied out by the opaque routine.
    #[inline(always)]
    pub(super) fn to_read(&self, at: usize, len: usize) -> Segment {
        self.piece(at, len)
    }

    /// The same, to be copied into.
    #[inline(always)]
    pub(super) fn to_write(&self, at: usize, len: usize) -> Segment {
        self.piece(at, len)
    }

    #[inline(always)]
    fn piece(&self, at: usize, len: usize) -> Segment {
        assert!(at <= self.len && len <= self.len - at);
        let addr: NonNull<u8> = self.mapping.base();
        // SAFETY: it lies in the mapping.
        let addr = unsafe { addr.add(at) };
        // SAFETY: as above; whoever is lent it copies at once, while this keeps the mapping, and by
        // the opaque routine, since the peer may write it.
        unsafe { Segment::new(addr, len, 0) }
    }
}
