//! How an operation waits: by event, by polling, or both. The mode of a WorkQ can change while
//! operations wait.
//!
//! The mode is one word, which an operation reads at each poll. An operation that is about to sleep
//! reads the mode once more after it was marked as asleep. Either it sees a new mode then, or the
//! thread that set the mode sees that the operation sleeps, and wakes it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::seq_cst_order;

/// How the operations of a WorkQ wait. [`WorkQBuilder::mode`](crate::workq::WorkQBuilder::mode)
/// sets the mode, and [`WorkQ::set_mode`](crate::WorkQ::set_mode) changes it.
///
/// ```
/// use tokio_doca::{BufPool, Device, Dma, Mmap, Mode, WorkQ};
///
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// // A thread of the application's own, without a runtime.
/// let workq = WorkQ::builder().mode(Mode::BusyPoll).build()?;
/// let dma = Dma::builder(&device).attach(&workq)?;
/// let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
/// src.extend_from_slice(b"hello")?;
/// assert_eq!(workq.block_on(dma.copy(&src, &dst))?, 5);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The task sleeps, and the event handle wakes it. Needs a Tokio runtime with I/O. (DOCA polls
    /// by default. Here the default is to sleep, since a Tokio service must not occupy a core
    /// unasked.)
    ///
    /// An idle WorkQ makes no wake-ups, with two exceptions. While the device refuses jobs although
    /// the WorkQ has free slots, and operations wait to be submitted, the WorkQ asks the device
    /// again after 1 ms, then after twice as long each time, and at last every 100 ms. And a
    /// [`SyncEvent::wait_gt`](crate::sync_event::SyncEvent::wait_gt) reads the value at least every
    /// 8.4 ms in two cases: on a device that cannot wait, and while other waits use all of the
    /// event's entries ([`SyncEventBuilder::waits`](crate::sync_event::SyncEventBuilder::waits)).
    ///
    /// # Panics
    ///
    /// In a runtime without I/O an operation panics when it is polled and would wait, as Tokio's
    /// socket types do. [`Op::start`](crate::Op::start),
    /// [`WorkQ::shutdown`](crate::WorkQ::shutdown), and `bind` and `accept` of a listener panic
    /// there too. Build the runtime with [`enable_io`](tokio::runtime::Builder::enable_io). The
    /// operation has not begun when it panics; an operation that began on another runtime continues
    /// as if it were dropped. The WorkQ remains usable. If an operation in flight is dropped in
    /// such a runtime, the panic is caught, and the next operation that is polled notices the end
    /// of the job. The panic hook may still write a line about the panic. With `panic = "abort"`
    /// the process ends.
    #[default]
    EventDriven,
    /// The task polls until the job has completed. Jobs make no system calls, and no runtime is
    /// needed. It is meant for latency-critical threads.
    BusyPoll,
    /// The task polls for a bounded time, and then sleeps as in event mode. This gives the latency
    /// of busy-polling for short jobs, and uses almost no CPU time for long ones. Needs a Tokio
    /// runtime with I/O.
    ///
    /// Hybrid mode is meant for up to 16 operations that wait at once. The operation that began to
    /// wait last polls for all; the others sleep as in event mode. While more than 16 receives and
    /// waits for sync events sleep, all operations sleep.
    ///
    /// Most polls are in vain if jobs take longer than `spin`, or if the device or the peer needs
    /// this CPU. Then most operations sleep at once, until polling helps again: of 65 operations
    /// only one polls, and polling takes at most 1 % of the time. Waits for the end of a connection
    /// and for [`shutdown`](crate::WorkQ::shutdown) always sleep.
    ///
    /// Polling is cooperative: after each poll the other tasks of the thread run.
    Hybrid {
        /// The time for which an operation polls before it sleeps, at most 1 s. If it is shorter
        /// than a wake-up takes (20 to 50 us), two sides that wait for each other both sleep at
        /// each job. The operation reads the clock only now and then, so it may exceed the time by
        /// a few polls.
        spin: Duration,
    },
}

/// The maximum `spin` of [`Mode::Hybrid`]. To poll for longer, use [`Mode::BusyPoll`].
const LONGEST: Duration = Duration::from_secs(1);

const EVENT: u64 = 0;
const BUSY: u64 = u64::MAX;

/// A [`Mode`] in one word: `EVENT`, `BUSY`, or the nanoseconds of a Hybrid spin plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy(u64);

impl Policy {
    /// The policy of [`Mode::EventDriven`]: waiters sleep at once.
    pub(super) const EVENT: Policy = Policy(EVENT);

