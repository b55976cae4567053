//! Stands between a WorkQ and what its jobs are submitted to, and takes their times.
//!
//! Only a WorkQ that was asked for latencies has it. All others call their devices as ever, so that
//! their jobs pay nothing.
#![expect(unsafe_code, reason = "hands on what the crate lends to a device")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::histogram::{Counts, KINDS, Latencies};
use crate::device::{
    Armed, Completion, Endpoint, EndpointConfig, EventCounter, EventPort, Job, KeepAlive, Queue,
    Submit, Submitted, Token,
};
use crate::error::{JobError, Result as SetUp};

/// The times of the jobs of a WorkQ.
pub(super) struct Times {
    since: Instant,
    /// When the job of each Slot was submitted, and in the lowest bits of which kind it is; `NONE`
    /// once that has completed.
    begun: Box<[AtomicU64]>,
    kinds: [Counts; KINDS.len()],
}

/// Bits of a kind.
const KIND: u32 = 3;
/// A kind that there is not.
const NONE: u64 = u64::MAX;

fn kind(job: &Job<'_>) -> usize {
    match job {
        Job::Copy(_) => 0,
        Job::Sha(_) => 1,
        Job::Crc(_) => 2,
        Job::Accel(_) => 3,
        Job::Rdma(_) => 4,
        Job::Event(_) => 5,
    }
}

impl Times {
    pub(super) fn new(depth: u32) -> Times {
        Times {
            since: Instant::now(),
            begun: (0..depth).map(|_| AtomicU64::new(NONE)).collect(),
            kinds: std::array::from_fn(|_| Counts::new()),
        }
    }

    pub(super) fn read(&self) -> Latencies {
        Latencies(std::array::from_fn(|kind| self.kinds[kind].read()))
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    fn begin(&self, jobs: &[(Token, Job<'_>)]) {
        let now = self.now();
        for (token, job) in jobs {
            if let Some(begun) = self.begun.get(token.index() as usize) {
                begun.store(now << KIND | kind(job) as u64, Relaxed);
            }
        }
    }

    /// Tokens are those that the device names: of one whose Slot has no job in flight nothing is
    /// counted.
    fn end(&self, completions: &[Completion]) {
        if completions.is_empty() {
            return;
        }
        let now = self.now();
        let jobs = completions.iter().filter(|each| each.token.table() == 0);
        for completion in jobs {
            let begun = self.begun.get(completion.token.index() as usize);
            let Some(begun) = begun.map(|begun| begun.swap(NONE, Relaxed)) else {
                continue;
            };
            if let Some(counts) = self.kinds.get(begun as usize & ((1 << KIND) - 1)) {
                counts.add(now.saturating_sub(begun >> KIND), 1);
            }
        }
    }

    /// Jobs were finished inline, one after the other, since then.
    fn inline(&self, job: Option<&Job<'_>>, jobs: usize, since: u64) {
        if let (Some(job), 1..) = (job, jobs) {
            let each = self.now().saturating_sub(since) / jobs as u64;
            self.kinds[kind(job)].add(each, jobs as u64);
        }
    }
}

/// Takes the times of what is submitted to `to`.
pub(super) struct Timed<T: ?Sized> {
    to: Arc<T>,
    times: Arc<Times>,
}

impl<T: ?Sized> Timed<T> {
    pub(super) fn new(to: Arc<T>, times: &Arc<Times>) -> Arc<Timed<T>> {
        let times = Arc::clone(times);
        Arc::new(Timed { to, times })
    }
}

// SAFETY: all duties are kept by what this calls, with the same arguments.
unsafe impl<T: Submit + ?Sized> Submit for Timed<T> {
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let since = self.times.now();
        // SAFETY: as the caller promises.
        let outcome = unsafe { self.to.try_inline(job) };
        self.times
            .inline(Some(&job), usize::from(outcome.is_some()), since);
        outcome
    }

    unsafe fn try_inline_all(
        &self,
        jobs: &[Job<'_>],
        outcomes: &mut [Result<u64, JobError>],
    ) -> usize {
        let since = self.times.now();
        // SAFETY: as the caller promises.
        let finished = unsafe { self.to.try_inline_all(jobs, outcomes) };
        self.times.inline(jobs.first(), finished, since);
        finished
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // First: the completion of a job may come before this returns.
        self.times.begin(jobs);
        // SAFETY: as the caller promises.
        unsafe { self.to.submit(jobs) }
    }
}

// SAFETY: as above.
unsafe impl Queue for Timed<dyn Queue> {
    fn open_endpoint(&self, config: EndpointConfig) -> SetUp<Arc<dyn Endpoint>> {
        self.to.open_endpoint(config)
    }

    fn open_event_port(
        &self,
        event: &Arc<dyn EventCounter>,
        waits: u32,
    ) -> SetUp<Arc<dyn EventPort>> {
        self.to.open_event_port(event, waits)
    }

    fn ready(&self) -> bool {
        self.to.ready()
    }

    fn looks_in_reap(&self) -> bool {
        self.to.looks_in_reap()
    }

    fn ready_within(&self, looks: usize) -> bool {
        self.to.ready_within(looks)
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        // SAFETY: as the caller promises.
        unsafe { self.reap_within(out, 1) }
    }

    unsafe fn reap_within(&self, out: &mut [Completion], looks: usize) -> usize {
        // SAFETY: as the caller promises.
        let reaped = unsafe { self.to.reap_within(out, looks) };
        self.times.end(&out[..reaped.min(out.len())]);
        reaped
    }

    fn arm(&self) -> Armed {
        self.to.arm()
    }

    fn inline_jobs(&self) -> u64 {
        self.to.inline_jobs()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.to.event_fd()
    }

    fn clear(&self) {
        self.to.clear();
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.to.retire(keep, outstanding) };
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use crate::device::EventJob;

    #[test]
    fn completions_of_no_job_in_flight_are_not_counted() {
        let times = Times::new(2);
        let token = Token::new(0, 0, 0);
        let completed = |token| times.end(&[Completion::new(token, Ok(0))]);
        let count = || {
            times
                .read()
                .iter()
                .map(|(_, times)| times.count())
                .sum::<u64>()
        };
        completed(token);
        assert_eq!(count(), 0, "its Slot had none yet");
        times.begin(&[(token, Job::Event(&EventJob::Get))]);
        completed(token);
        completed(token);
        completed(Token::new(0, 1, 0));
        assert_eq!(count(), 1);
    }
}
