//! The statistics of a WorkQ: its counts (`counts.rs`), the counts of its devices and slots, and
//! the numbers that follow from these.

use std::time::Duration;

use super::handle::WorkQ;
use crate::device::Device;

/// Counts of a WorkQ since it was built, as [`WorkQ::stats`] returns them.
///
/// The numbers are exact while the WorkQ is idle. If they are taken while jobs run, they may
/// contradict each other by the jobs that began or ended meanwhile.
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
    /// The number of jobs that devices accepted, including jobs that finished inline, and of
    /// receives and waits that have completed: `completed` plus `in_flight`.
    pub submitted: u64,
    /// The number of jobs, receives and waits that have completed, failed or not: those whose
    /// completion was collected from the device, and jobs that finished inline.
    pub completed: u64,
    /// The number of `completed` jobs that the device finished inline, within the submission.
    pub inline: u64,
    /// The number of `completed` receives that got a message.
    pub received: u64,
    /// The number of `completed` jobs, receives and waits that failed and were not flushed. Jobs
    /// that finished inline are not counted: their submission itself returns the failure.
    pub failed: u64,
    /// The number of `completed` jobs and receives that were flushed, because another job of their
    /// Rdma had failed or the connection had ended. A regular end flushes the receives that are
    /// still posted.
    pub flushed: u64,
    /// The number of jobs that devices have, including completed jobs that were not collected yet.
    pub in_flight: u64,
    /// The number of completed jobs whose result was not fetched: their operation was not polled
    /// since they completed, or was forgotten (`mem::forget`), or they wait for the caller's own
    /// loop to fetch them.
    pub unfetched: u64,
    /// The number of operations that wait in line for a slot.
    pub waiting: u64,
    /// The number of times that devices were asked for completions.
    pub polls: u64,
    /// The number of `polls` that found no completions.
    pub empty_polls: u64,
    /// The number of times that devices were asked to signal the next completion.
    pub arms: u64,
    /// The number of events of the event handle that a runtime's driver, [`WorkQ::block_on`] or
    /// [`WorkQ::clear`] has handled.
    pub wake_ups: u64,
    /// The time for which the engines of the WorkQ's devices (threads of software devices) have
    /// worked. It includes work for other WorkQs, and is updated when an engine pauses. Always 0 on
    /// adapters.
    pub engine_time: Duration,
}

impl WorkQ {
    /// Returns the counts of what the WorkQ has done so far. Counting is always on, and adds no
    /// cost to jobs that finish inline.
    ///
    /// If a provider does not count the jobs that it finishes inline, the statistics do not include
    /// them.
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
