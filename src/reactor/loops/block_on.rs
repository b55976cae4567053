//! `WorkQ::block_on`: runs a future on this thread, without a runtime. The thread spins while jobs
//! are in flight. For receives and waits it sleeps, at once or after a while.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::device::Signal;
use crate::reactor::events::{Driven, this_thread};
use crate::reactor::spin::Spin;
use crate::reactor::workq::{Shared, WorkQ};

/// The number of turns of the loop after which the thread yields the CPU once.
const MISSES: u32 = 1024;

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
    /// Signalled to wake the thread while it sleeps on the event handle and on this. Made when the
    /// thread first sleeps.
    bell: OnceLock<Signal>,
    asleep: AtomicBool,
}

impl Unpark {
    /// Sleeps until the event handle signals or the future is woken. Returns false if the thread
    /// cannot sleep.
    #[cold]
    fn sleep(&self, shared: &Shared) -> bool {
        let Ok(bell) = self.bell() else { return false };
        // Pairs with `wake`: either the waking thread sees `asleep`, or this thread sees `woken`.
        self.asleep.store(true, Ordering::SeqCst);
        let slept = if self.woken.load(Ordering::SeqCst) {
            true
        } else if shared.arm() {
            shared.turn();
            true
        } else {
            let signalled = shared.events.wait(bell);
            if let Ok(true) = signalled {
                // As in `WorkQ::clear`: an event that was read may have been for other futures too.
                shared.events.quiet();
                shared.event_turn();
            }
            signalled.is_ok()
        };
        self.asleep.store(false, Ordering::SeqCst);
        bell.quiet();
        slept
    }

    fn bell(&self) -> io::Result<&Signal> {
        match self.bell.get() {
            Some(bell) => Ok(bell),
            None => {
                let bell = Signal::new()?;
                Ok(self.bell.get_or_init(|| bell))
            }
        }
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The Release in SeqCst is paired with the Acquire in `run`. The second of two wakes needs
        // no system call.
        if !self.woken.swap(true, Ordering::SeqCst) && thread::current().id() != self.thread.id() {
            self.thread.unpark();
            if self.asleep.load(Ordering::SeqCst)
                && let Some(bell) = self.bell.get()
            {
                bell.raise();
            }
        }
    }
}

impl WorkQ {
    /// Runs a future to completion on this thread. No runtime is needed in any mode; in
    /// [`Mode::BusyPoll`](crate::Mode) jobs make no system calls.
    ///
    /// While jobs are in flight, the thread spins, without a system call per job, and now and then
    /// yields the CPU. While no jobs are in flight, the thread sleeps until the future is woken, or
    /// until a receive or a wait for a sync event has an event. Only this thread polls for
    /// operations inside the future. So the future must not block this thread on a runtime that
    /// awaits operations of this WorkQ.
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
        self.run(future, Duration::ZERO)
    }

    /// Hands over to this thread's runtime, if there is one. The thread stops polling, and from
    /// then on the runtime notices the completions of jobs, receives and waits that are left.
    fn hand_over(&self) {
        let shared = &self.0;
        let any_left = shared.core.table.any_in_flight() || shared.core.registry.any_asleep();
        if any_left && Handle::try_current().is_ok() {
            let heard = shared.events.try_register(shared);
            shared.arm_for_orphans(heard);
        }
    }

    /// Runs a future as `block_on` does. While no job is in flight, polls for the time `spin`
    /// before the thread sleeps.
    pub(super) fn run<F: Future>(&self, future: F, spin: Duration) -> F::Output {
        // This may run in a task of a runtime whose budget is spent. An operation that waited for a
        // new budget would wait for ever, since the runtime does not run before this returns.
        let mut future = pin!(tokio::task::unconstrained(future));
        let doing = this_thread::enter_block_on(&*self.0);
        let unpark = Arc::new(Unpark {
            thread: thread::current(),
            woken: AtomicBool::new(true),
            bell: OnceLock::new(),
            asleep: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&unpark));
        let mut cx = Context::from_waker(&waker);
        let mut misses = 0_u32;
        let spin = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
        let mut idle = Spin::counted_late();
        loop {
            // Acquire: the poll sees what a thread did before it woke the future.
            if unpark.woken.swap(false, Ordering::Acquire) {
                idle = Spin::counted_late();
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    drop(doing);
                    self.hand_over();
                    return output;
                }
            } else if !self.0.core.table.any_in_flight() && idle.is_time_over(spin, || self.0.now())
            {
                // In busy mode, whatever the future waits for here calls its waker.
                if self.0.mode.load().is_busy() && !self.0.core.registry.any_asleep() {
                    // `unpark` before `park` makes `park` return at once.
                    thread::park();
                    continue;
                }
                // The event handle signals for receives and waits, for the end of a connection, for
                // a turn that `notify_line` has requested, and for the timer.
                if unpark.sleep(&self.0) {
                    continue;
                }
            }
            if self.0.ready() {
                self.0.turn();
            }
            misses = misses.wrapping_add(1);
            if misses.is_multiple_of(MISSES) {
                thread::yield_now();
            }
            self.0.timer.on_time(&*self.0);
            self.0.resume_if_due();
            self.0.answer_signal();
        }
    }
}
