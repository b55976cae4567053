//! The timer of a WorkQ: a timerfd in its event handle, for those that look again by themselves
//! after a while. It needs no timers of a runtime, and no thread.
//!
//! The timerfd is set to the earliest deadline of all. The thread that attends to an event after it
//! takes that deadline out and wakes all in line; those whose own time has not come set it anew.
//! [`Nap`] is the pause of a future between two looks. It ends at a multiple of its length, so that
//! many naps share their ends.
//!
//! The alarm is the deadline of a full device (`full.rs`). No future sets that one anew, since it
//! must ring although none is polled: the timer remembers it.
#![expect(unsafe_code, reason = "stands in a line, and pins its nodes")]

use std::error::Error as _;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project::pin_project;

use super::clock::Timerfd;
use super::mode::Spin;
use super::workq::{Shared, WorkQ};
use crate::error::{Error, JobError, Reason};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, WaitNode, Waiters, lock};

/// No deadline.
const NEVER: u64 = u64::MAX;

pub(super) struct Timer {
    /// Made by the first that needs it: until then the event handle is one descriptor less deep.
    fd: OnceLock<Timerfd>,
    /// When it rings, in nanoseconds on the clock of the WorkQ. Written under the lock.
    due: AtomicU64,
    /// When the alarm rings, or has rung.
    pub(super) alarm: AtomicU64,
    set: Mutex<()>,
    /// Those that sleep until then, or for longer.
    pub(super) line: Waiters,
}

impl Timer {
    pub(super) fn new() -> Timer {
        Timer {
            fd: OnceLock::new(),
            due: AtomicU64::new(NEVER),
            alarm: AtomicU64::new(0),
            set: Mutex::new(()),
            line: Waiters::new(),
        }
    }

    /// Whether it will ring.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.due.load(Ordering::SeqCst) != NEVER
    }
}

impl Shared {
    /// Has the event handle ring at this time, in nanoseconds on the clock of the WorkQ, or before.
    /// To be called after the caller can be found in line.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if there is no descriptor for the timer.
    pub(super) fn ring_at(self: &Arc<Self>, due: u64) -> Result<(), JobError> {
        let fd = self.timer_fd()?;
        let _set = lock(&self.timer.set);
        self.ring_by(fd, due)
    }

    /// The caller has the lock.
    fn ring_by(&self, fd: &Timerfd, due: u64) -> Result<(), JobError> {
        let known = self.timer.due.load(Ordering::Relaxed);
        if due < known {
            return self.set_timer(fd, due);
        }
        // It has rung, and nobody has attended to it yet: once more, so that no deadline rests on that.
        if known <= self.now() {
            return self.set_timer(fd, known);
        }
        Ok(())
    }

    /// The caller has the lock.
    fn set_timer(&self, fd: &Timerfd, due: u64) -> Result<(), JobError> {
        // First: it may ring before this thread goes on, and `on_time` reads this without the lock.
        let before = self.timer.due.swap(due, Ordering::SeqCst);
        fd.set(&self.clock, due).map_err(|errno| {
            self.timer.due.store(before, Ordering::SeqCst);
            JobError::new(Reason::Register, errno as i32 as u64, 0)
        })?;
        // A model's driver hears that time may pass as far as that.
        #[cfg(tokio_doca_loom)]
        self.events.ring();
        Ok(())
    }

    fn timer_fd(self: &Arc<Self>) -> Result<&Timerfd, JobError> {
        match self.timer.fd.get() {
            Some(fd) => Ok(fd),
            None => self
                .hear_timer()
                .map_err(|errno| JobError::new(Reason::Register, errno.unwrap_or(0) as u64, 0)),
        }
    }

    /// Makes the timer, and takes it into the event handle. `Err` has the error of the system.
    #[cold]
    fn hear_timer(self: &Arc<Self>) -> Result<&Timerfd, Option<i32>> {
        let code = |error: Error| {
            let source = error.source()?.downcast_ref::<io::Error>()?;
            source.raw_os_error()
        };
        let timer = &self.timer;
        let _made = lock(&timer.set);
        if let Some(fd) = timer.fd.get() {
            return Ok(fd);
        }
        let fd = Timerfd::new().map_err(|errno| Some(errno as i32))?;
        self.nest(fd.as_fd()).map_err(code)?;
        let fd = timer.fd.get_or_init(|| fd);
        Ok(fd)
    }

