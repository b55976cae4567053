//! How jobs are submitted, what that answers, and what keeps the memory of those that were
//! accepted.
#![expect(
    unsafe_code,
    reason = "who implements Submit touches memory that the crate lends it"
)]

use std::any::Any;
use std::sync::Arc;

use crate::device::job::{Job, Token};
use crate::error::{ErrorKind, JobError};

/// What jobs are submitted to: a [`Queue`](super::Queue), an [`Endpoint`](super::Endpoint) or an
/// [`EventPort`](super::EventPort).
///
/// The crate submits the kinds of jobs that the object says it takes, within the capabilities of
/// the device. A kind that the object does not know is refused
/// ([`Submitted::unsupported`]).
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

    /// Finishes the job now, on this thread, or returns `None` and has not begun. Takes no Token,
    /// and keeps nothing.
    ///
    /// # Safety
    ///
    /// The job's memory is valid, and leased to the caller, during the call; its session, if it has
    /// one, is the device's alone.
    unsafe fn try_inline(&self, _job: Job<'_>) -> Option<Result<u64, JobError>> {
        None
    }

    /// Finishes jobs now, on this thread, in order, and stops at the first one that it cannot
    /// finish or that fails. The outcome of job `i` goes to `outcomes[i]`; only the last one may be
    /// an error. Returns the number of outcomes. The rest has not begun.
    ///
    /// By default this calls [`try_inline`](Submit::try_inline) for each job. A device overrides it
    /// where a batch costs less than its jobs do one by one. It may stop earlier than `try_inline`
    /// would: the crate submits the rest.
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

    /// Takes jobs, in order, until one is refused. It signals no event by itself.
    ///
    /// # Safety
    ///
    /// The memory of the jobs is valid, and leased, until their completion was reaped; the session
    /// of each, if it has one, is the device's alone as long. No Token is in flight already, and no
    /// more jobs than the queue's depth are.
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted;
}

/// How many jobs or receives of a batch were accepted, and why the next one was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The number of jobs or receives that the device has accepted, from the first on.
    pub accepted: usize,
    /// Why the device refused the next one, or `None` if it accepted all. After `Again` the crate
    /// tries a job once more when the WorkQ has collected a completion, and in any case after 1 ms,
    /// then after twice as long each time, up to 100 ms.
    pub refused: Option<JobError>,
}

impl Submitted {
    /// Makes the answer that no job was accepted, for this reason.
    pub fn none(refused: JobError) -> Submitted {
        Submitted {
            accepted: 0,
            refused: Some(refused),
        }
    }

    /// Makes the answer that no job was accepted, since the object does not know the kind of the
    /// first.
    pub fn unsupported(jobs: &[(Token, Job<'_>)]) -> Submitted {
        let refused = JobError::device(ErrorKind::NotSupported, 0);
        Submitted {
            accepted: 0,
            refused: (!jobs.is_empty()).then_some(refused),
        }
    }
}

/// What a queue must hold until nothing of it is in flight.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;
