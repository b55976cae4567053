//! The event handle of a WorkQ on Tokio: one `AsyncFd` per runtime, with the fan-out waker in it.
//!
//! There is no driver task. When Tokio's driver wakes the fan-out waker, the waker clears
//! readiness, registers itself again, reaps, and arms if a future waits. It never reads the
//! eventfd: Tokio's epoll is edge-triggered, and each write is an edge.
//!
//! - The fan-out waker holds a `Weak`: the waker, the WorkQ and the AsyncFd would otherwise keep
//!   each other alive for ever.
//! - Readiness is polled under `unconstrained`. Otherwise, with a spent budget, Tokio would wake
//!   the waker at once, and the waker would poll again, until the stack overflows.
//! - The handle is registered at the first Pending on a runtime, since an idle or blocked runtime
//!   must not delay operations on other runtimes.
//! - If a runtime is shut down, all futures that wait are woken, and register the handle on the
//!   runtime where they are polled next.
//! - The loop that clears readiness is bounded, since a hang-up cannot be cleared.
//!
//! The caller's own loop gets an epoll descriptor that spans all sources. The descriptor is made
//! when the caller first asks for it, and stays the same, whatever is attached later. A loop that
//! reads the eventfd takes the edge from Tokio's epoll, so the loop also takes a turn itself
//! (`loops/own_loop.rs`).
#![expect(unsafe_code, reason = "AsyncFd must be promised an open descriptor")]

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};

use arrayvec::ArrayVec;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::runtime::{self, Handle};

use super::this_thread;
use crate::device::Signal;
use crate::error::{Error, JobError, Reason, Result};
use crate::sync::{Process, lock, log};

/// The maximum number of runtimes that can be registered with one WorkQ.
const RUNTIMES: usize = 4;
/// The maximum number of times that readiness is cleared in one turn.
const CLEARS: usize = 8;
/// The maximum number of events that one call of `epoll_wait` reads: enough for the signal, the
/// timer and the descriptors of all devices.
const SOURCES: usize = 16;
/// The flags of a descriptor inside the event handle: each event is reported once (edge-triggered).
const EDGES: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLET);

/// The owner of an event handle: the WorkQ's `Shared`, which handles the events.
pub(in crate::reactor) trait Driven: Send + Sync + 'static {
    fn events(&self) -> &Events;

    /// Adds a descriptor to the event handle, which has the signal already. Afterwards, once it
    /// holds no locks, the caller takes a turn of the WorkQ, which may run code of the application.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if the kernel refuses the descriptor.
    fn nest(&self, fd: BorrowedFd<'_>) -> Result<()>;

    /// Handles an event, after the event handle has turned readable.
    fn event_turn(&self);

    /// Makes all futures that wait poll again, since the runtime of some of them was shut down.
    fn wake_all(&self);

    /// Notifies the caller's own loop that an operation that it has posted shall be polled.
    fn fire(&self);
}

/// The event handle, and the runtimes that it is registered with.
pub(in crate::reactor) struct Events {
    signal: Arc<Signal>,
    /// In a loom model: the waker of the task that waits for the event handle.
    #[cfg(tokio_doca_loom)]
    pub(in crate::reactor) driver: crate::sync::Mutex<Option<Waker>>,
    /// The epoll descriptor over the signal, the timer, and the descriptors of queues that have
    /// their own.
    nest: OnceLock<Epoll>,
    /// `lend` was called: the caller's own loop polls.
    lent: AtomicBool,
    inner: Mutex<EventHandleInner>,
}

struct EventHandleInner {
    /// The handle has descriptors beside the signal, so that runtimes must be registered with
    /// `nest`.
    several: bool,
    sources: [Option<Arc<Source>>; RUNTIMES],
    /// The errors of runtimes that could not be registered again, for the log.
    lost: ArrayVec<JobError, RUNTIMES>,
    /// The runtime without I/O that `try_register` has met last, and does not try again.
    without_io: Option<runtime::Id>,
}

