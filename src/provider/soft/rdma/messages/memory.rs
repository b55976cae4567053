//! Memory that two endpoints, of one process or of two, both write. It is accessed as words of
//! eight bytes, and as pieces that are copied.
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
    /// Returns the memory of a mapping that has `len` bytes, and can be read and written.
    ///
    /// # Safety
    ///
    /// All other code of this process accesses the mapping only through a Memory as well.
    pub(in super::super) unsafe fn new(mapping: Mapping, len: usize) -> Memory {
        Memory { mapping, len }
    }

    /// Returns the length in bytes.
    pub(in super::super) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if this process mapped the memory: a child of fork(2) has no mapping of it.
    pub(in super::super) fn is_ours(&self) -> bool {
        self.mapping.is_ours()
    }

    /// Returns the word at byte `at`, which is a multiple of 8 below the length.
    #[inline(always)]
    pub(in super::super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.len);
        // SAFETY: the eight bytes lie in the mapping, since `at` is a multiple of 8 below the
        // length, and a mapping ends at a page boundary.
        let word = unsafe { self.mapping.base().byte_add(at) }.cast::<AtomicU64>();
        // SAFETY:
        // - The memory is mapped as long as `self` exists, can be read and written, and is aligned,
        //   since it begins at a page.
        // - This process accesses words only by atomics (`new`). Another process that uses other
        //   accesses only tears its own values.
        unsafe { word.as_ref() }
    }

    /// Returns the pages of `len` bytes from `at` on to the kernel, as far as that is possible.
    pub(super) fn discard(&self, at: usize, len: usize) {
        // If the kernel refuses, the pages stay, which is harmless.
        let _ = self.mapping.discard(at..at + len);
    }

    /// Returns `len` bytes from `at` on, to be copied out by the opaque routine.
    #[inline(always)]
    pub(super) fn to_read(&self, at: usize, len: usize) -> Segment {
        self.piece(at, len)
    }

    /// Returns `len` bytes from `at` on, to be copied into.
    #[inline(always)]
    pub(super) fn to_write(&self, at: usize, len: usize) -> Segment {
        self.piece(at, len)
    }

    #[inline(always)]
    fn piece(&self, at: usize, len: usize) -> Segment {
        assert!(at <= self.len && len <= self.len - at);
        let addr: NonNull<u8> = self.mapping.base();
        // SAFETY: the piece lies in the mapping.
        let addr = unsafe { addr.add(at) };
        // SAFETY: as above. The caller copies at once, while `self` keeps the mapping, and by the
        // opaque routine, since the peer may write the memory.
        unsafe { Segment::new(addr, len, 0) }
    }
}
