//! How jobs are submitted, the result of a submission, and the handle that keeps the memory of
//! accepted jobs.
#![expect(
    unsafe_code,
    reason = "who implements Submit touches memory that the crate lends it"
)]

use std::any::Any;
use std::sync::Arc;

use crate::device::job::{Job, Token};
use crate::error::{ErrorKind, JobError};

/// An object that jobs are submitted to: a [`Queue`](super::Queue), an
/// [`Endpoint`](super::Endpoint) or an [`EventPort`](super::EventPort).
///
/// The crate submits only the kinds of jobs that the object accepts, within the capabilities of the
/// device. The object refuses a kind that it does not know ([`Submitted::unsupported`]).
///
/// # Safety
///
/// Implementors keep the duties 1 to 4 and 7 of the [contract](crate::device::contract).
pub unsafe trait Submit: Send + Sync {
    /// Returns false if [`try_inline`](Submit::try_inline) never finishes a job. The crate asks
    /// once, for each endpoint and each port of a sync event.
    fn finishes_inline(&self) -> bool {
        true
    }

    /// Finishes the job now, on this thread, and returns its result, or returns `None` without
    /// having begun. The job has no Token, and the device keeps nothing of it.
    ///
    /// # Safety
    ///
    /// The job's memory is valid, and leased to the caller, during the call; no other party uses
    /// its session, if it has one.
    unsafe fn try_inline(&self, _job: Job<'_>) -> Option<Result<u64, JobError>> {
        None
    }

    /// Finishes jobs now, on this thread, in order, and stops at the first one that it cannot
    /// finish or that fails. The outcome of job `i` goes to `outcomes[i]`; only the last one may be
    /// an error. Returns the number of outcomes. The remaining jobs have not begun.
    ///
    /// By default this calls [`try_inline`](Submit::try_inline) for each job. A device overrides it
    /// where a batch costs less than its jobs do one by one. It may stop earlier than `try_inline`
    /// would: the crate submits the remaining jobs.
    ///
    /// # Safety
    ///
    /// As for [`try_inline`](Submit::try_inline), for each of the jobs. `outcomes` has at least as
    /// many elements as `jobs`.
    unsafe fn try_inline_all(
        &self,
        jobs: &[Job<'_>],
        outcomes: &mut [Result<u64, JobError>],
    ) -> usize {
        let mut finished = 0;
        for (job, place) in jobs.iter().zip(outcomes) {
            // SAFETY: as the caller promises.
            let Some(outcome) = (unsafe { self.try_inline(*job) }) else {
                break;
            };
            *place = outcome;
            finished += 1;
            if outcome.is_err() {
                break;
            }
        }
        finished
    }

    /// Accepts jobs, in order, until one is refused. Does not signal the event handle.
    ///
    /// # Safety
    ///
    /// The memory of the jobs is valid, and leased, until their completion was reaped. Until then,
    /// no other party uses a job's session, if it has one. None of the Tokens is in flight already,
    /// and the number of jobs in flight stays within the queue's depth.
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted;
}

/// How many jobs or receives of a batch were accepted, and why the next one was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The number of jobs or receives that the device has accepted, from the first on.
    pub accepted: usize,
    /// Why the device refused the first job or receive that it did not accept, or `None` if it
    /// accepted all. After `Again` the crate retries a job once the WorkQ has collected a
    /// completion, and at the latest after 1 ms; each further delay is twice as long, up to 100 ms.
    pub refused: Option<JobError>,
}

impl Submitted {
    /// Returns the result of a submission that accepted no job, for the reason `refused`.
    pub fn none(refused: JobError) -> Submitted {
        Submitted {
            accepted: 0,
            refused: Some(refused),
        }
    }

    /// Returns the result of a submission that accepted no job, because the object does not know
    /// the kind of the first job.
    pub fn unsupported(jobs: &[(Token, Job<'_>)]) -> Submitted {
        let refused = JobError::device(ErrorKind::NotSupported, 0);
        Submitted {
            accepted: 0,
            refused: (!jobs.is_empty()).then_some(refused),
        }
    }
}

/// A handle that a queue holds until nothing of it is in flight, to keep the memory of its jobs
/// alive.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;
