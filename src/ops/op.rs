//! [`Request`], and how an operation polls, starts and posts the job of any request.
//!
//! A [`Request`] is what the caller asked for: a context and operands. It lies in the operation's
//! [`JobFuture`]. It begins when the future is first polled, and begins again after it has waited
//! for a slot.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;

use super::operation::Op;
use super::operation::sealed::{Kind, Post};
use crate::device::AsJob;
use crate::error::JobError;
use crate::mem::{Leased, OfJob};
use crate::reactor::{
    HasAttachment, JobFuture, Outcome, Prepared, ResultKind, SUBMIT_BATCH, budget,
};

/// A job that has not begun, with its context and operands.
pub(crate) trait Request: Answers + HasAttachment + Sized {
    type Leases: OfJob;
    type Job: AsJob;

    /// True if jobs of this type on one context are submitted in the order in which they are first
    /// polled. The task's budget is then charged for a job afterwards, instead of before.
    const ORDERED: bool = false;

    /// Checks the operands, takes their Leases, and returns the job.
    fn begin(&self) -> Result<LeasedJob<Self>, JobError>;

    /// Finishes the job inline, if the device can.
    #[inline(always)]
    fn finish_inline(&self, begun: &LeasedJob<Self>) -> Option<Outcome> {
        self.attachment().finish_inline(begun, Self::ORDERED)
    }
}

/// A request, with the type of its answer: the value that its job returns.
pub trait Answers {
    type Answer: Answer;
}

/// The type of an operation's result. A job returns a number, which is converted to this type.
pub trait Answer: sealed::Of {}

pub(super) mod sealed {
    use super::ResultKind;

    /// The conversion of the number that a job returns.
    pub trait Of {
        const MEANING: ResultKind;

        fn of(number: u64) -> Self;
    }
}

/// The result is a number of bytes.
impl Answer for usize {}

/// The result is a value: of a sync event, of the peer's memory, or of an accelerator's call.
impl Answer for u64 {}

/// The operation has no result.
impl Answer for () {}

impl sealed::Of for usize {
    const MEANING: ResultKind = ResultKind::Bytes;

    #[inline(always)]
    fn of(number: u64) -> usize {
        number as usize
    }
}

impl sealed::Of for u64 {
    const MEANING: ResultKind = ResultKind::Value;

    #[inline(always)]
    fn of(number: u64) -> u64 {
        number
    }
}

impl sealed::Of for () {
    const MEANING: ResultKind = ResultKind::Nothing;

    #[inline(always)]
    fn of(_: u64) {}
}

/// The job of a [`Request`], and its Leases.
pub(crate) type LeasedJob<R> = Leased<<R as Request>::Leases, <R as Request>::Job>;

pub(super) fn prepare<R: Request>(request: &R) -> Result<Prepared<R::Job>, JobError> {
    Ok(Prepared::new(request.begin()?))
}

impl<R: Request> Kind for R {
    type Output = Result<<R as Answers>::Answer, JobError>;
    type JobFuture = JobFuture<R>;

    #[inline(always)]
    fn flight(self) -> JobFuture<R> {
        JobFuture::new(self)
    }

    #[inline(always)]
    fn poll(flight: Pin<&mut JobFuture<R>>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll(flight, cx).map(|outcome| outcome.map(sealed::Of::of))
    }

    fn start(flight: &mut JobFuture<R>) -> Result<(), JobError> {
        let request = flight.context();
        let begun = request.begin()?;
        match request.finish_inline(&begun) {
            Some(outcome) => {
                begun.end(&outcome);
                flight.set_ready(outcome);
                Ok(())
            }
            None => {
                let prepared = Prepared::new(begun);
                flight.try_start(prepared)
            }
        }
    }

    fn start_all(ops: &mut [Op<R>]) -> (usize, Option<JobError>) {
        let (mut count, mut error) = (0, None);
        while count < ops.len() && error.is_none() {
            let (started, why) = start_batch(&mut ops[count..]);
            (count, error) = (count + started, why);
        }
        (count, error)
    }
}

