//! The timer of a WorkQ: a timerfd in the event handle, for futures that poll again by themselves
//! after a while. It needs neither a runtime's timers nor a thread.
//!
//! The timerfd is set to the earliest of all deadlines. The thread that handles an event after that
//! deadline removes the deadline and wakes all futures in line. Futures whose own deadline has not
//! come set the timerfd again.
//!
//! The *alarm* is the time at which a full device is asked again (`full.rs`). The timer remembers
//! the alarm and sets the timerfd for it again, since it must signal even if no future is polled.

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use super::clock::{Clock, Timerfd};
use super::handle::Driven;
use crate::error::{Error, JobError, Reason};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, Waiters, lock};

/// The value of `due` if there is no deadline.
const NEVER: u64 = u64::MAX;

pub(in crate::reactor) struct Timer {
    clock: Clock,
    /// Made when the timer is first set. Until then the event handle needs no descriptor for it.
    fd: OnceLock<Timerfd>,
    /// When the timerfd signals, in nanoseconds on the clock of the WorkQ. Written under the lock
    /// `set`.
    due: AtomicU64,
    /// When the alarm signals, or has signalled, in nanoseconds on the same clock.
    pub(in crate::reactor) alarm: AtomicU64,
    set: Mutex<()>,
    /// The futures that sleep until `due`, or longer.
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

    /// Makes the event handle of `driven`, which has this timer, signal at `due` or before. `due`
    /// is in nanoseconds on the clock. The caller must have put its future in line before.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if the kernel has no descriptor for the timer.
    pub(in crate::reactor) fn signal_at(
        &self,
        driven: &impl Driven,
        due: u64,
    ) -> Result<(), JobError> {
        let fd = self.fd(driven)?;
        let _set = lock(&self.set);
        self.signal_by(driven, fd, due)
    }

    /// Sets the timerfd if it would not signal by `due`. The caller holds the lock `set`.
    fn signal_by(&self, driven: &impl Driven, fd: &Timerfd, due: u64) -> Result<(), JobError> {
        let known = self.due.load(Ordering::Relaxed);
        if due < known {
            return self.set(driven, fd, due);
        }
        // The timerfd has signalled, and no thread has handled that event yet. It signals once
        // more, so that no deadline relies on that event.
        if known <= self.now() {
            return self.set(driven, fd, known);
        }
        Ok(())
    }

    /// Sets the timerfd to signal at `due`. The caller holds the lock `set`.
    fn set(&self, driven: &impl Driven, fd: &Timerfd, due: u64) -> Result<(), JobError> {
        // `due` is written first: the timerfd may signal before this thread continues, and
        // `on_time` reads `due` without the lock.
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

    /// Makes the timerfd, and adds it to the event handle. `Err` has the error code of the system.
    #[cold]
    fn make(&self, driven: &impl Driven) -> Result<&Timerfd, Option<i32>> {
        let code = |error: Error| error.errno();
        let _made = lock(&self.set);
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let fd = Timerfd::new().map_err(|errno| Some(errno as i32))?;
        driven.nest(fd.as_fd()).map_err(code)?;
        Ok(self.fd.get_or_init(|| fd))
    }

    /// Sets the alarm, in place of the earlier one. Only one caller at a time may set it. Returns
    /// false if the kernel has no timer; then no thread will receive the alarm.
    pub(in crate::reactor) fn set_alarm(&self, driven: &impl Driven, delay: Duration) -> bool {
        // The clock is read before the kernel's timer starts, so that `due` has passed when that
        // timer expires.
        let due = self.now() + delay.as_nanos() as u64;
        self.alarm.store(due, Ordering::SeqCst);
        self.signal_at(driven, due).is_ok()
    }

    /// Returns the time until the alarm is due.
    pub(in crate::reactor) fn alarm_left(&self) -> Duration {
        let due = self.alarm.load(Ordering::SeqCst);
        Duration::from_nanos(due.saturating_sub(self.now()))
    }

    /// Wakes the futures in line if the timer is due. Called after an event was handled.
    #[inline]
    pub(in crate::reactor) fn on_time(&self, driven: &impl Driven) {
        if self.due.load(Ordering::SeqCst) != NEVER {
            self.signal_in_time(driven);
        }
    }

    #[cold]
    fn signal_in_time(&self, driven: &impl Driven) {
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
            // The timerfd was set for this alarm before, and the kernel has no reason to refuse it
            // now.
            let _ = self.set(driven, fd, alarm);
        }
        drop(set);
        self.line.wake_all();
    }
}
