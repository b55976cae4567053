//! A job together with the leases of the memory that it names, which may be submitted.
//!
//! Invariant: while `leases` are held, and wherever they are moved, a device may do `job`. Only
//! [`Leased::new`] puts the two together. So code that hands a `Leased` to a device needs no
//! promise of its caller.
#![expect(unsafe_code, reason = "promises that leases are those of a job")]

use std::sync::Arc;

use super::leases::{IntoKept, Leases, OfJob, Reading, Writing};
use super::model::Reach;
use super::model::sealed::{ReadFrom, WriteTo};
use super::overlap::{explain, share};
use super::rule::Rule;
use super::session::{Session, SessionLease};
use crate::device::{AsJob, EventJob, Lent, OnLent, RdmaJob, Segment, Segments, Verb};
use crate::error::{JobError, Reason};
use crate::mem::buf::Extent;
use crate::mem::mmap::Holder;

/// A job that may be given to a device, and the leases that keep its memory meanwhile.
pub(crate) struct Leased<L, J> {
    leases: L,
    job: J,
}

/// The leases of the operands of a job from `S` to `D`.
pub(crate) type LeasesOf<S, D> = (<S as ReadFrom>::Lease, <D as WriteTo>::Lease);

impl<L, J> Leased<L, J> {
    /// # Safety
    ///
    /// All memory that the job names is that of the leases, which permit what the job does with it;
    /// source and destination have at least the number of bytes that the job moves, and are
    /// disjoint. All of this stays so while the leases are held.
    #[inline(always)]
    unsafe fn new(leases: L, job: J) -> Leased<L, J> {
        Leased { leases, job }
    }

    #[inline(always)]
    pub(crate) fn job(&self) -> &J {
        &self.job
    }

    /// Takes the leases and the job apart: the job is plain data from here on.
    #[inline(always)]
    pub(crate) fn into_parts(self) -> (L, J) {
        (self.leases, self.job)
    }
}

impl<L: OfJob, J> Leased<L, J> {
    /// Converts the leases to the form in which a slot keeps them.
    #[inline(always)]
    pub(crate) fn keep(self) -> Leased<Leases, J> {
        Leased {
            leases: self.leases.keep(),
            job: self.job,
        }
    }
}

impl<L: OfJob, J: AsJob> Leased<L, J> {
    /// Ends a job that the device has finished inline: appends the bytes that it wrote, and gives
    /// the leases back. Returns the cost of the job, as the number of bytes that are copied in the
    /// same time.
    #[inline(always)]
    pub(crate) fn end(self, outcome: &Result<u64, JobError>) -> usize {
        let Leased { leases, job } = self;
        leases.end(outcome.ok().map(J::written));
        job.cost()
    }
}

/// The two sides of a job, and the device and use for which its memory is registered.
pub(crate) struct Sides<'a, S, D> {
    src: &'a S,
    dst: &'a D,
    holder: Holder,
}

/// The leases of both sides, the segments that they are on, and the number of bytes to move.
struct BothSides<R, W> {
    leases: (R, W),
    src: Segments,
    dst: Segments,
    len: usize,
}