    /// Returns the policy of a mode, or an error if its spin is too long.
    pub(super) fn of(mode: Mode, op: &'static str) -> Result<Policy> {
        match mode {
            Mode::EventDriven => Ok(Policy(EVENT)),
            Mode::BusyPoll => Ok(Policy(BUSY)),
            Mode::Hybrid { spin } if spin <= LONGEST => Ok(Policy(spin.as_nanos() as u64 + 1)),
            Mode::Hybrid { spin } => {
                let text = format!(
                    "a spin of {spin:?}, and the longest is {LONGEST:?}: Mode::BusyPoll polls without end"
                );
                Err(Error::new(ErrorKind::InvalidValue, op, text))
            }
        }
    }

    pub(super) fn mode(self) -> Mode {
        match self.0 {
            EVENT => Mode::EventDriven,
            BUSY => Mode::BusyPoll,
            nanos => Mode::Hybrid {
                spin: Duration::from_nanos(nanos - 1),
            },
        }
    }

    /// Returns true if waiters never sleep, but poll by themselves.
    #[inline(always)]
    pub(super) fn is_busy(self) -> bool {
        self.0 == BUSY
    }

    /// Returns true if waiters sleep at once.
    #[inline(always)]
    pub(super) fn is_event(self) -> bool {
        self.0 == EVENT
    }

    /// Returns the nanoseconds for which a waiter polls before it sleeps.
    pub(super) fn spin(self) -> u64 {
        self.0.saturating_sub(1)
    }
}

/// The mode of a WorkQ.
pub(super) struct Current(AtomicU64);

impl Current {
    pub(super) fn new(policy: Policy) -> Current {
        Current(AtomicU64::new(policy.0))
    }

    #[inline(always)]
    pub(super) fn load(&self) -> Policy {
        Policy(self.0.load(Ordering::Relaxed))
    }

    /// Returns true if the mode is still `policy`. A waiter that is about to sleep calls this after
    /// it was marked as asleep, where the thread that calls `set` finds it. Pairs with `set`.
    #[inline(always)]
    pub(super) fn is_still(&self, policy: Policy) -> bool {
        seq_cst_order();
        self.0.load(Ordering::SeqCst) == policy.0
    }

    /// Sets the mode. The caller wakes all sleeping waiters afterwards.
    pub(super) fn set(&self, policy: Policy) {
        self.0.store(policy.0, Ordering::SeqCst);
        seq_cst_order();
    }
}

/// The number of polls of a queue in one busy poll. No `pause` instruction is executed between
/// them: it costs as much as eighty loads.
pub(super) const LOOKS: usize = if cfg!(tokio_doca_loom) { 1 } else { 32 };
/// The number of busy polls that find nothing before the thread yields the CPU: they take about 30
/// us.
pub(super) const MISSES: u32 = 256;
/// The number by which the count of misses is reduced when the thread yields, so that it yields
/// again after this number of further misses.
const FORGIVEN: u32 = 64;

/// The number of busy polls in a row that found nothing, of all futures and loops that poll one
/// WorkQ.
pub(super) struct Misses(AtomicU32);

impl Misses {
    pub(super) fn new() -> Misses {
        Misses(AtomicU32::new(0))
    }

    /// Resets the count after a poll that has found something.
    #[inline(always)]
    pub(super) fn reset(&self) {
        self.0.store(0, Relaxed);
    }

    /// Counts a poll that has found nothing. After `MISSES` such polls, yields the CPU once.
    pub(super) fn add(&self) {
        let misses = self.0.load(Relaxed) + 1;
        if misses < MISSES {
            self.0.store(misses, Relaxed);
        } else {
            self.0.store(MISSES - FORGIVEN, Relaxed);
            std::thread::yield_now();
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mode_comes_back_from_its_word() {
        for mode in [
            Mode::EventDriven,
            Mode::BusyPoll,
            Mode::Hybrid {
                spin: Duration::ZERO,
            },
            Mode::Hybrid {
                spin: Duration::from_nanos(1),
            },
            Mode::Hybrid { spin: LONGEST },
        ] {
            let policy = Policy::of(mode, "test").expect("in bounds");
            assert_eq!(policy.mode(), mode);
            assert_eq!(policy.is_busy(), mode == Mode::BusyPoll);
            assert_eq!(policy.is_event(), mode == Mode::EventDriven);
        }
        let spin = LONGEST + Duration::from_nanos(1);
        let error = Policy::of(Mode::Hybrid { spin }, "test").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(error.to_string().contains("1.000000001s"), "{error}");
    }
}