/// The registration of the event handle with one runtime.
struct Source {
    /// `None` only while this is being dropped.
    fd: Option<AsyncFd<OwnedFd>>,
    process: Process,
    runtime: Handle,
    driven: Weak<dyn Driven>,
    waker: OnceLock<Waker>,
}

/// The fan-out waker: the waker in the `AsyncFd`.
struct FanOut(Weak<Source>);

impl Events {
    pub(in crate::reactor) fn new() -> Result<Events> {
        let signal =
            Signal::new().map_err(|error| Error::os("WorkQBuilder::build", "eventfd", error))?;
        let inner = EventHandleInner {
            several: false,
            sources: [const { None }; RUNTIMES],
            lost: ArrayVec::new(),
            without_io: None,
        };
        Ok(Events {
            signal: Arc::new(signal),
            #[cfg(tokio_doca_loom)]
            driver: crate::sync::Mutex::new(None),
            nest: OnceLock::new(),
            lent: AtomicBool::new(false),
            inner: Mutex::new(inner),
        })
    }

    pub(in crate::reactor) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Makes the event handle readable.
    pub(in crate::reactor) fn raise(&self) {
        #[cfg(not(tokio_doca_loom))]
        self.signal.raise();
        #[cfg(tokio_doca_loom)]
        {
            let driver = crate::sync::lock(&self.driver).clone();
            driver.into_iter().for_each(Waker::wake);
        }
    }