impl<'a, S: ReadFrom, D: WriteTo> Sides<'a, S, D> {
    #[inline(always)]
    pub(crate) fn new(src: &'a S, dst: &'a D, holder: Holder) -> Sides<'a, S, D> {
        Sides { src, dst, holder }
    }

    /// Takes all leases of a job, or none. On success the two sides share no byte: a write lease
    /// overlaps no other lease, and bytes that need no lease are compared here, unless others may
    /// write them anyway (ADR 0022).
    ///
    /// `check` refuses a job that is beyond the device's limits. With `fits`, it is not called if
    /// each side is one piece, and the source has at most `fits` bytes.
    #[inline(always)]
    fn take(
        &self,
        rule: Rule,
        fits: Option<u64>,
        check: impl Fn(Extent, Extent) -> Result<(), JobError>,
    ) -> Result<BothSides<S::Lease, D::Lease>, JobError> {
        // One piece within the limits needs no check of its headroom, data and tailroom.
        let fits = fits.is_some_and(|fits| self.src.most() as u64 <= fits);
        if self.src.is_single() && self.dst.is_single() && fits {
            return self.take_unchecked(rule);
        }
        check(self.src.data(), self.dst.tail_extent())?;
        let taken = self.take_unchecked(rule)?;
        // Checked once more, since another thread may have changed the sides before they were
        // leased.
        check(Extent::of(&taken.src), Extent::of(&taken.dst))?;
        Ok(taken)
    }

    #[inline(always)]
    fn take_unchecked(&self, rule: Rule) -> Result<BothSides<S::Lease, D::Lease>, JobError> {
        let Sides { src, dst, holder } = *self;
        // Called before the leases are taken. For most types of operands these are constants, which
        // cost nothing.
        let single = src.is_single() && dst.is_single();
        let imported = src.reach() == Reach::Remote || dst.reach() == Reach::Remote;
        let leases_tell = single && !imported;
        let (read, from, data) = src
            .lease_data(holder, rule)
            .map_err(|error| explain(src, dst, error))?;
        let (write, to, free) = dst
            .lease_tail(holder, rule)
            .map_err(|error| explain(src, dst, error))?;
        if !leases_tell && share(src, dst, single) {
            return Err(JobError::of(Reason::Overlap));
        }
        Ok(BothSides {
            leases: (read, write),
            src: from,
            dst: to,
            len: rule.len(data, free)?,
        })
    }

    /// Takes the leases, and returns the job on both sides.
    #[inline(always)]
    pub(crate) fn lend<J: OnLent>(
        self,
        order: J::Order,
        fits: Option<u64>,
        check: impl Fn(Extent, Extent) -> Result<(), JobError>,
    ) -> Result<Leased<LeasesOf<S, D>, J>, JobError> {
        let rule = Rule::on_lent::<J>(order);
        let both = self.take(rule, fits, check)?;
        let lent = Lent {
            src: both.src,
            dst: both.dst,
            len: both.len,
            // Jobs that are made here do not read this flag; the source may be shared.
            shared: true,
            session: None,
        };
        let job = J::on(order, lent)?;
        // SAFETY: the job names what it was lent, as `OnLent` promises: the segments of the leases.
        // If it fills, its rule has compared their lengths. The two sides are disjoint, as
        // `take` says.
        Ok(unsafe { Leased::new(both.leases, job) })
    }

    /// Takes the leases, and returns the job on source, destination and session, if there is one.
    /// The job says whether others may write its source meanwhile.
    pub(crate) fn lend_read<J: OnLent>(
        self,
        order: J::Order,
        session: Option<&Arc<Session>>,
        check: impl Fn(Extent, Extent) -> Result<(), JobError>,
    ) -> Result<Leased<Leases, J>, JobError> {
        // Errors of the operands come before an error of the session.
        check(self.src.data(), self.dst.tail_extent())?;
        let session = session.map(Session::lease).transpose()?;
        let rule = Rule::on_lent::<J>(order);
        let both = self.take(rule, None, check)?;
        let leases = Leases {
            session,
            ..both.leases.keep()
        };
        let lent = Lent {
            src: both.src,
            dst: both.dst,
            len: both.len,
            shared: leases.read.as_ref().is_some_and(Reading::is_shared),
            session: leases.session.as_ref().map(SessionLease::for_device),
        };
        let job = J::on(order, lent)?;
        // SAFETY: as for `lend`, and the session is leased too.
        Ok(unsafe { Leased::new(leases, job) })
    }

    /// Takes the leases, and returns a remote operation, which moves the number of bytes that
    /// `rule` gives.
    ///
    /// # Panics
    ///
    /// If `rule` is not the rule of the verb. Mostly both are constants, and the check is compiled
    /// away.
    #[inline(always)]
    pub(crate) fn rdma(
        self,
        verb: Verb,
        rule: Rule,
        fits: u64,
        check: impl Fn(Extent, Extent) -> Result<(), JobError>,
    ) -> Result<Leased<LeasesOf<S, D>, RdmaJob>, JobError> {
        assert!(rule == Rule::of(verb));
        let BothSides {
            leases,
            src,
            dst,
            len,
        } = self.take(rule, Some(fits), check)?;
        // If no byte is moved, there is no remote segment.
        let remote = |of: &Segments| of.as_one().filter(|_| len > 0).copied();
        let (local, remote) = match rule {
            Rule::Exact => (src, remote(&dst)),
            Rule::AtMost => (dst, remote(&src)),
            Rule::Atomic => (Segments::none(), remote(&src)),
            Rule::Message | Rule::Copy | Rule::Fill | Rule::Open => (src, None),
        };
        let aligned = |word: Segment| word.addr().addr().get().is_multiple_of(len);
        if rule == Rule::Atomic && !remote.is_some_and(aligned) {
            let offset = self.src.offset() as u64;
            return Err(JobError::new(Reason::Misaligned, offset, len as u64));
        }
        let job = RdmaJob {
            verb,
            local,
            remote,
            len,
        };
        // SAFETY: the leases are those of the segments, `len` is no more than either side has, and
        // the verb moves what its rule says. The two sides are disjoint, as `take` says.
        Ok(unsafe { Leased::new(leases, job) })
    }
}

/// Takes the lease of a receive, which may write all of the tailroom.
#[inline(always)]
pub(crate) fn receive(
    dst: &impl WriteTo,
    holder: Holder,
) -> Result<Leased<Option<Writing>, Segments>, JobError> {
    let (lease, segments, _) = dst.lease_tail(holder, Rule::Open)?;
    // SAFETY: the lease is that of the segments.
    Ok(unsafe { Leased::new(lease.kept(), segments) })
}

/// Returns a job of a sync event, which names no memory.
#[inline(always)]
pub(crate) fn event(job: EventJob) -> Leased<Leases, EventJob> {
    // SAFETY: there is no memory.
    unsafe { Leased::new(Leases::of(None, None), job) }
}
