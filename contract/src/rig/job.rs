//! A job of the subject's kind.

use tokio_doca::device::{AccelJob, CopyJob, CrcJob, Job, ShaJob};

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
