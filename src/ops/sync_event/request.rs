//! One get, set or add, from its first poll to its answer.

use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{self, Poll};

use pin_project::pin_project;

use super::SyncEvent;
use crate::device::EventJob;
use crate::error::{JobError, Result};
use crate::mem::{Begun, Leases};
use crate::ops::op::{self, Request};
use crate::reactor::{Attachment, Flight, Outcome, Prepared};

/// What an operation answers.
pub trait Answer: sealed::Of {}

impl Answer for u64 {}
impl Answer for () {}

mod sealed {
    pub trait Of {
        fn of(word: u64) -> Self;
    }

    impl Of for u64 {
        #[inline(always)]
        fn of(word: u64) -> u64 {
            word
        }
    }

    impl Of for () {
        #[inline(always)]
        fn of(_: u64) {}
    }
}

/// What to do. `C` is how it has its context: borrowed (`&SyncEvent`) or owned (`SyncEvent`).
pub(in crate::ops) struct EventRequest<C> {
    pub(in crate::ops) event: C,
    pub(in crate::ops) job: EventJob,
}

impl<C: AsRef<SyncEvent>> Deref for EventRequest<C> {
    type Target = Attachment;

    #[inline(always)]
    fn deref(&self) -> &Attachment {
        &self.event.as_ref().0
    }
}

impl<C: AsRef<SyncEvent>> Request for EventRequest<C> {
    type Leases = Leases;
    type Job = EventJob;

    const ORDERED: bool = true;

    #[inline(always)]
    fn begin(&self) -> Result<Begun<Leases, EventJob>, JobError> {
        self.check_open()?;
        Ok(Begun::event(self.job))
    }

    #[inline(always)]
    fn finish_inline(&self, begun: &Begun<Leases, EventJob>) -> Option<Outcome> {
        self.event
            .as_ref()
            .subscription()
            .finish_inline(begun.job())
    }

    #[inline(always)]
    fn prepare(&self, begun: Begun<Leases, EventJob>) -> Prepared {
        Prepared::new(begun, self.queue_index())
    }
}

/// The future of [`SyncEvent::get`], [`SyncEvent::set`] and [`SyncEvent::add`] in all their forms: the value, nothing, or what the value was.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct SyncEventOp<C: AsRef<SyncEvent>, A = u64> {
    #[pin]
    flight: Flight<EventRequest<C>>,
    answer: PhantomData<fn() -> A>,
}

impl<C: AsRef<SyncEvent>, A: Answer> SyncEventOp<C, A> {
    #[inline(always)]
    pub(super) fn new(event: C, job: EventJob) -> SyncEventOp<C, A> {
        SyncEventOp {
            flight: Flight::new(EventRequest { event, job }),
            answer: PhantomData,
        }
    }

    /// Submitted now, or refused.
    pub(super) fn submitted(event: C, job: EventJob) -> Result<SyncEventOp<C, A>, JobError> {
        let flight = op::try_submit(EventRequest { event, job })?;
        let answer = PhantomData;
        Ok(SyncEventOp { flight, answer })
    }
}

impl<C: AsRef<SyncEvent>, A: Answer> Future for SyncEventOp<C, A> {
    type Output = Result<A, JobError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        op::poll(self.project().flight, cx).map(|outcome| outcome.map(A::of))
    }
}
