//! `UnsafeCell` with loom's interface, so that a model sees every access.
//!
//! In debug builds each cell counts the callers inside it. Two callers at once, of which one
//! writes, panic. So a stress test finds a race that no model has.

#[cfg(tokio_doca_loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell whose content is reached through a pointer that lives for one call.
#[cfg(not(tokio_doca_loom))]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T> {
    content: std::cell::UnsafeCell<T>,
    inside: Inside,
}

#[cfg(not(tokio_doca_loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell {
            content: std::cell::UnsafeCell::new(value),
            inside: Inside::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        let _reader = self.inside.read();
        f(self.content.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        let _writer = self.inside.write();
        f(self.content.get())
    }
}

#[cfg(not(tokio_doca_loom))]
use inside::Inside;

/// Debug builds count the callers that are inside a cell.
#[cfg(all(not(tokio_doca_loom), debug_assertions))]
mod inside {
    use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

    const WRITER: isize = -1;

    /// The number of readers, or `WRITER`.
    #[derive(Debug, Default)]
    pub(super) struct Inside(AtomicIsize);

    impl Inside {
        pub(super) const fn new() -> Inside {
            Inside(AtomicIsize::new(0))
        }

        #[track_caller]
        pub(super) fn read(&self) -> Reader<'_> {
            let more = |inside| (inside != WRITER).then_some(inside + 1);
            let entered = self.0.fetch_update(Relaxed, Relaxed, more);
            assert!(entered.is_ok(), "a cell is read while it is written");
            Reader(self)
        }

        #[track_caller]
        pub(super) fn write(&self) -> Writer<'_> {
            let entered = self.0.compare_exchange(0, WRITER, Relaxed, Relaxed);
            assert!(entered.is_ok(), "a cell is written while it is in use");
            Writer(self)
        }
    }

    pub(super) struct Reader<'a>(&'a Inside);

    impl Drop for Reader<'_> {
        fn drop(&mut self) {
            self.0.0.fetch_sub(1, Relaxed);
        }
    }

    pub(super) struct Writer<'a>(&'a Inside);

    impl Drop for Writer<'_> {
        fn drop(&mut self) {
            self.0.0.store(0, Relaxed);
        }
    }
}

/// Release builds do not count.
#[cfg(all(not(tokio_doca_loom), not(debug_assertions)))]
mod inside {
    #[derive(Debug, Default)]
    pub(super) struct Inside;

    impl Inside {
        pub(super) const fn new() -> Inside {
            Inside
        }

        #[inline(always)]
        pub(super) fn read(&self) {}

        #[inline(always)]
        pub(super) fn write(&self) {}
    }
}

#[cfg(all(test, not(tokio_doca_loom), debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_read_by_several_at_once_and_written_by_one_after_another() {
        let cell = UnsafeCell::new(1);
        cell.with(|_| cell.with(|_| {}));
        cell.with_mut(|_| {});
        cell.with_mut(|_| {});
    }

    #[test]
    #[should_panic = "a cell is written while it is in use"]
    fn a_cell_that_is_read_is_not_written() {
        let cell = UnsafeCell::new(1);
        cell.with(|_| cell.with_mut(|_| {}));
    }

    #[test]
    #[should_panic = "a cell is read while it is written"]
    fn a_cell_that_is_written_is_not_read() {
        let cell = UnsafeCell::new(1);
        cell.with_mut(|_| cell.with(|_| {}));
    }
}