/// Starts the leading operations of `ops` that share the context of the first one, at most
/// `SUBMIT_BATCH`: one by one as long as the device finishes them inline, and then the others
/// together. Returns the number of started operations, and why the next one was not started.
fn start_batch<R: Request>(ops: &mut [Op<R>]) -> (usize, Option<JobError>) {
    let at = std::ptr::from_ref(ops[0].flight.context().attachment());
    let (mut inline, mut begun) = (0, ArrayVec::<Prepared<R::Job>, SUBMIT_BATCH>::new());
    for op in ops.iter_mut().take(SUBMIT_BATCH) {
        let request = op.flight.context();
        if !std::ptr::eq(request.attachment(), at) {
            break;
        }
        let job = match request.begin() {
            Ok(job) => job,
            // This job may need memory of a job before it, which may be free again once that job
            // was submitted.
            Err(_) if !begun.is_empty() => break,
            Err(error) => return (inline, Some(error)),
        };
        if begun.is_empty()
            && let Some(outcome) = request.finish_inline(&job)
        {
            job.end(&outcome);
            op.flight.set_ready(outcome);
            inline += 1;
        } else {
            begun.push(Prepared::new(job));
        }
    }
    if begun.is_empty() {
        return (inline, None);
    }
    let mut tokens = ArrayVec::<_, SUBMIT_BATCH>::new();
    let at = ops[0].flight.context().attachment();
    let error = at.try_start_all(&mut begun, &mut tokens);
    for (token, op) in tokens.iter().zip(&mut ops[inline..]) {
        op.flight.set_in_flight(*token);
    }
    (inline + tokens.len(), error)
}

impl<R: Request> Post for R {
    fn post(flight: &mut JobFuture<R>, user_data: u64) -> Result<(), JobError> {
        let request = flight.context();
        let meaning = <<R as Answers>::Answer as sealed::Of>::MEANING;
        let begun = request.begin()?;
        let slot = request.attachment().try_reserve()?;
        match request.finish_inline(&begun) {
            Some(outcome) => {
                begun.end(&outcome);
                request
                    .attachment()
                    .settle(slot, user_data, meaning, outcome);
                Ok(())
            }
            None => request
                .attachment()
                .post(slot, Prepared::new(begun), user_data, meaning),
        }
    }
}

#[inline(always)]
fn poll<R: Request>(mut flight: Pin<&mut JobFuture<R>>, cx: &mut Context<'_>) -> Poll<Outcome> {
    if !flight.is_idle() {
        return flight.resume(cx, prepare);
    }
    if !R::ORDERED {
        ready!(budget::proceed(cx));
    }
    let request = flight.context();
    let begun = match request.begin() {
        Ok(begun) => begun,
        Err(error) => {
            // A loop of refused jobs must not starve other tasks either.
            return finish(flight, cx, Err(error), 0);
        }
    };
    match request.finish_inline(&begun) {
        Some(outcome) => {
            let bytes = begun.end(&outcome);
            finish(flight, cx, outcome, bytes)
        }
        None => {
            let mut prepared = Prepared::new(begun);
            let outcome = ready!(flight.as_mut().start(cx, &mut prepared, prepare));
            finish(flight, cx, outcome, 0)
        }
    }
}

/// Finishes a job that has completed within its first poll. If the budget is spent, the outcome of
/// an `ORDERED` job is kept for the next poll.
#[inline(always)]
fn finish<R: Request>(
    mut flight: Pin<&mut JobFuture<R>>,
    cx: &mut Context<'_>,
    outcome: Outcome,
    bytes: usize,
) -> Poll<Outcome> {
    if !R::ORDERED {
        budget::spent(bytes);
    } else if budget::finished(cx, bytes).is_pending() {
        return flight.keep(outcome);
    }
    flight.as_mut().finish();
    Poll::Ready(outcome)
}
