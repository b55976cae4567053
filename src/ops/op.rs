//! How an Op goes from its first poll to its result, whatever kind of Job it makes.
//!
//! A [`Request`] is what the caller asked for: a context and operands. It lies in the Op's [`Flight`], begins when the Op is
//! polled first, and begins anew after waiting for a Slot.

use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::error::JobError;
use crate::mem::Begun;
use crate::reactor::{Attachment, Flight, Outcome, Prepared, budget};

/// A Job to be, and how it reaches its context.
pub(super) trait Request: Deref<Target = Attachment> + Sized {
    type Leases;
    type Job;

    /// Those that are polled first in some order are submitted in that order. So they spend of the
    /// budget afterwards.
    const ORDERED: bool = false;

    /// Checks, and takes the Leases of a Job.
    fn begin(&self) -> Result<Started<Self>, JobError>;

    /// Finishes it now, if the device can.
    #[inline(always)]
    fn finish_inline(&self, _begun: &Started<Self>) -> Option<Outcome> {
        None
    }

    /// It was finished inline: gives the Leases back, and says how many bytes were moved.
    #[inline(always)]
    fn end(_begun: Started<Self>, _outcome: &Outcome) -> usize {
        0
    }

    /// What a Slot keeps of it.
    fn prepare(&self, begun: Started<Self>) -> Prepared;
}

/// The Job of a Request, and its Leases.
pub(super) type Started<R> = Begun<<R as Request>::Leases, <R as Request>::Job>;

pub(super) fn prepare<R: Request>(request: &R) -> Result<Prepared, JobError> {
    Ok(request.prepare(request.begin()?))
}

/// Polls an Op.
#[inline(always)]
pub(super) fn poll<R: Request>(
    mut flight: Pin<&mut Flight<R>>,
    cx: &mut Context<'_>,
) -> Poll<Outcome> {
    if !flight.is_idle() {
        return flight.go_on(cx, prepare);
    }
    if !R::ORDERED {
        ready!(budget::proceed(cx));
    }
    let request = flight.context();
    let begun = match request.begin() {
        Ok(begun) => begun,
        Err(error) => {
            // A loop of refused Jobs must not starve the others either.
            return over(flight, cx, Err(error), 0);
        }
    };
    match request.finish_inline(&begun) {
        Some(outcome) => {
            let bytes = R::end(begun, &outcome);
            over(flight, cx, outcome, bytes)
        }
        None => {
            let prepared = request.prepare(begun);
            let outcome = ready!(flight.as_mut().start(cx, prepared, prepare));
            over(flight, cx, outcome, 0)
        }
    }
}

/// It was over within its first poll. If the budget is spent, the outcome is kept for the next one.
#[inline(always)]
fn over<R: Request>(
    mut flight: Pin<&mut Flight<R>>,
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

/// Submits at once, or says why not: nothing waits.
pub(super) fn try_submit<R: Request>(request: R) -> Result<Flight<R>, JobError> {
    let begun = request.begin()?;
    match request.finish_inline(&begun) {
        Some(outcome) => {
            R::end(begun, &outcome);
            let mut flight = Flight::new(request);
            flight.set_ready(outcome);
            Ok(flight)
        }
        None => {
            let prepared = request.prepare(begun);
            let mut flight = Flight::new(request);
            flight.try_start(prepared)?;
            Ok(flight)
        }
    }
}

/// Submits for a loop of the caller's own, or says why not: nothing waits, and there is no Op.
pub(super) fn post<R: Request>(request: R, user_data: u64) -> Result<(), JobError> {
    let begun = request.begin()?;
    let slot = request.try_reserve()?;
    match request.finish_inline(&begun) {
        Some(outcome) => {
            R::end(begun, &outcome);
            request.settle(slot, user_data, outcome);
            Ok(())
        }
        None => request.post(slot, request.prepare(begun), user_data),
    }
}
