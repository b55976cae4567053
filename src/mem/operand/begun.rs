//! A job, and the Leases of the memory that it names.
//!
//! Invariant: while `leases` are held, and wherever they are moved, a device may do `job`. Only
//! [`Begun::new`] puts the two together, so that whoever hands memory to a device needs no word of
//! its caller.
#![expect(unsafe_code, reason = "promises that Leases are those of a job")]

use super::copy::sealed::{Reads, Writes};
use super::copy::{CopyDestination, CopySource};
use super::leases::{Leases, Reading, Writing};
use super::overlap::{explain, share};
use super::rdma::sealed::{Gets, Gives};
use crate::device::{CopyJob, EventJob, RdmaJob};
use crate::error::{JobError, Reason};
use crate::mem::mmap::Holder;

/// A job that may be given to a device, and what keeps its memory meanwhile.
pub(crate) struct Begun<L, J> {
    leases: L,
    job: J,
}

/// A remote operation from `S` to `D`.
pub(crate) type BegunRdma<S, D> = Begun<(<S as Gives>::Lease, <D as Gets>::Lease), RdmaJob>;

impl<L, J> Begun<L, J> {
    /// # Safety
    ///
    /// All memory that the job names is that of the leases, which permit what the job does with it;
    /// source and destination have as many bytes as the job moves, and are disjoint. It stays so
    /// while the leases are held.
    #[inline(always)]
    pub(super) unsafe fn new(leases: L, job: J) -> Begun<L, J> {
        Begun { leases, job }
    }

    #[inline(always)]
    pub(crate) fn job(&self) -> &J {
        &self.job
    }

    /// Takes them apart: the job is plain data from here on.
    #[inline(always)]
    pub(crate) fn into_parts(self) -> (L, J) {
        (self.leases, self.job)
    }
}

/// A copy from `S` to `D`.
pub(crate) type BegunCopy<S, D> = Begun<(<S as Reads>::Lease, <D as Writes>::Lease), CopyJob>;

/// Takes the Leases of a copy that moves all of `src` to the tailroom of `dst`; all or none.
#[inline(always)]
pub(crate) fn begin<S: CopySource, D: CopyDestination>(
    src: &S,
    dst: &D,
    holder: Holder,
) -> Result<BegunCopy<S, D>, JobError> {
    if !(src.is_leased() && dst.is_leased()) && share(src, dst) {
        return Err(JobError::of(Reason::Overlap));
    }
    let (read, src_segments, len) = src
        .begin_read(holder)
        .map_err(|error| explain(src, dst, error))?;
    let (write, dst_segments, room) = dst
        .begin_write(holder)
        .map_err(|error| explain(src, dst, error))?;
    if len == 0 {
        return Err(JobError::of(Reason::NoData));
    }
    if len > room {
        return Err(JobError::new(
            Reason::TailroomTooSmall,
            room as u64,
            len as u64,
        ));
    }
    let job = CopyJob {
        src: src_segments,
        dst: dst_segments,
        len,
    };
    // SAFETY: the Leases are those of the Segments, whose lengths were compared. Two Leases of one of
    // which writes are disjoint, and what takes none was compared above, or is memory that others
    // write anyway (ADR 0022).
    Ok(unsafe { Begun::new((read, write), job) })
}

impl<R: Into<Reading>, W: Into<Writing>> Begun<(R, W), CopyJob> {
    /// The same with Leases as a Slot keeps them.
    #[inline(always)]
    pub(crate) fn keep(self) -> Begun<Leases, CopyJob> {
        let (read, write) = self.leases;
        Begun {
            leases: Leases::of(Some(read.into()), Some(write.into())),
            job: self.job,
        }
    }
}

impl<R, W> Begun<(R, W), RdmaJob> {
    /// The same with Leases as a Slot keeps them.
    #[inline(always)]
    pub(crate) fn keep<S: Gives<Lease = R>, D: Gets<Lease = W>>(self) -> Begun<Leases, RdmaJob> {
        let (read, write) = self.leases;
        Begun {
            leases: Leases::of(S::held(read), D::held(write)),
            job: self.job,
        }
    }
}

impl Begun<Leases, EventJob> {
    /// A job of a sync event, which names no memory.
    #[inline(always)]
    pub(crate) fn event(job: EventJob) -> Begun<Leases, EventJob> {
        let leases = Leases::of(None, None);
        Begun { leases, job }
    }
}
