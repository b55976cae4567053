//! How an Op waits: a policy of the waiter, which can change while it waits.
//!
//! The mode is one word, read at each poll. The party that is about to sleep reads it once more
//! afterwards: either it sees the new mode, or whoever set that sees it asleep, and wakes it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::seq_cst_order;

/// How an operation waits. One WorkQ serves all modes.
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
    /// The task sleeps, and the event handle wakes it: needs a Tokio runtime with I/O. (DOCA's
    /// default is polling; a Tokio service must not burn a core unasked.)
    ///
    /// An idle WorkQ makes no wake-ups, with two exceptions. While the device refuses jobs for
    /// which the WorkQ has room, and operations wait to be submitted, the WorkQ asks the device
    /// again after 1 ms, then after twice as long each time, and at last every 100 ms. And a
    /// [`SyncEvent::wait_gt`](crate::sync_event::SyncEvent::wait_gt) looks at the value at least
    /// every 8.4 ms on a device that cannot wait, and while other waits have all places of its
    /// event.
    ///
    /// # Panics
    ///
    /// In a runtime without I/O an operation panics when it is polled and would wait, and so do
    /// `start`, `bind` and `accept`, as all of Tokio's types for sockets do: build the runtime with
    /// [`enable_io`](tokio::runtime::Builder::enable_io). Nothing is begun by then; an operation
    /// that was begun on another runtime continues as if it were dropped. The WorkQ can be used on.
    /// Where an operation in flight is dropped in such a runtime, the panic is caught, and the next
    /// operation that is polled hears of the end of the job: the panic hook may write a line, and
    /// with `panic = "abort"` the process ends.
    #[default]
    EventDriven,
    /// The task polls until the job has completed. Jobs make no system calls, and no runtime is
    /// needed. For latency-critical threads.
    BusyPoll,
    /// The task polls for a bounded time, and then sleeps as in event mode: the latency of
    /// busy-polling for short jobs, and almost no CPU time for long ones. Needs a Tokio runtime
    /// with I/O.
    ///
    /// It is meant for up to 16 operations that wait at once. One of them polls for all, the last
    /// that began to wait; the others sleep as in event mode. While more than 16 receives and waits
    /// for sync events sleep, all operations do.
    ///
    /// If most polling is in vain, because jobs take longer than `spin` or because the device or
    /// the peer needs this CPU, most operations sleep at once: one in 65 polls, and polling takes
    /// at most 1 % of the time, until it helps again. Waits for the end of a connection and for
    /// [`shutdown`](crate::WorkQ::shutdown) always sleep.
    ///
    /// Polling is cooperative: after each poll the other tasks of the thread run.
    Hybrid {
        /// The time for which an operation polls before it sleeps, at most 1 s. If it is shorter
        /// than a wake-up takes, 20 to 50 us, both sides sleep at each job. The clock is read now
        /// and then only, so that it may be exceeded by a few polls.
        spin: Duration,
    },
}

/// The longest spin: who wants more wants [`Mode::BusyPoll`].
const LONGEST: Duration = Duration::from_secs(1);

const EVENT: u64 = 0;
const BUSY: u64 = u64::MAX;

/// A mode in a word: nanoseconds and one for Hybrid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy(u64);

impl Policy {
    /// Who waits sleeps at once.
    pub(super) const EVENT: Policy = Policy(EVENT);

    /// Checks a mode.
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

    /// Nobody sleeps: all look themselves.
    #[inline(always)]
    pub(super) fn is_busy(self) -> bool {
        self.0 == BUSY
    }

    /// Who waits sleeps at once.
    #[inline(always)]
    pub(super) fn is_event(self) -> bool {
        self.0 == EVENT
    }

    /// Nanoseconds of polling before the sleep.
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

    /// Returns true if it is another one by now. To be asked by who is about to sleep, after it can
    /// be found. Pairs with `set`.
    #[inline(always)]
    pub(super) fn is_still(&self, policy: Policy) -> bool {
        seq_cst_order();
        self.0.load(Ordering::SeqCst) == policy.0
    }

    /// Who sleeps must be woken afterwards.
    pub(super) fn set(&self, policy: Policy) {
        self.0.store(policy.0, Ordering::SeqCst);
        seq_cst_order();
    }
}

/// Looks in one busy poll. Without `pause`: one costs as much as eighty loads.
pub(super) const LOOKS: usize = if cfg!(tokio_doca_loom) { 1 } else { 32 };
/// Busy polls that find nothing before the CPU is given up: about 30 us.
pub(super) const MISSES: u32 = 256;
/// And how many of them are forgiven then.
const FORGIVEN: u32 = 64;

/// Busy polls that found nothing, in a row, of all futures and loops that poll one WorkQ.
pub(super) struct Misses(AtomicU32);

impl Misses {
    pub(super) fn new() -> Misses {
        Misses(AtomicU32::new(0))
    }

    /// A poll has found something.
    #[inline(always)]
    pub(super) fn reset(&self) {
        self.0.store(0, Relaxed);
    }

    /// A poll has found nothing: after a budget the CPU is given up once.
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
