//! Running a future on this thread, without a runtime: the thread spins for its Jobs.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::workq::{Shared, WorkQ};

// Const and without a destructor: it allocates nothing and outlives nothing.
thread_local!(static ON: Cell<*const Shared> = const { Cell::new(ptr::null()) });

/// Whether this thread looks for the Jobs of this WorkQ all the time.
pub(super) fn is_on(shared: &Arc<Shared>) -> bool {
    ON.get() == Arc::as_ptr(shared)
}

/// Until it is dropped this thread is in `block_on`. A nested call is about another WorkQ, maybe.
struct On(*const Shared);

impl On {
    fn enter(shared: &Arc<Shared>) -> On {
        On(ON.replace(Arc::as_ptr(shared)))
    }
}

impl Drop for On {
    fn drop(&mut self) {
        ON.set(self.0);
    }
}

/// Turns before the CPU is given up.
const MISSES: u32 = 1024;

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release, paired with the Acquire in `block_on`. The second of two wakes needs no system call.
        if !self.woken.swap(true, Ordering::Release) && thread::current().id() != self.thread.id() {
            self.thread.unpark();
        }
    }
}

impl WorkQ {
    /// Runs a future to its end on this thread. It needs no runtime, whatever the mode; [`Mode::BusyPoll`](super::Mode)
    /// makes no system calls.
    ///
    /// While Jobs are in flight the thread spins, without a system call per Job, and gives the CPU up after a budget;
    /// while none are, and the future waits for something else, it sleeps.
    ///
    /// ```
    /// use tokio_doca::{BufPool, Device, Dma, Mmap, Mode, WorkQ};
    ///
    /// let device = Device::open_default()?;
    /// let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
    /// let workq = WorkQ::builder().mode(Mode::BusyPoll).build()?;
    /// let dma = Dma::builder(&device).attach(&workq)?;
    /// let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
    /// src.extend_from_slice(b"hello")?;
    /// let copied = workq.block_on(async { dma.copy(&src, &dst).await })?;
    /// assert_eq!((copied, &dst.data()?[..]), (5, &b"hello"[..]));
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        // On a thread of a runtime, in a task whose budget is spent, what a budget puts off would be put off for ever: the runtime has
        // no turn before this returns.
        let mut future = pin!(tokio::task::unconstrained(future));
        let _on = On::enter(&self.0);
        let unpark = Arc::new(Unpark {
            thread: thread::current(),
            woken: AtomicBool::new(true),
        });
        let waker = Waker::from(Arc::clone(&unpark));
        let mut cx = Context::from_waker(&waker);
        let mut misses = 0_u32;
        loop {
            // Acquire: what was done before the wake is seen by the poll.
            if unpark.woken.swap(false, Ordering::Acquire) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
            } else if !self.0.core.table.any_in_flight() && !self.0.core.registry.any_asleep() {
                // `unpark` before `park` makes `park` return at once.
                match self.0.pause.left(&self.0) {
                    None if self.0.take_ring() => self.0.overtake(),
                    None => thread::park(),
                    Some(left) => {
                        thread::park_timeout(left);
                        self.0.resume_if_due();
                    }
                }
                continue;
            }
            if self.0.ready() {
                self.0.turn();
            }
            misses = misses.wrapping_add(1);
            if misses.is_multiple_of(MISSES) {
                thread::yield_now();
            }
            self.0.resume_if_due();
            if self.0.take_ring() {
                self.0.overtake();
            }
        }
    }
}
