//! The bytes behind an Mmap: where they are, whether another process may write them, and how they
//! are given back.
//!
//! A [`Memory`] is dropped once no device holds it and no Buf and no Lease is left. It then unmaps
//! its memfd, or hands the application's memory back, once.
#![expect(unsafe_code, reason = "bytes of which it is said who may reach them")]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::Backing;
use crate::sync::{Process, contain, log_later};

/// Names the application's code that takes memory back, in the log message when its panic is
/// contained.
const WHAT: &str = "what takes an Mmap's memory back";

/// The application's callback that takes its memory back. It may be dropped without being called.
pub(super) type Free = Box<dyn FnOnce(NonNull<u8>, usize) + Send>;

pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// True if another process may write the memory at any time, because it may hold the memfd.
    foreign: bool,
    backing: Storage,
}

enum Storage {
    Memfd(Mapping),
    Lent(Option<Free>),
}

/// A mapping of a memfd.
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// The length of the mapping in bytes, in whole pages.
    len: usize,
    file: Arc<OwnedFd>,
    /// The offset in the file at which the mapping begins.
    offset: u64,
    /// The process that made the mapping. A child of fork(2) has a copy of this value, but
    /// something else, or nothing, at the address.
    process: Process,
}

// SAFETY: it is a range of memory, and who may touch which bytes is decided by Leases; what takes
// it back is Send.
unsafe impl Send for Memory {}
// SAFETY: as above; what takes it back is reached through `&mut Memory` only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns the first `len` bytes of a mapping. `foreign` is true if another process may write
    /// them at any time.
    pub(super) fn mapped(mapping: Mapping, len: usize, foreign: bool) -> Memory {
        assert!(len <= mapping.len);
        Memory {
            base: mapping.base,
            len,
            foreign,
            backing: Storage::Memfd(mapping),
        }
    }

    /// Returns memory of the application, which `free` takes back.
    ///
    /// # Safety
    ///
    /// The range is valid until `free` is dropped or has run. Until then no other party reaches it,
    /// or no party at all writes it.
    pub(super) unsafe fn lent(base: NonNull<u8>, len: usize, free: Free) -> Memory {
        Memory {
            base,
            len,
            foreign: false,
            backing: Storage::Lent(Some(free)),
        }
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Returns the memfd that the memory is a part of, if there is one.
    pub(super) fn memfd(&self) -> Option<Backing> {
        match &self.backing {
            Storage::Memfd(mapping) => Some(Backing {
                memfd: Arc::clone(&mapping.file),
                offset: mapping.offset,
            }),
            Storage::Lent(_) => None,
        }
    }

    /// Leaks the memory, because a device or a process may still reach it.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.backing, Storage::Lent(None)));
    }

    /// Drops the callback that frees the memory without calling it: the memory became no Mmap.
    pub(super) fn give_up(&mut self) {
        if let Storage::Lent(free) = &mut self.backing {
            let free = free.take();
            contain(WHAT, || drop(free));
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Storage::Lent(free) = &mut self.backing else {
            return;
        };
        if let Some(free) = free.take() {
            contain(WHAT, || free(self.base, self.len));
        }
    }
}

impl Mapping {
    /// # Safety
    ///
    /// The range was mapped from `file`, from `offset` on, and is the caller's to give away.
    pub(super) unsafe fn new(base: NonNull<u8>, len: usize, file: OwnedFd, offset: u64) -> Mapping {
        Mapping {
            base,
            len,
            file: Arc::new(file),
            offset,
            process: Process::current(),
        }
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        // SAFETY: the range was mapped, as `new` was promised, and nothing that could reach it is
        // left: Bufs and Leases hold the Mmap, and the devices let go of it before.
        let unmapped = unsafe { nix::sys::mman::munmap(self.base.cast(), self.len) };
        if let Err(errno) = unmapped {
            let len = self.len;
            log_later(move || tracing::error!(%errno, len, "munmap failed; the range is leaked"));
        }
    }
}
