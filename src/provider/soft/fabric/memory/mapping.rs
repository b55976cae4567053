//! A mapping of a memfd: this process's control page, memory that an exporter sent, or memory that
//! two processes write.
#![expect(unsafe_code, reason = "maps memory")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use crate::sync::Process;

/// A range of mapped memory. It is unmapped when this value is dropped in the process that mapped
/// it.
pub(in super::super::super) struct Mapping {
    base: NonNull<u8>,
    len: NonZeroUsize,
    /// The process that mapped the range. A child of fork(2) has a copy of this value, but unless
    /// the range is inherited, something else may be at its address.
    process: Process,
}

// SAFETY: the range of memory belongs to no thread, and nothing here reads or writes it.
unsafe impl Send for Mapping {}
// SAFETY: as above: `&Mapping` gives access to numbers only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file.
    pub(in super::super) fn new(
        file: impl AsFd,
        len: NonZeroUsize,
        write: bool,
        flags: MapFlags,
    ) -> nix::Result<Mapping> {
        let protection = match write {
            true => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            false => ProtFlags::PROT_READ,
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe { mmap(None, len, protection, flags, file, 0) }?;
        let base = base.cast();
        let process = Process::current();
        Ok(Mapping { base, len, process })
    }

    pub(in super::super::super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns true if this process mapped the range.
    pub(in super::super::super) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    pub(in super::super) fn len(&self) -> usize {
        self.len.get()
    }

    /// Makes the kernel map all pages of this range now. Returns an error if there are too few
    /// pages; after success no later access causes a signal. The range begins at a page.
    pub(in super::super) fn populate(&self, range: Range<usize>) -> nix::Result<()> {
        self.advise(range, MmapAdvise::MADV_POPULATE_READ)
    }

    /// Keeps the range out of children of fork(2).
    pub(super) fn keep_from_children(&self) -> nix::Result<()> {
        self.advise(0..self.len(), MmapAdvise::MADV_DONTFORK)
    }

    /// Returns the pages of this range to the kernel. The memory is mapped shared, and reads as
    /// zeros afterwards.
    #[cfg_attr(
        all(test, tokio_doca_loom),
        expect(dead_code, reason = "memory that is modelled has no pages")
    )]
    pub(in super::super::super) fn discard(&self, range: Range<usize>) -> nix::Result<()> {
        self.advise(range, MmapAdvise::MADV_REMOVE)
    }

    fn advise(&self, range: Range<usize>, advice: MmapAdvise) -> nix::Result<()> {
        let within = range.start <= range.end && range.end <= self.len();
        let begin = self.base.as_ptr().wrapping_add(range.start);
        let begin = NonNull::new(begin)
            .filter(|_| within)
            .ok_or(Errno::EINVAL)?;
        // SAFETY: the range lies within the mapping, as was just checked. Only one of the kinds of
        // advice in this file changes bytes. Other processes may change these bytes at any time, so
        // this process accesses memory that is mapped for writing only by atomics and opaque
        // copies.
        unsafe { madvise(begin.cast(), range.len(), advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: this process mapped the range, and nothing that could access it is left: a
            // holder of an address in it keeps this value alive.
            let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
        }
    }
}
