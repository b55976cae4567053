//! A mapping of a memfd: of this process's control page, of what an exporter sent, or of what two
//! processes write.
#![expect(unsafe_code, reason = "maps memory")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use crate::sync::Process;

/// A range of memory that is mapped until this is dropped, in the process that mapped it.
pub(in super::super::super) struct Mapping {
    base: NonNull<u8>,
    len: NonZeroUsize,
    /// A child of fork(2) has a copy of this value, and, where the range is not inherited,
    /// something else at its address.
    process: Process,
}

// SAFETY: a range of memory, which belongs to no thread; nothing here reads or writes it.
unsafe impl Send for Mapping {}
// SAFETY: as above: what is behind `&Mapping` are numbers.
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
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(None, len, protection, flags, file, 0) }?;
        let base = base.cast();
        let process = Process::current();
        Ok(Mapping { base, len, process })
    }

    pub(in super::super::super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns true if this process mapped it.
    pub(in super::super::super) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    pub(in super::super) fn len(&self) -> usize {
        self.len.get()
    }

    /// Has the pages of this range there now: too few are an error here, and not a signal at the
    /// first touch. The range begins at a page.
    pub(in super::super) fn populate(&self, range: Range<usize>) -> nix::Result<()> {
        self.advise(range, MmapAdvise::MADV_POPULATE_READ)
    }

    /// A child of fork(2) does not have it.
    pub(super) fn keep_from_children(&self) -> nix::Result<()> {
        self.advise(0..self.len(), MmapAdvise::MADV_DONTFORK)
    }

    /// Gives the pages of this range back, of memory that is mapped shared: there are zeros then.
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
        // SAFETY: the range lies within the mapping, as was just checked. Of the kinds of advice of
        // this file one changes bytes, which others may change at any time: nothing of this process
        // but atomics and opaque copies reaches memory that is mapped to be written.
        unsafe { madvise(begin.cast(), range.len(), advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: this process mapped the range, and nothing that could reach it is left:
            // whoever has an address of it keeps this value.
            let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
        }
    }
}
