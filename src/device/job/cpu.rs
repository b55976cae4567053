//! Jobs that the CPU does for a device that has nothing better, a part at a time: a provider needs
//! to know nothing else of their kinds.
#![expect(unsafe_code, reason = "reaches memory that was lent to a device")]

use super::hasher::{self, Hasher};
use super::job::Job;
use super::sha::ShaJob;
use crate::error::JobError;

/// A job that the CPU does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CpuJob {
    Sha(ShaJob),
}

/// How far the CPU is with a job that it does in parts.
#[derive(Default)]
pub(crate) struct CpuState {
    hasher: Hasher,
}

impl CpuJob {
    /// Returns the job if the CPU can do it.
    #[inline(always)]
    pub(crate) fn of(job: Job<'_>) -> Option<CpuJob> {
        match job {
            Job::Sha(job) => Some(CpuJob::Sha(*job)),
            _ => None,
        }
    }

    /// Returns how many bytes it reads.
    pub(crate) fn len(&self) -> usize {
        match self {
            CpuJob::Sha(job) => job.len(),
        }
    }

    /// Returns how many bytes are copied in the time that a byte of it takes.
    fn byte_cost(&self) -> usize {
        match self {
            CpuJob::Sha(_) => hasher::COST,
        }
    }

    /// Returns how many bytes are copied in the time that it takes.
    pub(crate) fn cost(&self) -> usize {
        self.len().saturating_mul(self.byte_cost())
    }
}

impl CpuState {
    /// Does a part of a job, after the first `from` bytes: for as long as a copy of `time` bytes
    /// takes. Returns how many bytes it was. The job is over when [`CpuJob::len`] is reached.
    ///
    /// The parts of a job are done in order, by the same state, which does none of another job in
    /// between. What it held before the part at 0 does not matter. A job without data is one part
    /// of no bytes.
    ///
    /// # Safety
    ///
    /// The job was given to a provider, which may touch its memory and its session: they are valid,
    /// and leased, during the call.
    pub(crate) unsafe fn work(&mut self, job: &CpuJob, from: usize, time: usize) -> usize {
        let most = time / job.byte_cost();
        match job {
            // SAFETY: as the caller promises.
            CpuJob::Sha(job) => unsafe { self.hasher.work(job, from, most) },
        }
    }

    /// Returns how a job ends whose last part was just done.
    pub(crate) fn outcome(&self, job: &CpuJob) -> Result<u64, JobError> {
        match job {
            CpuJob::Sha(job) => Ok(job.answer()),
        }
    }

    /// Does all of a job at once, if that takes no longer than a copy of `time` bytes.
    ///
    /// # Safety
    ///
    /// As for `work`.
    pub(crate) unsafe fn now(job: &CpuJob, time: usize) -> Option<Result<u64, JobError>> {
        // What has no data takes time too.
        if job.cost().max(job.byte_cost()) > time {
            return None;
        }
        let mut state = CpuState::default();
        // SAFETY: as the caller promises.
        unsafe { state.work(job, 0, usize::MAX) };
        Some(state.outcome(job))
    }
}