    /// In a loom model, notifies the driver that time may pass, up to the time at which the timer
    /// is due.
    #[inline(always)]
    pub(super) fn timer_is_set(&self) {
        #[cfg(tokio_doca_loom)]
        self.raise();
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, EventHandleInner> {
        lock(&self.inner)
    }

    /// Adds a descriptor to the event handle. Returns false if a runtime that was registered could
    /// not be registered again.
    pub(in crate::reactor) fn nest(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        let mut inner = self.inner();
        let nest = self.span(&inner, None)?;
        nest.add(fd, EpollEvent::new(EDGES, 1))
            .map_err(|errno| Error::os(None, "epoll", errno.into()))?;
        inner.several = true;
        // The runtimes of the old handle are registered with the new one: a future that waits, or
        // that has left an orphan, must still be woken there.
        let old = std::mem::replace(&mut inner.sources, [const { None }; RUNTIMES]);
        let mut all = true;
        for source in old.iter().flatten() {
            let _runtime = source.runtime.enter();
            let (driven, runtime) = (source.driven.clone(), source.runtime.clone());
            if let Err(error) = inner.register(nest.0.as_fd(), driven, runtime) {
                // One error for each runtime is enough to say why.
                let _ = inner.lost.try_push(error);
                all = false;
            }
        }
        drop(inner);
        drop(old);
        Ok(all)
    }

    /// Logs why runtimes could not be registered again. The caller holds no lock, since a
    /// subscriber to the log is code of the application.
    #[cold]
    pub(in crate::reactor) fn log_lost(&self) {
        let lost = std::mem::take(&mut self.inner().lost);
        for error in lost {
            log(|| tracing::error!(%error, "a runtime could not be registered again"));
        }
    }

    /// Registers the event handle with this thread's runtime, unless it is registered already.
    ///
    /// # Errors
    ///
    /// `BadState` without a runtime, or beyond four runtimes; `OperatingSystem` if the kernel or
    /// Tokio refuses the registration. Without a runtime, the call succeeds in `WorkQ::block_on`,
    /// where the thread itself polls, and once the event handle was lent to the caller's own loop,
    /// which polls then.
    ///
    /// # Panics
    ///
    /// Panics in a runtime without I/O, as Tokio's own types for descriptors do, since Tokio cannot
    /// be asked whether a runtime has I/O. An operation that begins calls this before it has a slot
    /// or is in a list, so that the panic leaves nothing behind. An operation that began on another
    /// runtime continues as after a drop.
    #[inline]
    pub(in crate::reactor) fn register<T: Driven>(&self, driven: &Arc<T>) -> Result<(), JobError> {
        let Ok(handle) = Handle::try_current() else {
            return self.check_polled_elsewhere(&**driven);
        };
        let inner = self.inner();
        if inner.has(&handle) {
            return Ok(());
        }
        // A thread that polls by itself may have entered a runtime for the sake of Tokio's timers.
        if this_thread::is_in_own_loop(&**driven) || this_thread::is_in_block_on(&**driven) {
            return Ok(());
        }
        drop(inner);
        // In a runtime without I/O this panics. No lock is held here, since the process's panic
        // hook runs.
        drop(UnixStream::pair());
        let mut inner = self.inner();
        if inner.has(&handle) {
            return Ok(());
        }
        let spanned = self.nest.get().filter(|_| inner.several);
        let fd = spanned.map_or(self.signal.as_fd(), |nest| nest.0.as_fd());
        let driven = Arc::downgrade(driven);
        inner.register(fd, driven, handle)
    }

    /// Registers as `register` does, for callers that may neither fail nor panic, such as a drop.
    /// Returns true if this thread's runtime or loop receives events.
    #[cold]
    pub(in crate::reactor) fn try_register<T: Driven>(&self, driven: &Arc<T>) -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return self.check_polled_elsewhere(&**driven).is_ok();
        };
        let inner = self.inner();
        if inner.has(&runtime) || inner.without_io == Some(runtime.id()) {
            return inner.has(&runtime);
        }
        drop(inner);
        match catch_unwind(AssertUnwindSafe(|| self.register(driven))) {
            Ok(registered) => registered.is_ok(),
            Err(_) => {
                self.inner().without_io = Some(runtime.id());
                false
            }
        }
    }

    /// Checks, on a thread without a runtime, that this thread or the caller's own loop polls for
    /// the WorkQ. Returns an error if neither does.
    #[cold]
    fn check_polled_elsewhere<T: Driven>(&self, driven: &T) -> Result<(), JobError> {
        let is_heard = self.lent.load(Ordering::Relaxed) || this_thread::is_in_block_on(driven);
        if is_heard || this_thread::is_in_own_loop(driven) {
            return Ok(());
        }
        Err(JobError::of(Reason::NoRuntime))
    }

    /// Returns one descriptor for all event sources, present and future. The caller's own loop
    /// waits for it from now on.
    pub(in crate::reactor) fn lend(&self) -> Result<BorrowedFd<'_>> {
        let nest = self.span(&self.inner(), "WorkQ::event_handle")?;
        self.lent.store(true, Ordering::Relaxed);
        Ok(nest.0.as_fd())
    }

    /// Returns the epoll descriptor over all event sources, and makes it at the first call. The
    /// caller holds the lock, so that only one is made.
    fn span(
        &self,
        _inner: &EventHandleInner,
        op: impl Into<Option<&'static str>>,
    ) -> Result<&Epoll> {
        let op = op.into();
        if let Some(nest) = self.nest.get() {
            return Ok(nest);
        }
        let fail = |errno: nix::Error| Error::os(op, "epoll", errno.into());
        let nest = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(fail)?;
        nest.add(self.signal.as_fd(), EpollEvent::new(EDGES, 0))
            .map_err(fail)?;
        Ok(self.nest.get_or_init(|| nest))
    }

    /// Sleeps until the event handle is readable, or `bell` is signalled. Returns true if the event
    /// handle is readable, or may be.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if the kernel has no descriptor for the event handle. The thread has not
    /// slept then.
    pub(in crate::reactor) fn wait(&self, bell: &Signal) -> Result<bool> {
        let nest = self.span(&self.inner(), "WorkQ::block_on")?;
        let mut fds = [nest.0.as_fd(), bell.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // A signal handler that ran meanwhile is a reason to poll as well.
        let interrupted = poll(&mut fds, PollTimeout::NONE).is_err();
        Ok(interrupted || fds[0].any().unwrap_or(true))
    }

    /// Makes the event handle of the caller's own loop quiet: it is no longer readable because of
    /// earlier signals.
    pub(in crate::reactor) fn quiet(&self) {
        self.signal.quiet();
        let several = self.inner().several;
        if let Some(nest) = self.nest.get().filter(|_| several) {
            // An event that was read is no longer reported. An event that cannot be cleared (a
            // hang-up) is reported once.
            let mut events = [EpollEvent::empty(); SOURCES];
            let _ = nest.wait(&mut events, EpollTimeout::ZERO);
        }
    }

    /// Removes a registration that could not be renewed (`Source::rearm`).
    fn forget(&self, source: &Arc<Source>) {
        let mut inner = self.inner();
        let known = inner.sources.iter_mut().find(|known| {
            known
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, source))
        });
        let old = known.and_then(Option::take);
        drop(inner);
        drop(old);
    }
}

