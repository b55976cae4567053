//! The kinds of jobs, as a device sees them.
#![expect(
    unsafe_code,
    reason = "promises that a reference is to a job itself, and has the CPU do jobs"
)]

use super::accel::AccelJob;
use super::copy::CopyJob;
use super::cpu::{OnCpu, on_cpu};
use super::crc::CrcJob;
use super::effect::Effect;
use super::event::EventJob;
use super::rdma::RdmaJob;
use super::sha::ShaJob;
use crate::error::JobError;

/// A job of any kind, by reference.
///
/// The reference is valid only during the call: a device that accepts the job copies what it needs.
/// Since it holds a reference, a `Job` has the same small size for all kinds.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[doc(alias = "doca_job")]
pub enum Job<'a> {
    /// A copy, for a [`Queue`](crate::device::Queue) of a device with
    /// [`DmaCaps`](crate::device::DmaCaps).
    Copy(&'a CopyJob),
    /// A hash, for a [`Queue`](crate::device::Queue) of a device with
    /// [`ShaCaps`](crate::device::ShaCaps).
    Sha(&'a ShaJob),
    /// A CRC, for a [`Queue`](crate::device::Queue) of a device with
    /// [`CrcCaps`](crate::device::CrcCaps).
    Crc(&'a CrcJob),
    /// A job of the provider's own kind, for a [`Queue`](crate::device::Queue) of a device with
    /// [`AccelCaps`](crate::device::AccelCaps).
    Accel(&'a AccelJob),
    /// A remote operation, for an [`Endpoint`](crate::device::Endpoint).
    Rdma(&'a RdmaJob),
    /// A job of a sync event, for an [`EventPort`](crate::device::EventPort).
    Event(&'a EventJob),
}

/// A type that can be submitted as a [`Job`].
///
/// # Safety
///
/// `as_job` returns a reference to `self`, and to no other job.
pub(crate) unsafe trait AsJob: Effect + Send + Sync {
    /// Returns a reference to this job.
    fn as_job(&self) -> Job<'_>;
}

/// Implements `AsJob` and `From` for the kinds of jobs.
macro_rules! kinds {
    ($($kind:ident: $job:ident,)*) => {$(
        // SAFETY: the reference is to `self`.
        unsafe impl AsJob for $job {
            #[inline(always)]
            fn as_job(&self) -> Job<'_> {
                Job::$kind(self)
            }
        }

        impl<'a> From<&'a $job> for Job<'a> {
            fn from(job: &'a $job) -> Job<'a> {
                Job::$kind(job)
            }
        }
    )*};
}

kinds! {
    Copy: CopyJob,
    Sha: ShaJob,
    Crc: CrcJob,
    Accel: AccelJob,
    Rdma: RdmaJob,
    Event: EventJob,
}

on_cpu! {
    Sha sha: ShaJob,
    Crc crc: CrcJob,
}
