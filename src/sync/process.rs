//! The identity of a process, since a child of fork(2) has a copy of everything that its parent
//! made.
#![expect(unsafe_code, reason = "what a child gets empty or anew")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

/// The process that made a resource. A child of fork(2) has a copy of the handle, but the resource
/// is the parent's, or does not exist in the child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u64);

impl Process {
    pub(crate) fn current() -> Process {
        Process(number())
    }

    pub(crate) fn id(self) -> u32 {
        self.0 as u32
    }

    /// Returns a number, never 0, that differs from those of all ancestors of the process, whose
    /// state it inherits.
    pub(crate) fn distinct(self) -> u32 {
        let generation = NonZeroU32::new((self.0 >> 32) as u32);
        generation.map_or(self.id(), NonZeroU32::get)
    }

    pub(crate) fn is_current(self) -> bool {
        self.0 == number()
    }
}

/// A value that each process has for itself. A child of fork(2) makes a new value and leaves the
/// inherited one as it is, since another thread may have held a lock of that one.
pub(crate) struct EachProcess<T: 'static> {
    made: AtomicPtr<(Process, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync> EachProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> EachProcess<T> {
        EachProcess {
            made: AtomicPtr::new(ptr::null_mut()),
            make,
        }
    }

    pub(crate) fn get(&self) -> &'static T {
        let made = self.made.load(Ordering::Acquire);
        // SAFETY: `made` is null, or its value was leaked below, and is only shared since.
        match unsafe { made.as_ref() } {
            Some((process, value)) if process.is_current() => value,
            _ => self.make_after(made),
        }
    }

    #[cold]
    fn make_after(&self, before: *mut (Process, T)) -> &'static T {
        let new = Box::leak(Box::new((Process::current(), (self.make)())));
        // If several threads come here at once the first one's value stays; the others are leaked.
        let _ = (self.made).compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
        self.get()
    }
}

/// The address of the number of this process. A child of fork(2) finds 0 there.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Used instead of the page if the page cannot be mapped.
static NONE: AtomicU64 = AtomicU64::new(0);

/// The number of processes, of this one and its ancestors, that have asked for their number.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the number of this process, for which the kernel is asked once: the process ID, and in
/// the upper half the generation. In a new PID namespace a child may have the ID of its parent;
/// the generation of a child differs from those of all its ancestors, whose state it inherits.
/// Without the page only the process ID is known.
fn number() -> u64 {
    let page = PAGE.load(Ordering::Acquire);
    let page = if page.is_null() { new_page() } else { page };
    if ptr::eq(page, &NONE) {
        return std::process::id().into();
    }
    // SAFETY: it points to a page that `new_page` has mapped, and that is never unmapped.
    let word = unsafe { &*page };
    match word.load(Ordering::Relaxed) {
        0 => {
            let generation = GENERATION.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let new = u64::from(generation) << 32 | u64::from(std::process::id());
            // If several threads come here at once the first one's number stays.
            let stays = word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
            stays.map_or_else(|stays| stays, |_| new)
        }
        number => number,
    }
}

/// Maps a page that a child of fork(2) finds empty (madvise(2): MADV_WIPEONFORK).
#[cold]
fn new_page() -> *mut AtomicU64 {
    let len = NonZeroUsize::new(4096).expect("it is more than 0");
    let (protection, flags) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE,
    );
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { mmap_anonymous(None, len, protection, flags) };
    let page = page.and_then(|page| {
        // An emulator of user mode (qemu-user) may accept all advice, and do nothing.
        // SAFETY: the page was mapped above, no other code has it yet, and there is no such advice.
        let believes_all = unsafe { libc::madvise(page.as_ptr(), len.get(), -1) } == 0;
        // SAFETY: as above.
        let wiped = unsafe { madvise(page, len.get(), MmapAdvise::MADV_WIPEONFORK) };
        match believes_all {
            true => Err(Errno::ENOSYS),
            false => wiped.map(|()| page.as_ptr().cast()),
        }
    });
    let page = page.unwrap_or((&raw const NONE).cast_mut());
    // If several threads come here at once the first one's page stays; the others are leaked.
    let stays = PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
    stays.map_or_else(|stays| stays, |_| page)
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::sync::Mutex;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::*;

    /// The child finds the parent's value, whose lock is held at the fork, as by another thread.
    #[test]
    fn a_child_of_fork_has_a_value_of_its_own_that_nobody_has_locked() {
        static VALUE: EachProcess<Mutex<u32>> = EachProcess::new(|| Mutex::new(7));
        let mut held = VALUE.get().lock().unwrap();
        *held = 8;
        // SAFETY: the child allocates, which glibc allows, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let is_new = VALUE.get().try_lock().is_ok_and(|value| *value == 7);
            let stays = ptr::eq(VALUE.get(), VALUE.get());
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(if is_new && stays { 7 } else { 8 }) };
        }
        let ended = waitpid(Pid::from_raw(pid), None).unwrap();
        assert_eq!(ended, WaitStatus::Exited(Pid::from_raw(pid), 7));
        drop(held);
        assert_eq!(*VALUE.get().lock().unwrap(), 8);
    }

    /// Compares generations alone, since a child in a new PID namespace may have the ID of its
    /// parent.
    #[test]
    fn a_child_is_told_apart_without_its_process_id() {
        let generation = || Process::current().0 >> 32;
        let parent = generation();
        // SAFETY: the child only asks the kernel, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let child = generation();
            let differs = child > parent && child == generation();
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(if differs { 7 } else { 8 }) };
        }
        let ended = waitpid(Pid::from_raw(pid), None).unwrap();
        assert_eq!(ended, WaitStatus::Exited(Pid::from_raw(pid), 7));
        assert_eq!(generation(), parent);
    }

    #[test]
    fn it_is_the_number_of_this_process() {
        for _ in 0..2 {
            assert_eq!(Process::current().id(), std::process::id());
        }
        assert!(Process::current().is_current());
        assert!(!Process(0).is_current());
    }
}
