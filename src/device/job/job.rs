//! One piece of work, as the device sees it: plain data.
#![expect(unsafe_code, reason = "promises that a reference is to a job itself")]

use super::event::EventJob;
use super::rdma::RdmaJob;
use super::segment::Segments;
use super::sha::ShaJob;

/// One piece of work, of any kind, by reference.
///
/// The reference is for the call alone: a device that accepts the job copies what it needs of it.
/// It is as large for all kinds, so that a copy does not carry the bytes of a remote operation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[doc(alias = "doca_job")]
pub enum Job<'a> {
    /// A copy, for a [`Queue`](crate::device::Queue) of a device with [`DmaCaps`](crate::device::DmaCaps).
    Copy(&'a CopyJob),
    /// A hash, for a [`Queue`](crate::device::Queue) of a device with [`ShaCaps`](crate::device::ShaCaps).
    Sha(&'a ShaJob),
    /// A job of the provider's own kind, for a [`Queue`](crate::device::Queue) of a device with
    /// [`AccelCaps`](crate::device::AccelCaps).
    Accel(&'a AccelJob),
    /// A remote operation, for an [`Endpoint`](crate::device::Endpoint).
    Rdma(&'a RdmaJob),
    /// A job of a sync event, for an [`EventPort`](crate::device::EventPort).
    Event(&'a EventJob),
}

/// What can be submitted as a [`Job`].
///
/// # Safety
///
/// `as_job` refers to this very job.
pub(crate) unsafe trait AsJob: Send + Sync {
    /// Refers to it.
    fn as_job(&self) -> Job<'_>;
}

/// Implements `AsJob` and `From` for the kinds of jobs.
macro_rules! kinds {
    ($($kind:ident: $job:ident,)*) => {$(
        // SAFETY: it is `self`.
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
    Accel: AccelJob,
    Rdma: RdmaJob,
    Event: EventJob,
}

/// Copies `len` bytes from `src` to `dst`; each side has at least as many. `len` may be 0, and then a
/// side may have no pieces.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "doca_dma_job_memcpy")]
pub struct CopyJob {
    /// Gathered from.
    pub src: Segments,
    /// Scattered to.
    pub dst: Segments,
    /// Bytes.
    pub len: usize,
}

/// One piece of work of a kind that only its provider knows.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "doca_job")]
pub struct AccelJob {
    /// What to do: one of [`AccelCaps::opcodes`](crate::device::AccelCaps::opcodes).
    pub opcode: u32,
    /// A number that means what the opcode says. What needs more stands in the source.
    pub arg: u64,
    /// What is read, all of it; [`Segments::none`] if nothing is.
    pub src: Segments,
    /// Where may be written, from the front; [`Segments::none`] if nothing is. The result of the
    /// job is then how many bytes were.
    pub dst: Segments,
}

/// A copy and its Token fill a cache line: what is added to it is paid for by every copy.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<(super::Token, CopyJob)>() == 64);