    /// Sets the alarm, in place of the one before: one caller at a time. Returns false if the
    /// kernel has no timer to give; then nobody hears it.
    pub(super) fn set_alarm(self: &Arc<Self>, delay: Duration) -> bool {
        // Before the kernel's timer starts, so that the time is over when that one expires.
        let due = self.now() + delay.as_nanos() as u64;
        self.timer.alarm.store(due, Ordering::SeqCst);
        self.ring_at(due).is_ok()
    }

    /// Returns how long it takes until the alarm is due.
    pub(super) fn alarm_left(&self) -> Duration {
        let due = self.timer.alarm.load(Ordering::SeqCst);
        Duration::from_nanos(due.saturating_sub(self.now()))
    }

    /// An event was attended to: if the timer may have rung, those in line look again.
    #[inline]
    pub(super) fn on_time(&self) {
        if self.timer.is_set() {
            self.ring_in_time();
        }
    }

    #[cold]
    fn ring_in_time(&self) {
        let timer = &self.timer;
        let set = lock(&timer.set);
        let now = self.now();
        if now < timer.due.load(Ordering::Relaxed) {
            return;
        }
        timer.due.store(NEVER, Ordering::SeqCst);
        let alarm = timer.alarm.load(Ordering::SeqCst);
        if alarm > now
            && let Some(fd) = timer.fd.get()
        {
            // It was set before with the same arguments, and the kernel has no reason to refuse it.
            let _ = self.set_timer(fd, alarm);
        }
        drop(set);
        timer.line.wake_all();
    }

    /// Stands in line for the timer.
    fn enqueue_timed(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: Shared is in an Arc, of which the `Nap` that has the node owns a count: its node
        // is dropped first, by the order of its fields, and stands in this line alone.
        unsafe { self.timer.line.enqueue(node, waker) };
    }
}

/// The first pause of a nap, and the longest, in nanoseconds: 131 us and 8.4 ms.
const FIRST: u64 = 1 << 17;
const LONGEST: u64 = 1 << 23;

/// The pauses of a future between looks, each twice as long as the one before.
#[pin_project]
pub struct Nap {
    // Dropped before the handle that keeps its list.
    #[pin]
    node: WaitNode,
    workq: WorkQ,
    /// When it ends, while it goes on.
    until: Option<u64>,
    /// How long the last one was.
    pause: u64,
    spin: Spin,
}

impl Nap {
    pub(crate) fn new(workq: WorkQ) -> Nap {
        Nap {
            node: WaitNode::new(),
            workq,
            until: None,
            pause: 0,
            spin: Spin::default(),
        }
    }

    /// One that has begun, and ends then.
    #[cfg(all(test, tokio_doca_loom))]
    pub(super) fn until(workq: WorkQ, until: u64) -> Nap {
        Nap {
            until: Some(until),
            ..Nap::new(workq)
        }
    }

    /// A look found nothing: sleeps on, or begins another pause if that is over. While the mode spins
    /// the task is woken at once.
    ///
    /// # Errors
    ///
    /// As for [`Nap::poll`].
    pub(crate) fn go_on(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Result<(), JobError> {
        if self.as_mut().poll(cx)?.is_pending() {
            return Ok(());
        }
        self.as_mut().begin();
        if self.poll(cx)?.is_ready() {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    /// The next look is to come after a while. Not while the mode spins.
    fn begin(self: Pin<&mut Self>) {
        let this = self.project();
        let shared = &this.workq.0;
        let policy = shared.policy();
        if policy.is_busy() || !(policy.is_event() || this.spin.is_over(policy, || shared.now())) {
            return;
        }
        *this.pause = (*this.pause * 2).clamp(FIRST, LONGEST);
        *this.until = Some((shared.now() / *this.pause + 1) * *this.pause);
    }

    /// Sleeps until it is over; at once if none was begun.
    ///
    /// # Errors
    ///
    /// `BadState` where nobody would hear of its end; what the system says if there is no timer.
    pub(crate) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let this = self.project();
        let (shared, node) = (&this.workq.0, this.node.as_ref());
        let policy = shared.policy();
        let Some(until) = *this.until else {
            return Poll::Ready(Ok(()));
        };
        if policy.is_busy() || shared.now() >= until {
            *this.until = None;
            shared.timer.line.leave(node);
            return Poll::Ready(Ok(()));
        }
        shared.enqueue_timed(node, cx.waker());
        shared.ring_at(until)?;
        shared.turn_if_asked();
        // At last: the timer may be new, and this runtime may not have heard of it.
        shared.events.register(shared)?;
        if !shared.is_still(policy) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
