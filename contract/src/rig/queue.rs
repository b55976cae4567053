//! The jobs that go into a queue, temporary refusals, and the completions that come out.
#![expect(unsafe_code, reason = "reaps, which one thread at a time may do")]

use tokio_doca::device::contract::{
    AccelJob, Completion, CopyJob, CrcJob, Job, Queue, ShaJob, Token,
};
use tokio_doca::error::{ErrorKind, JobError};

/// A job of the subject's kind.
pub(super) enum AnyJob {
    Copy(CopyJob),
    Accel(AccelJob),
    Sha(ShaJob),
    Crc(CrcJob),
}

impl AnyJob {
    pub(super) fn as_job(&self) -> Job<'_> {
        match self {
            AnyJob::Copy(job) => job.into(),
            AnyJob::Accel(job) => job.into(),
            AnyJob::Sha(job) => job.into(),
            AnyJob::Crc(job) => job.into(),
        }
    }
}

/// Reaps at most `at_most` completions.
///
/// # Safety
///
/// Only one thread at a time may reap this queue.
pub(crate) unsafe fn reap(queue: &dyn Queue, at_most: usize) -> Vec<Completion> {
    // The initial Token is stale on purpose: a device that counts a completion without filling it
    // in completes a Token that is not in flight.
    let nothing = Completion::new(Token::from_raw(u64::MAX), Ok(u64::MAX));
    let mut out = vec![nothing; at_most];
    // SAFETY: as the caller promises.
    let reaped = unsafe { queue.reap(&mut out) };
    assert!(
        reaped <= at_most,
        "duty 1: {reaped} completions in a place for {at_most}"
    );
    out.truncate(reaped);
    out
}

/// The message of a check that waits for a device to accept a job that it has refused with `Again`.
pub(crate) const AGAIN: &str = "duty 3: a device says `Again` only until Jobs complete";

/// Checks the reason for which a Job within the capabilities was refused.
pub(crate) fn check_refusal(why: JobError) {
    assert_eq!(
        why.kind(),
        ErrorKind::Again,
        "duty 3: a Job within the capabilities is refused only for a while: {why}"
    );
}
