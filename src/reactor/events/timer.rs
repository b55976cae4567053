//! The timer of a WorkQ: a timerfd in its event handle, for those that look again by themselves
//! after a while. It needs no timers of a runtime, and no thread.
//!
//! The timerfd is set to the earliest deadline of all. The thread that attends to an event after it
//! takes that deadline out and wakes all in line; those whose own time has not come set it anew.
//!
//! The alarm is the deadline of a full device (`full.rs`). No future sets that one anew, since it
//! must ring although none is polled: the timer remembers it.

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use super::clock::{Clock, Timerfd};
use super::handle::Driven;
use crate::error::{Error, JobError, Reason};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, Waiters, lock};

/// No deadline.
const NEVER: u64 = u64::MAX;

pub(in crate::reactor) struct Timer {
    clock: Clock,
    /// Made by the first that needs it: until then the event handle is one descriptor less deep.
    fd: OnceLock<Timerfd>,
    /// When it rings, in nanoseconds on the clock of the WorkQ. Written under the lock.
    due: AtomicU64,
    /// When the alarm rings, or has rung.
    pub(in crate::reactor) alarm: AtomicU64,
    set: Mutex<()>,
    /// Those that sleep until then, or for longer.
    pub(in crate::reactor) line: Waiters,
}

impl Timer {
    pub(in crate::reactor) fn new() -> Timer {
        Timer {
            clock: Clock::new(),
            fd: OnceLock::new(),
            due: AtomicU64::new(NEVER),
            alarm: AtomicU64::new(0),
            set: Mutex::new(()),
            line: Waiters::new(),
        }
    }

    #[cfg(all(test, tokio_doca_loom))]
    pub(in crate::reactor) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the nanoseconds since the WorkQ was built.
    #[inline]
    pub(in crate::reactor) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Has the event handle of `driven`, which has this timer, ring at this time, in nanoseconds on
    /// the clock, or before. To be called after the caller can be found in line.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if there is no descriptor for the timer.
    pub(in crate::reactor) fn ring_at(
        &self,
        driven: &impl Driven,
        due: u64,
    ) -> Result<(), JobError> {
        let fd = self.fd(driven)?;
        let _set = lock(&self.set);
        self.ring_by(driven, fd, due)
    }

    /// The caller has the lock.
    fn ring_by(&self, driven: &impl Driven, fd: &Timerfd, due: u64) -> Result<(), JobError> {
        let known = self.due.load(Ordering::Relaxed);
        if due < known {
            return self.set(driven, fd, due);
        }
        // It has rung, and nobody has attended to it yet: once more, so that no deadline rests on
        // that.
        if known <= self.now() {
            return self.set(driven, fd, known);
        }
        Ok(())
    }

    /// The caller has the lock.
    fn set(&self, driven: &impl Driven, fd: &Timerfd, due: u64) -> Result<(), JobError> {
        // First: it may ring before this thread continues, and `on_time` reads this without the
        // lock.
        let before = self.due.swap(due, Ordering::SeqCst);
        fd.set(&self.clock, due).map_err(|errno| {
            self.due.store(before, Ordering::SeqCst);
            JobError::new(Reason::Register, errno as i32 as u64, 0)
        })?;
        driven.events().timer_is_set();
        Ok(())
    }

    fn fd(&self, driven: &impl Driven) -> Result<&Timerfd, JobError> {
        match self.fd.get() {
            Some(fd) => Ok(fd),
            None => self
                .make(driven)
                .map_err(|errno| JobError::new(Reason::Register, errno.unwrap_or(0) as u64, 0)),
        }
    }

    /// Makes the timer, and takes it into the event handle. `Err` has the error of the system.
    #[cold]
    fn make(&self, driven: &impl Driven) -> Result<&Timerfd, Option<i32>> {
        let code = |error: Error| error.system()?.raw_os_error();
        let _made = lock(&self.set);
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let fd = Timerfd::new().map_err(|errno| Some(errno as i32))?;
        driven.nest(fd.as_fd()).map_err(code)?;
        Ok(self.fd.get_or_init(|| fd))
    }

    /// Sets the alarm, in place of the one before: one caller at a time. Returns false if the
    /// kernel has no timer to give; then nobody hears it.
    pub(in crate::reactor) fn set_alarm(&self, driven: &impl Driven, delay: Duration) -> bool {
        // Before the kernel's timer starts, so that the time has passed when that one expires.
        let due = self.now() + delay.as_nanos() as u64;
        self.alarm.store(due, Ordering::SeqCst);
        self.ring_at(driven, due).is_ok()
    }

    /// Returns how long it takes until the alarm is due.
    pub(in crate::reactor) fn alarm_left(&self) -> Duration {
        let due = self.alarm.load(Ordering::SeqCst);
        Duration::from_nanos(due.saturating_sub(self.now()))
    }

    /// An event was attended to: if the timer may have rung, those in line look again.
    #[inline]
    pub(in crate::reactor) fn on_time(&self, driven: &impl Driven) {
        if self.due.load(Ordering::SeqCst) != NEVER {
            self.ring_in_time(driven);
        }
    }

    #[cold]
    fn ring_in_time(&self, driven: &impl Driven) {
        let set = lock(&self.set);
        let now = self.now();
        if now < self.due.load(Ordering::Relaxed) {
            return;
        }
        self.due.store(NEVER, Ordering::SeqCst);
        let alarm = self.alarm.load(Ordering::SeqCst);
        if alarm > now
            && let Some(fd) = self.fd.get()
        {
            // It was set before with the same arguments, and the kernel has no reason to refuse it.
            let _ = self.set(driven, fd, alarm);
        }
        drop(set);
        self.line.wake_all();
    }
}
