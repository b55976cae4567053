//! Which process this is: a child of fork(2) has a copy of everything that its parent made.
#![expect(unsafe_code, reason = "maps a page that a child gets empty")]

use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

/// The process that made something. A child of fork(2) has a copy of it, and what is behind it is
/// its parent's, or not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Process {
        Process(number())
    }

    pub(crate) fn id(self) -> u32 {
        self.0
    }

    pub(crate) fn is_current(self) -> bool {
        self.0 == number()
    }
}

/// Where the number of this process is. A child of fork(2) finds 0 there.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Stands for a page that could not be had.
static NONE: AtomicU32 = AtomicU32::new(0);

/// Returns the number of this process, for which the kernel is asked once.
fn number() -> u32 {
    let page = PAGE.load(Ordering::Acquire);
    let page = if page.is_null() { new_page() } else { page };
    if ptr::eq(page, &NONE) {
        return std::process::id();
    }
    // SAFETY: it points to a page that `new_page` has mapped, and that nobody unmaps.
    let word = unsafe { &*page };
    match word.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            word.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Maps a page that is empty in a child (madvise(2): MADV_WIPEONFORK).
#[cold]
fn new_page() -> *mut AtomicU32 {
    let len = NonZeroUsize::new(4096).expect("it is more than 0");
    let (protection, flags) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE,
    );
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { mmap_anonymous(None, len, protection, flags) };
    let page = page.and_then(|page| {
        // An emulator of user mode (qemu-user) may say yes to everything, and do nothing.
        // SAFETY: the page was mapped above, nobody else has it yet, and there is no such advice.
        let believes_all = unsafe { libc::madvise(page.as_ptr(), len.get(), -1) } == 0;
        // SAFETY: as above.
        let wiped = unsafe { madvise(page, len.get(), MmapAdvise::MADV_WIPEONFORK) };
        match believes_all {
            true => Err(Errno::ENOSYS),
            false => wiped.map(|()| page.as_ptr().cast()),
        }
    });
    let page = page.unwrap_or((&raw const NONE).cast_mut());
    // Of threads that come here at once the first one's stays; the others' pages are left.
    let stays = PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
    stays.map_or_else(|stays| stays, |_| page)
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_number_of_this_process() {
        for _ in 0..2 {
            assert_eq!(Process::current().id(), std::process::id());
        }
        assert!(Process::current().is_current());
        assert!(!Process(0).is_current());
    }
}
