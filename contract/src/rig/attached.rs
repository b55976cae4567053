//! A context of the subject's kind, through which a check uses the device as a user does.

use super::crc::SEEDED;
use super::subject::{Effect, Sample};
use tokio_doca::crc::Crc;
use tokio_doca::device::Algorithm;
use tokio_doca::error::JobError;
use tokio_doca::mem::{Destination, Source};
use tokio_doca::{Dma, accel::Accel, sha::Sha};

/// A context of the subject's kind.
pub(crate) enum Attached {
    Dma(Dma),
    Accel(Accel, Sample),
    Sha(Sha, Algorithm),
    /// The flag is true if the context copies as well.
    Crc(Crc, bool),
}

impl Attached {
    /// Runs a Job of the context's kind to its end.
    pub(crate) async fn work<S: Source, D: Destination>(
        &self,
        src: S,
        dst: D,
    ) -> Result<u64, JobError> {
        match self {
            Attached::Dma(dma) => dma.copy(src, dst).await.map(|len| len as u64),
            Attached::Sha(sha, algorithm) => {
                let hash = sha.hash(*algorithm, src, dst);
                hash.await.map(|len| len as u64)
            }
            Attached::Crc(crc, false) => crc.crc32c_with(SEEDED, src).await.map(u64::from),
            Attached::Crc(crc, true) => {
                let copied = crc.copy_crc_with(SEEDED, src, dst).await?;
                Ok((copied.bytes as u64) << 32 | u64::from(copied.crc))
            }
            Attached::Accel(accel, sample) => match sample.effect() {
                Effect::Reads(_) => accel.call(sample.call().src(src)).await,
                Effect::Writes(_) => accel.call(sample.call().dst(dst)).await,
                Effect::Transforms(_) => accel.call(sample.call().src(src).dst(dst)).await,
            },
        }
    }

    /// Submits a Job of the context's kind if a slot is free, and drops its operation.
    pub(crate) fn submit_and_drop<S: Source, D: Destination>(&self, src: S, dst: D) {
        match self {
            Attached::Dma(dma) => drop(dma.copy(src, dst).start()),
            Attached::Sha(sha, algorithm) => drop(sha.hash(*algorithm, src, dst).start()),
            Attached::Crc(crc, false) => drop(crc.crc32c_with(SEEDED, src).start()),
            Attached::Crc(crc, true) => drop(crc.copy_crc_with(SEEDED, src, dst).start()),
            Attached::Accel(accel, sample) => match sample.effect() {
                Effect::Reads(_) => drop(accel.call(sample.call().src(src)).start()),
                Effect::Writes(_) => drop(accel.call(sample.call().dst(dst)).start()),
                Effect::Transforms(_) => drop(accel.call(sample.call().src(src).dst(dst)).start()),
            },
        }
    }
}
