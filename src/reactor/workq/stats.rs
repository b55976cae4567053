//! What a WorkQ has done so far: what is counted (`counts.rs`), what its devices and Slots say, and
//! what follows from those.

use std::time::Duration;

use super::handle::WorkQ;
use crate::device::Device;

/// What a WorkQ has done since it was built: the answer of [`WorkQ::stats`].
///
/// The numbers are exact while nothing happens; taken amid work they may differ by the Jobs that
/// began or ended meanwhile.
///
/// ```
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ, workq::Stats};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let dma = Dma::builder(&device).attach(&workq)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let before: Stats = workq.stats();
/// dma.copy(&src, &dst).await?;
/// let stats = workq.stats();
/// assert_eq!(stats.completed - before.completed, 1);
/// println!("{} of {} polls found nothing", stats.empty_polls, stats.polls);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Jobs that devices accepted, those finished inline included: `completed` and `in_flight`.
    pub submitted: u64,
    /// Jobs, receives and waits that are over, failed or not, collected from the device.
    pub completed: u64,
    /// Those of `completed` that the device finished inline, within the submission.
    pub inline: u64,
    /// Those of `completed` that were receives and got a message.
    pub received: u64,
    /// Those of `completed` that failed, flushed ones aside. Jobs that were finished inline are not
    /// counted: an inline failure is the answer of the call itself.
    pub failed: u64,
    /// Those of `completed` that were flushed: another job of their Rdma had failed, or the
    /// connection had ended, as it does for the receives that are posted at a regular end.
    pub flushed: u64,
    /// Jobs that devices have: they are over, but for being collected, or not.
    pub in_flight: u64,
    /// Results that nobody has fetched: of an Op that was not polled since or was forgotten, or of
    /// the caller's own loop.
    pub unfetched: u64,
    /// Operations that wait in line for a Slot.
    pub waiting: u64,
    /// How often devices were asked for completions.
    pub polls: u64,
    /// Those of `polls` that found none.
    pub empty_polls: u64,
    /// How often devices were asked to ring at the next completion.
    pub arms: u64,
    /// Events that were attended to: by a runtime's driver, or by [`WorkQ::clear`].
    pub wake_ups: u64,
    /// How long the engines of its devices have worked, for whatever WorkQ: counted when they
    /// pause. Adapters say nothing.
    pub engine_time: Duration,
}

impl WorkQ {
    /// What it has done so far. Always on: Jobs that are finished inline pay nothing for it.
    ///
    /// A provider that does not count what it finishes inline is not counted for that.
    pub fn stats(&self) -> Stats {
        let shared = &*self.0;
        let (counts, table) = (&shared.counts, &shared.core.table);
        let (in_flight, unfetched) = table.count();
        let inline: u64 = shared.queues().map(|queue| queue.inline_jobs()).sum();
        let reaped = counts.collected();
        let completed = reaped.saturating_sub(table.stale()) + inline;
        Stats {
            submitted: completed + in_flight,
            completed,
            inline,
            received: counts.messages(),
            failed: counts.failures(),
            flushed: counts.flushes(),
            in_flight,
            unfetched,
            waiting: (shared.waiters.waiting() + shared.stream_slots.line.waiting()) as u64,
            polls: counts.polls(),
            empty_polls: counts.empty_polls(),
            arms: counts.arms(),
            wake_ups: counts.wake_ups(),
            engine_time: shared.devices().filter_map(Device::engine_time).sum(),
        }
    }
}
