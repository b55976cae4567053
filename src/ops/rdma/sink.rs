//! Messages that are sent in batches: fed one by one, and submitted together.
//!
//! Invariant: `flights` are in the order in which their messages were fed, and everything in `fed`
//! came after them.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;
use futures::Sink;

use super::Rdma;
use super::request::RdmaRequest;
use crate::device::Verb;
use crate::error::{JobError, Reason};
use crate::mem::MaybeSource;
use crate::ops::op::{LeasedJob, Request, prepare};
use crate::reactor::{JobFuture, Outcome, Prepared, RDMA_BATCH, budget};

/// The sink of [`Rdma::send_sink`].
#[must_use = "sinks do nothing unless polled"]
pub struct SendSink<S: MaybeSource> {
    /// Messages that were fed and not submitted, with their leases.
    fed: ArrayVec<(S, LeasedSend<S>), RDMA_BATCH>,
    flights: Flights<S>,
    rdma: Rdma,
    /// The most messages that are fed or on their way.
    depth: usize,
    failed: bool,
}

type LeasedSend<S> = LeasedJob<RdmaRequest<Rdma, S, ()>>;
type Flight<S> = JobFuture<RdmaRequest<Rdma, S, ()>>;

/// Sends that the device did not finish inline, the oldest first.
struct Flights<S: MaybeSource> {
    /// Places for them. The first `launched + in_line` ones are in use, and all are used again, so
    /// that no message allocates.
    places: VecDeque<Pin<Box<Option<Flight<S>>>>>,
    /// The number of those that the device has, or that are over.
    launched: usize,
    /// The number of those behind them, which stand in line for a Slot.
    in_line: usize,
    /// The last of them was refused: nothing is submitted behind it.
    refused: bool,
}

impl<S: MaybeSource> SendSink<S> {
    pub(super) fn new(rdma: &Rdma, depth: usize) -> SendSink<S> {
        SendSink {
            fed: ArrayVec::new(),
            flights: Flights {
                places: VecDeque::new(),
                launched: 0,
                in_line: 0,
                refused: false,
            },
            rdma: rdma.clone(),
            depth,
            failed: false,
        }
    }

    fn check(&self) -> Result<(), JobError> {
        match self.failed {
            true => Err(JobError::of(Reason::SinkFailed)),
            false => Ok(()),
        }
    }

    /// Ends it with an error: what was fed or stands in line is not sent.
    fn fail(&mut self, error: JobError) -> JobError {
        self.failed = true;
        self.fed.clear();
        self.flights.clear();
        error
    }

    /// Submits what was fed, and then polls what is on its way.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        // A submission that panics ends it as well.
        self.failed = true;
        let submitted = self.submit(cx);
        // Those on their way came first, and so does their error.
        let advanced = self.flights.poll(cx).and(submitted);
        self.failed = false;
        let (jobs, bytes) = advanced.map_err(|error| self.fail(error))?;
        // Afterwards: the budget must not delay a submission, which has its place in the order.
        if jobs > 0 {
            ready!(budget::finished_all(cx, jobs, bytes));
        }
        Poll::Ready(Ok(()))
    }

    /// Submits what was fed, in order: inline as far as the device can, and the rest by Slots.
    /// Returns how many messages were finished inline, and their bytes.
    fn submit(&mut self, cx: &mut Context<'_>) -> Result<(usize, usize), JobError> {
        if self.flights.refused {
            self.fed.clear();
        }
        if self.fed.is_empty() {
            return Ok((0, 0));
        }
        let jobs = self.fed.iter().map(|(_, begun)| begun);
        let outcomes: ArrayVec<_, RDMA_BATCH> = self.rdma.attachment().finish_inline_all(jobs);
        let (finished, mut bytes) = (outcomes.len(), 0);
        for ((_, begun), outcome) in self.fed.drain(..finished).zip(outcomes) {
            bytes += begun.end(&outcome);
            outcome?;
        }
        for (src, begun) in self.fed.drain(..) {
            let request = RdmaRequest::new(self.rdma.clone(), Verb::Send(None), src, ());
            self.flights.start(cx, request, begun);
            if self.flights.refused {
                break;
            }
        }
        Ok((finished, bytes))
    }
}

