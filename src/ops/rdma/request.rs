//! [`RdmaRequest`]: a remote operation with its operands, and the checks before it is submitted.
#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::marker::PhantomData;

use super::Rdma;
use crate::device::{RdmaJob, RdmaKind, RegistrationUse, Verb};
use crate::error::{JobError, Reason, Result};
use crate::mem::{Extent, Handle, LeasesOf, RdmaDestination, RdmaSource, Reach, Rule, Sides};
use crate::ops::op::{Answer, Answers, LeasedJob, Request};
use crate::ops::operation::Op;
use crate::ops::operation::sealed::Own;
use crate::reactor::{Attachment, HasAttachment, JobFuture};

/// A remote operation with its operands. `C` is the context, borrowed (`&Rdma`) or owned (`Rdma`).
pub struct RdmaRequest<C, S, D, A = usize> {
    rdma: C,
    verb: Verb,
    src: S,
    dst: D,
    answer: PhantomData<fn() -> A>,
}

impl<C, S, D, A> RdmaRequest<C, S, D, A> {
    #[inline(always)]
    pub(in crate::ops) fn new(rdma: C, verb: Verb, src: S, dst: D) -> RdmaRequest<C, S, D, A> {
        RdmaRequest {
            rdma,
            verb,
            src,
            dst,
            answer: PhantomData,
        }
    }

    /// Returns the source of the request, and drops the rest.
    pub(super) fn into_source(self) -> S {
        self.src
    }
}

impl<C: AsRef<Rdma>, S, D, A> HasAttachment for RdmaRequest<C, S, D, A> {
    #[inline(always)]
    fn attachment(&self) -> &Attachment {
        self.rdma.as_ref().attachment()
    }
}

/// Returns an error if the device does not have this kind of operation.
#[inline(always)]
fn check_kind(rdma: &Rdma, verb: Verb) -> Result<(), JobError> {
    let kind = match verb {
        Verb::Send(None) | Verb::Write(None) | Verb::Read => return Ok(()),
        Verb::Send(Some(_)) => RdmaKind::SendImm,
        Verb::Write(Some(_)) => RdmaKind::WriteImm,
        Verb::CompareSwap { .. } => RdmaKind::CompareSwap,
        Verb::FetchAdd(_) => RdmaKind::FetchAdd,
    };
    let supported = rdma.caps().supports(kind).then_some(());
    supported.ok_or(JobError::of(Reason::RdmaUnsupported))
}

impl<C: AsRef<Rdma>, S: RdmaSource, D: RdmaDestination, A: Answer> Request
    for RdmaRequest<C, S, D, A>
{
    type Leases = LeasesOf<S, D>;
    type Job = RdmaJob;

    const ORDERED: bool = true;

    #[inline(always)]
    fn begin(&self) -> Result<LeasedJob<Self>, JobError> {
        let rdma = self.rdma.as_ref();
        let context = &rdma.0;
        let holder = context.attachment().holder(RegistrationUse::Rdma);
        let sides = Sides::new(&self.src, &self.dst, holder);
        // The types of the operands usually decide the rule at compile time. Otherwise the verb
        // does.
        let rule = match (self.src.reach(), self.dst.reach()) {
            (Reach::Local, Reach::Remote) => Rule::Exact,
            (Reach::Remote, Reach::Local) => Rule::AtMost,
            _ => Rule::of(self.verb),
        };
        context.attachment().check_open()?;
        check_kind(rdma, self.verb)?;
        let check = |from: Extent, to: Extent| {
            let limit = rdma.caps().max_read_list_len as usize;
            if self.verb == Verb::Read && to.pieces > limit {
                let (have, limit) = (to.pieces as u64, limit as u64);
                return Err(JobError::new(Reason::ListTooLong, have, limit));
            }
            context.check_limits(from, to, rule.bytes(from.bytes, to.bytes))
        };
        sides.rdma(self.verb, rule, rdma.caps().max_message_size, check)
    }
}

impl<C, S, D, A: Answer> Answers for RdmaRequest<C, S, D, A> {
    type Answer = A;
}

impl<C, S, D, A: Answer> Own for RdmaRequest<C, S, D, A>
where
    C: AsRef<Rdma> + Handle<Owned = Rdma>,
    S: RdmaSource + Handle<Owned: RdmaSource>,
    D: RdmaDestination + Handle<Owned: RdmaDestination>,
{
    type Owned = RdmaRequest<Rdma, S::Owned, D::Owned, A>;

    fn own(flight: &JobFuture<Self>) -> Self::Owned {
        let request = flight.context();
        let (src, dst) = (request.src.cloned(), request.dst.cloned());
        RdmaRequest::new(request.rdma.cloned(), request.verb, src, dst)
    }
}

/// An operation of an [`Rdma`] of any kind but `recv`. Its output is the number of bytes that were
/// moved or, for an atomic, the previous value of the peer's 8 bytes.
pub type RdmaOp<C, S, D, A = usize> = Op<RdmaRequest<C, S, D, A>>;
