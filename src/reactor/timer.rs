//! The timer of a WorkQ: a timerfd inside its event handle, made when it is first set.
//!
//! Whoever hears the event handle hears the timer too: the runtimes on which operations were polled, and a loop of the
//! caller's own. A thread that polls busily, or is in `WorkQ::block_on`, reads the clock instead.

#[cfg(not(tokio_doca_loom))]
pub(super) use clock::Timer;
#[cfg(tokio_doca_loom)]
pub(super) use modelled::Timer;

#[cfg(not(tokio_doca_loom))]
mod clock {
    use std::os::fd::AsFd;
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use nix::sys::time::TimeSpec;
    use nix::sys::timer::{Expiration, TimerSetTimeFlags};
    use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

    use crate::reactor::workq::Shared;
    use crate::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    pub(in super::super) struct Timer {
        fd: OnceLock<TimerFd>,
        /// On the WorkQ's clock, in nanoseconds.
        due: AtomicU64,
    }

    impl Timer {
        /// Makes the event handle readable after `delay`. Returns false if the kernel has no timer to give: then nobody hears
        /// it. One caller at a time.
        pub(in super::super) fn set(&self, shared: &Arc<Shared>, delay: Duration) -> bool {
            // Before the kernel's timer starts, so that the time is over when that one expires.
            let due = shared.now() + delay.as_nanos() as u64;
            self.due.store(due, Ordering::SeqCst);
            let Some(timer) = self.fd(shared) else {
                return false;
            };
            let once = Expiration::OneShot(TimeSpec::from_duration(delay));
            timer.set(once, TimerSetTimeFlags::empty()).is_ok()
        }

        fn fd(&self, shared: &Arc<Shared>) -> Option<&TimerFd> {
            if let Some(timer) = self.fd.get() {
                return Some(timer);
            }
            let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
            let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).ok()?;
            shared.events.nest(shared, timer.as_fd()).ok()?;
            Some(self.fd.get_or_init(|| timer))
        }

        /// How long it takes until the timer is due.
        pub(in super::super) fn left(&self, shared: &Shared) -> Duration {
            let due = self.due.load(Ordering::SeqCst);
            Duration::from_nanos(due.saturating_sub(shared.now()))
        }
    }
}

/// A model has no clock: the timer expires when the model says so.
#[cfg(tokio_doca_loom)]
mod modelled {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::reactor::workq::Shared;
    use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};

    pub(in super::super) struct Timer {
        set: AtomicBool,
        due: AtomicBool,
    }

    impl Default for Timer {
        fn default() -> Timer {
            Timer {
                set: AtomicBool::new(false),
                due: AtomicBool::new(false),
            }
        }
    }

    impl Timer {
        pub(in super::super) fn set(&self, shared: &Arc<Shared>, _: Duration) -> bool {
            self.due.store(false, SeqCst);
            self.set.store(true, SeqCst);
            shared.events.ring();
            true
        }

        pub(in super::super) fn left(&self, _: &Shared) -> Duration {
            Duration::from_nanos(u64::from(!self.due.load(SeqCst)))
        }

        /// Lets the time pass. Returns false if the timer is not set.
        #[cfg(test)]
        pub(in super::super) fn expire(&self) -> bool {
            let set = self.set.load(SeqCst) && self.set.swap(false, SeqCst);
            if set {
                self.due.store(true, SeqCst);
            }
            set
        }
    }
}
