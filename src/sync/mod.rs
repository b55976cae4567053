//! The switch between the types of std and of loom, and the line of waiters that both pools and
//! WorkQs use.
//!
//! Everything that a loom model checks takes its atomics, cells and locks from here. The crate's
//! own cfg, `tokio_doca_loom`, switches loom on: `cfg(loom)` would break Tokio's `net`.

mod blocking;
mod brief;
mod cell;
mod lock;
#[cfg(all(test, tokio_doca_loom))]
pub(crate) mod loom;
mod order;
mod polled;
mod process;
mod stalled;
mod waiters;
mod wakers;

pub(crate) use blocking::{Blocking, deadline, for_peers, for_strangers};
#[cfg(feature = "verbs")]
pub(crate) use blocking::{Run, Threads};
pub(crate) use brief::{BriefGuard, BriefMutex};
pub(crate) use cell::UnsafeCell;
pub(crate) use lock::{lock, try_lock};
pub(crate) use order::{Order, Turn};
pub(crate) use polled::Polled;
pub(crate) use process::{EachProcess, Process};
pub(crate) use stalled::{Line, pass_over_soon};
pub(crate) use waiters::{WaitNode, Waiters};
pub(crate) use wakers::{contain, discard, log, log_later, wake};

#[cfg(not(tokio_doca_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(tokio_doca_loom)]
pub(crate) use ::loom::sync::{Mutex, MutexGuard, atomic};

/// Orders the accesses before it against those after it, if both are SeqCst atomics.
///
/// The language gives SeqCst accesses one total order, so that nothing is needed outside loom. Loom
/// treats them as AcqRel and needs the fence.
#[inline(always)]
pub(crate) fn seq_cst_order() {
    #[cfg(tokio_doca_loom)]
    ::loom::sync::atomic::fence(atomic::Ordering::SeqCst);
}

/// Returns a small number of the calling thread, to spread threads over words that they would
/// otherwise contend for. Several threads may have the same number.
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    // A const thread-local without a destructor allocates nothing, and can be used while the thread
    // ends.
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(0) });
    NUMBER.with(|number| match number.get() {
        0 => {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            number.get()
        }
        known => known,
    })
}
