//! One remote operation, from its first poll to its answer.
#![allow(
    unreachable_pub,
    reason = "the sealed trait is public in a private module"
)]

use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{self, Poll};

use pin_project::pin_project;

use super::Rdma;
use crate::device::{RdmaJob, RdmaKind, Segments, Use, Verb};
use crate::error::{JobError, Reason, Result};
use crate::mem::{self, Extent, Moves, RdmaDestination, RdmaSource};
use crate::ops::op::{self, Request, Started};
use crate::reactor::{Attachment, Flight, Outcome, Prepared};

/// What an operation answers: `usize` for the number of bytes that were moved, `u64` for what an atomic found.
pub trait Answer: sealed::Of {}

impl Answer for usize {}
impl Answer for u64 {}

mod sealed {
    pub trait Of {
        fn of(word: u64) -> Self;
    }

    impl Of for usize {
        #[inline(always)]
        fn of(word: u64) -> usize {
            word as usize
        }
    }

    impl Of for u64 {
        #[inline(always)]
        fn of(word: u64) -> u64 {
            word
        }
    }
}

/// What to do. `C` is how it has its context: borrowed (`&Rdma`) or owned (`Rdma`).
pub(in crate::ops) struct RdmaRequest<C, S, D> {
    pub(in crate::ops) rdma: C,
    pub(in crate::ops) verb: Verb,
    pub(in crate::ops) src: S,
    pub(in crate::ops) dst: D,
}

impl<C: AsRef<Rdma>, S, D> Deref for RdmaRequest<C, S, D> {
    type Target = Attachment;

    #[inline(always)]
    fn deref(&self) -> &Attachment {
        &self.rdma.as_ref().0
    }
}

/// Refuses what not every device has.
#[inline(always)]
fn check_kind(rdma: &Rdma, verb: Verb) -> Result<(), JobError> {
    let kind = match verb {
        Verb::Send(_) | Verb::Write(None) | Verb::Read => return Ok(()),
        Verb::Write(Some(_)) => RdmaKind::WriteImm,
        Verb::CompareSwap { .. } => RdmaKind::CompareSwap,
        Verb::FetchAdd(_) => RdmaKind::FetchAdd,
    };
    if rdma.caps().supports(kind) {
        Ok(())
    } else {
        Err(JobError::of(Reason::RdmaUnsupported))
    }
}

impl<C: AsRef<Rdma>, S: RdmaSource, D: RdmaDestination> Request for RdmaRequest<C, S, D> {
    type Leases = (S::Lease, D::Lease);
    type Job = RdmaJob;

    const ORDERED: bool = true;

    #[inline(always)]
    fn begin(&self) -> Result<Started<Self>, JobError> {
        let rdma = self.rdma.as_ref();
        let context = &rdma.0;
        let (src, dst, verb) = (&self.src, &self.dst, self.verb);
        // What the types say need not be asked of the verb: most often this is known when it is compiled.
        let moves = match (S::LEASED, D::LEASED) {
            (true, false) => Moves::Write,
            (false, true) if !dst.is_none() => Moves::Read,
            _ => Moves::of(verb),
        };
        context.check_open()?;
        check_kind(rdma, verb)?;
        let holder = context.holder(Use::Rdma);
        // One piece within the limits, whatever becomes of its rooms, needs no look at them.
        let single = src.is_single() && dst.is_single();
        let begun = if single && src.most() as u64 <= rdma.caps().max_message_size {
            mem::begin_rdma(src, dst, holder, moves, verb)?
        } else {
            let check = |from: Extent, to: Extent| {
                let bytes = match moves {
                    Moves::Message | Moves::Write => from.bytes,
                    Moves::Read => from.bytes.min(to.bytes),
                    Moves::Atomic => 0,
                };
                context.check_limits(from, to, bytes)
            };
            check(src.extent(), dst.extent())?;
            let begun = mem::begin_rdma(src, dst, holder, moves, verb)?;
            // Once more: without the Leases somebody may have changed them meanwhile.
            let local = Extent::of(&begun.job().local);
            let remote = begun.job().remote;
            let remote = remote.map_or(Extent::default(), |it| Extent::of(&Segments::one(it)));
            match moves {
                Moves::Read => check(remote, local)?,
                _ => check(local, remote)?,
            }
            begun
        };
        Ok(begun)
    }

    #[inline(always)]
    fn finish_inline(&self, begun: &Started<Self>) -> Option<Outcome> {
        self.rdma.as_ref().pair().finish_inline(begun)
    }

    #[inline(always)]
    fn end(begun: Started<Self>, outcome: &Outcome) -> usize {
        let ((read, write), job) = begun.into_parts();
        if let Ok(len) = *outcome {
            D::grow(&write, len as usize);
        }
        drop(write);
        drop(read);
        job.len
    }

    #[inline(always)]
    fn prepare(&self, begun: Started<Self>) -> Prepared {
        Prepared::new(begun.keep::<S, D>(), self.queue_index())
    }
}

/// The future of all operations of an [`Rdma`] but `recv`: the number of bytes that were moved, or, of an atomic, what was there before.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct RdmaOp<C: AsRef<Rdma>, S, D, A = usize> {
    #[pin]
    flight: Flight<RdmaRequest<C, S, D>>,
    answer: PhantomData<fn() -> A>,
}

impl<C: AsRef<Rdma>, S: RdmaSource, D: RdmaDestination, A: Answer> RdmaOp<C, S, D, A> {
    #[inline(always)]
    pub(super) fn new(request: RdmaRequest<C, S, D>) -> RdmaOp<C, S, D, A> {
        RdmaOp {
            flight: Flight::new(request),
            answer: PhantomData,
        }
    }

    /// Submitted now, or refused.
    pub(super) fn submitted(request: RdmaRequest<C, S, D>) -> Result<RdmaOp<C, S, D, A>, JobError> {
        let flight = op::try_submit(request)?;
        let answer = PhantomData;
        Ok(RdmaOp { flight, answer })
    }
}

impl<C: AsRef<Rdma>, S: RdmaSource, D: RdmaDestination, A: Answer> Future for RdmaOp<C, S, D, A> {
    type Output = Result<A, JobError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        op::poll(self.project().flight, cx).map(|outcome| outcome.map(A::of))
    }
}
