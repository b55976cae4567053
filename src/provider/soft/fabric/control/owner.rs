//! The owner's word of a control page: the kernel marks it once the owner has ended.
//!
//! | word | meaning |
//! |---|---|
//! | with `FUTEX_OWNER_DIED` | the process has ended, or has replaced its program (execve(2)) |
//! | without it | nothing |
//!
//! The word is a robust futex (`Documentation/locking/robust-futex-ABI.rst` of the kernel) that the
//! fabric's thread holds. When a thread ends, the kernel marks the futexes that the thread holds,
//! while their memory still exists. All threads of a process end with the process; they also end in
//! execve(2), which keeps the process and its pidfd. A child of fork(2) holds none of its parent's
//! futexes, so it cannot hide the parent's end, whatever descriptors it has.
//!
//! A process can mark its own word, or keep the kernel from marking it. Either affects only the
//! memory that it exports itself.
#![expect(unsafe_code, reason = "a system call that nix does not wrap")]

use std::cell::Cell;
use std::mem::forget;
use std::ptr::null;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::unistd::gettid;

use super::{Control, Word};

/// An element of a list of futexes (`struct robust_list`).
#[derive(Clone)]
#[repr(C)]
struct Element {
    next: Cell<*const Element>,
}

/// The list of the futexes that a thread holds: three words that the kernel knows
/// (`struct robust_list_head`), and the only element.
#[repr(C)]
struct List {
    first: Element,
    /// The distance from an element to its futex, in bytes.
    offset: Cell<isize>,
    pending: Cell<*const Element>,
    element: Element,
}

/// The size of the part that the kernel knows, in bytes.
const HEAD: usize = 3 * size_of::<usize>();

/// The owner's word of a control page, held by the thread that made this value. The value contains
/// pointers, so it is not Send.
///
/// Dropping the value releases the word. If the value is forgotten, the kernel marks the word at
/// the end of the thread.
pub(in super::super) struct Owner {
    /// `None` if the kernel has no robust futexes.
    list: Option<Rc<List>>,
    word: Word,
}

impl Word {
    /// Returns true if the kernel has marked this word, which must be an owner's word.
    #[inline]
    pub(in super::super) fn is_marked(&self) -> bool {
        self.get() & libc::FUTEX_OWNER_DIED != 0
    }
}

impl Owner {
    /// Makes the kernel mark the page's word if this thread ends before the result is dropped.
    ///
    /// This list replaces the list of the C library: the kernel then marks no robust mutex of that
    /// library that this thread holds. If the kernel has no robust futexes, as in a user-mode
    /// emulator, nothing is marked: importers notice the end of the process by other means, but do
    /// not notice execve(2).
    pub(in super::super) fn by_this_thread(control: &Control) -> Owner {
        let word = control.words.owner();
        // The kernel marks only words that contain the number of the thread that ends.
        let thread = gettid().as_raw().cast_unsigned();
        word.atomic().store(thread, Relaxed);
        let none = Element {
            next: Cell::new(null()),
        };
        let list = Rc::new(List {
            first: none.clone(),
            offset: Cell::new(0),
            pending: Cell::new(null()),
            element: none,
        });
        list.first.next.set(&raw const list.element);
        list.element.next.set(&raw const list.first);
        let (from, to) = ((&raw const list.element).addr(), word.at.addr().get());
        list.offset.set(to.wrapping_sub(from).cast_signed());
        // SAFETY: the result keeps the list and, with the word, the page that the list names. The
        // result is dropped on this thread, which first unregisters the list. If it is forgotten,
        // both are kept forever.
        let held = unsafe { hold(Rc::as_ptr(&list)) }.is_ok();
        if !held {
            word.atomic().store(0, Relaxed);
        }
        Owner {
            list: held.then_some(list),
            word,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(list) = self.list.take() else {
            return;
        };
        // SAFETY: a null pointer names no list.
        if unsafe { hold(null()) }.is_err() {
            // This cannot fail after the first call succeeded. If it did, the kernel would still
            // use the list.
            forget((list, self.word.clone()));
        }
        self.word.atomic().store(0, Relaxed);
    }
}

/// Registers with the kernel the list of futexes that this thread holds. A null pointer registers
/// none.
///
/// # Errors
///
/// `ENOSYS` if the kernel has no robust futexes; a filter of system calls may return other errors.
///
/// # Safety
///
/// If the call succeeds, the list and the futexes that it names live until this thread has ended,
/// or has registered another list.
unsafe fn hold(list: *const List) -> nix::Result<()> {
    // SAFETY:
    // - The call checks the length, which is that of `struct robust_list_head`, and keeps the
    //   pointer.
    // - When the thread ends, the kernel reads the list, and changes the futexes that contain the
    //   thread's number. The caller promises that they live. All other code accesses them by
    //   atomics.
    let done = unsafe { libc::syscall(libc::SYS_set_robust_list, list, HEAD) };
    Errno::result(done).map(drop)
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::thread;

    use super::super::Words;
    use super::*;

    #[test]
    fn the_word_is_marked_once_the_thread_that_held_it_has_ended() {
        let control = Control::new().unwrap();
        let there = Words::received(&control.memfd).unwrap().owner();
        thread::scope(|scope| {
            let held = scope.spawn(|| {
                let owner = Owner::by_this_thread(&control);
                assert!(there.get() != 0 && !there.is_marked());
                drop(owner);
                assert_eq!(there.get(), 0);
            });
            held.join().unwrap();
            assert_eq!(there.get(), 0);
            let held = scope.spawn(|| forget(Owner::by_this_thread(&control)));
            held.join().unwrap();
            assert!(there.is_marked());
        });
    }

    #[test]
    fn a_word_with_the_number_of_another_thread_is_not_marked() {
        let control = Control::new().unwrap();
        let word = control.words.owner();
        thread::scope(|scope| {
            let held = scope.spawn(|| {
                let owner = Owner::by_this_thread(&control);
                owner.word.atomic().store(1, Relaxed);
                forget(owner);
            });
            held.join().unwrap();
        });
        assert_eq!(word.get(), 1);
    }
}