impl<S: MaybeSource> Flights<S> {
    fn len(&self) -> usize {
        self.launched + self.in_line
    }

    fn at(&mut self, index: usize) -> Pin<&mut Flight<S>> {
        let flight = self.places[index].as_mut().as_pin_mut();
        flight.expect("the place is in use")
    }

    /// Submits a send by a Slot, or stands in line for one.
    fn start(
        &mut self,
        cx: &mut Context<'_>,
        request: RdmaRequest<Rdma, S, ()>,
        begun: LeasedSend<S>,
    ) {
        let last = self.len();
        if last == self.places.len() {
            self.places.push_back(Box::pin(None));
        }
        self.places[last].set(Some(JobFuture::new(request)));
        let started = self.at(last).start(cx, Prepared::new(begun), prepare);
        self.keep(last, started);
        // What was refused at once stays behind those in line.
        match self.in_line > 0 || self.at(last).is_in_line() {
            true => self.in_line += 1,
            false => self.launched += 1,
        }
    }

    /// Keeps the outcome of a flight, if there is one: those before it are told first. Nothing is
    /// submitted behind a flight that failed so.
    fn keep(&mut self, index: usize, polled: Poll<Outcome>) {
        if let Poll::Ready(outcome) = polled {
            self.refused |= outcome.is_err();
            _ = self.at(index).keep(outcome);
        }
    }

    /// Polls those that stand in line, in order, and those whose end is next.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), JobError> {
        while self.in_line > 0 {
            let first = self.launched;
            let polled = self.at(first).go_on(cx, prepare);
            let failed = matches!(polled, Poll::Ready(Err(_)));
            self.keep(first, polled);
            if self.at(first).is_in_line() {
                break;
            }
            self.in_line -= 1;
            self.launched += 1;
            if failed {
                let behind = self.places.range_mut(self.launched..);
                behind.for_each(|place| place.set(None));
                self.in_line = 0;
            }
        }
        while self.launched > 0
            && let Poll::Ready(outcome) = self.at(0).go_on(cx, prepare)
        {
            outcome?;
            let mut place = self.places.pop_front().expect("it is in use");
            self.launched -= 1;
            place.set(None);
            self.places.push_back(place);
        }
        Ok(())
    }

    /// Drops all of them: those in line are not sent.
    fn clear(&mut self) {
        (self.launched, self.in_line) = (0, 0);
        self.places.clear();
    }
}

// No source is pinned but inside its box.
impl<S: MaybeSource> Unpin for SendSink<S> {}

impl<S: MaybeSource> Sink<S> for SendSink<S> {
    type Error = JobError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let this = &mut *self;
        this.check()?;
        if this.fed.is_full() || this.fed.len() + this.flights.len() >= this.depth {
            ready!(this.advance(cx))?;
        }
        match this.flights.len() < this.depth {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    fn start_send(mut self: Pin<&mut Self>, src: S) -> Result<(), JobError> {
        let this = &mut *self;
        this.check()?;
        let request = RdmaRequest::<_, _, _, usize>::new(&this.rdma, Verb::Send(None), src, ());
        match request.begin() {
            Ok(begun) => {
                this.fed.push((request.into_source(), begun));
                Ok(())
            }
            Err(error) => Err(this.fail(error)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let this = &mut *self;
        this.check()?;
        ready!(this.advance(cx))?;
        match this.flights.len() {
            0 => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.poll_flush(cx)
    }
}

impl<S: MaybeSource> fmt::Debug for SendSink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSink")
            .field("rdma", &self.rdma)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
