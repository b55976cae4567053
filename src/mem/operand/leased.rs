//! A job, and the Leases of the memory that it names.
//!
//! Invariant: while `leases` are held, and wherever they are moved, a device may do `job`. Only
//! [`Leased::new`] puts the two together, so that whoever hands memory to a device needs no word of
//! its caller.
#![expect(unsafe_code, reason = "promises that Leases are those of a job")]

use super::copy::sealed::{Reads, Writes};
use super::copy::{CopyDestination, CopySource};
use super::leases::{Leases, Reading, Writing};
use super::overlap::{explain, share};
use super::rdma::sealed::{Gets, Gives};
use crate::device::{EventJob, Job, RdmaJob};
use crate::error::{JobError, Reason};
use crate::mem::mmap::Holder;

/// A job that may be given to a device, and what keeps its memory meanwhile.
pub(crate) struct Leased<L, J> {
    leases: L,
    job: J,
}

/// A remote operation from `S` to `D`.
pub(crate) type LeasedRdma<S, D> = Leased<(<S as Gives>::Lease, <D as Gets>::Lease), RdmaJob>;

impl<L, J> Leased<L, J> {
    /// # Safety
    ///
    /// All memory that the job names is that of the leases, which permit what the job does with it;
    /// source and destination have as many bytes as the job moves, and are disjoint. It stays so
    /// while the leases are held.
    #[inline(always)]
    pub(super) unsafe fn new(leases: L, job: J) -> Leased<L, J> {
        Leased { leases, job }
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
pub(crate) type LeasedCopy<S, D> = Leased<(<S as Reads>::Lease, <D as Writes>::Lease), Job>;

/// Takes the Leases of a copy that moves all of `src` to the tailroom of `dst`; all or none.
#[inline(always)]
pub(crate) fn begin<S: CopySource, D: CopyDestination>(
    src: &S,
    dst: &D,
    holder: Holder,
) -> Result<LeasedCopy<S, D>, JobError> {
    if !(src.is_leased() && dst.is_leased()) && share(src, dst) {
        return Err(JobError::of(Reason::Overlap));
    }
    let (read, src_segments, len) = src
        .begin_read(holder)
        .map_err(|error| explain(src, dst, error))?;
    let (write, dst_segments, room) = dst
        .begin_write(holder)
        .map_err(|error| explain(src, dst, error))?;
    if len > room {
        return Err(JobError::new(
            Reason::TailroomTooSmall,
            room as u64,
            len as u64,
        ));
    }
    let job = Job::Copy {
        src: src_segments,
        dst: dst_segments,
        len,
    };
    // SAFETY: the Leases are those of the Segments, whose lengths were compared. Two Leases of one of
    // which writes are disjoint, and what takes none was compared above, or is memory that others
    // write anyway (ADR 0022).
    Ok(unsafe { Leased::new((read, write), job) })
}

impl<R: Into<Reading>, W: Into<Writing>> Leased<(R, W), Job> {
    /// The same with Leases as a Slot keeps them.
    #[inline(always)]
    pub(crate) fn keep(self) -> Leased<Leases, Job> {
        let (read, write) = self.leases;
        Leased {
            leases: Leases::of(Some(read.into()), Some(write.into())),
            job: self.job,
        }
    }
}

impl<R, W> Leased<(R, W), RdmaJob> {
    /// The same with Leases as a Slot keeps them.
    #[inline(always)]
    pub(crate) fn keep<S: Gives<Lease = R>, D: Gets<Lease = W>>(self) -> Leased<Leases, RdmaJob> {
        let (read, write) = self.leases;
        Leased {
            leases: Leases::of(S::held(read), D::held(write)),
            job: self.job,
        }
    }
}

impl Leased<Leases, EventJob> {
    /// A job of a sync event, which names no memory.
    #[inline(always)]
    pub(crate) fn event(job: EventJob) -> Leased<Leases, EventJob> {
        let leases = Leases::of(None, None);
        Leased { leases, job }
    }
}
