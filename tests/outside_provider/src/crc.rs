//! CRCs, and the sins in computing them.

use tokio_doca::device::contract::CrcJob;
use tokio_doca::error::JobError;

use super::Sin;

/// Executes a job, or only its first `len` bytes, and returns the result.
///
/// # Safety
///
/// The memory is valid, and lent to the device.
pub(super) unsafe fn execute(job: &CrcJob, sin: Sin, len: usize) -> Result<u64, JobError> {
    let (mut job, mut crc) = (*job, 0);
    match sin {
        Sin::IgnoresTheSeed => job.options.seed = 0,
        Sin::PassesAnyCrc => job.options.expected = None,
        _ => {}
    }
    // SAFETY: the caller guarantees that the memory is valid.
    unsafe { job.work(&mut crc, 0, len) };
    job.outcome(match sin {
        Sin::WrongCrc => crc ^ 0x10,
        _ => crc,
    })
}