impl EventHandleInner {
    /// Returns true if this runtime is registered.
    fn has(&self, runtime: &Handle) -> bool {
        let mut sources = self.sources.iter().flatten();
        sources.any(|source| source.runtime.id() == runtime.id())
    }

    #[cold]
    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        driven: Weak<dyn Driven>,
        runtime: Handle,
    ) -> Result<(), JobError> {
        let errno = |error: io::Error| {
            JobError::new(
                Reason::Register,
                error.raw_os_error().unwrap_or(0) as u64,
                0,
            )
        };
        let Some(free) = self.sources.iter_mut().find(|source| source.is_none()) else {
            return Err(JobError::new(Reason::TooManyRuntimes, RUNTIMES as u64, 0));
        };
        // Each registration has a duplicate of the descriptor: epoll identifies a registration by
        // its descriptor, and the handle may be registered several times.
        let fd = fd.try_clone_to_owned().map_err(errno)?;
        let fd = readable_fd(fd).map_err(errno)?;
        let source = Arc::new(Source {
            fd: Some(fd),
            process: Process::current(),
            runtime,
            driven,
            waker: OnceLock::new(),
        });
        let waker = Waker::from(Arc::new(FanOut(Arc::downgrade(&source))));
        let waker = source.waker.get_or_init(|| waker);
        source.rearm(waker).map_err(errno)?;
        *free = Some(source);
        Ok(())
    }
}

/// Registers a descriptor for reading with the runtime of this thread, which must have I/O.
pub(crate) fn readable_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same until the AsyncFd drops it.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(registered?)
}

impl Drop for Source {
    /// Removes the registration, except in a child of fork(2). The child shares the runtime's epoll
    /// descriptor: if it removed the registration, its parent would no longer receive events.
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.fd.take());
        }
    }
}

impl Source {
    /// Clears readiness and registers the waker again. Fails if the runtime was shut down, or if
    /// readiness cannot be cleared.
    fn rearm(&self, waker: &Waker) -> io::Result<()> {
        let mut cx = Context::from_waker(waker);
        let Some(fd) = &self.fd else { return Ok(()) };
        for _ in 0..CLEARS {
            // "Would block" clears the readiness that was reported. This costs less than a poll
            // that returns ready.
            let clear = |_: &OwnedFd| Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = fd.try_io(Interest::READABLE, clear);
            let ready = poll_fn(|cx| fd.poll_read_ready(cx));
            match pin!(tokio::task::unconstrained(ready)).poll(&mut cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(guard) => guard?.clear_ready(),
            }
        }
        Err(io::Error::other(
            "the event handle cannot be cleared: a provider's descriptor hung up",
        ))
    }
}

impl Wake for FanOut {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(source) = self.0.upgrade() else {
            return;
        };
        let Some(driven) = source.driven.upgrade() else {
            return;
        };
        let Some(waker) = source.waker.get() else {
            return;
        };
        match source.rearm(waker) {
            Ok(()) => driven.event_turn(),
            Err(error) => {
                log(|| tracing::debug!(%error, "a runtime is not registered any more"));
                driven.events().forget(&source);
                driven.wake_all();
            }
        }
    }
}
