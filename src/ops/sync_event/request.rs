//! The request of a job of a sync event: get, set or add.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::marker::PhantomData;

use super::SyncEvent;
use crate::device::EventJob;
use crate::error::{JobError, Result};
use crate::mem::{self, Handle, Leased, Leases};
use crate::ops::op::{Answer, Answers, Request};
use crate::ops::operation::Op;
use crate::ops::operation::sealed::Own;
use crate::reactor::{Attachment, HasAttachment, JobFuture};

/// A request to get or set the counter of an event, or to add to it. `C` is the event, borrowed
/// (`&SyncEvent`) or owned (`SyncEvent`), and `A` the type of the answer.
pub struct EventRequest<C, A = u64> {
    event: C,
    job: EventJob,
    answer: PhantomData<fn() -> A>,
}

impl<C, A> EventRequest<C, A> {
    #[inline(always)]
    pub(in crate::ops) fn new(event: C, job: EventJob) -> EventRequest<C, A> {
        let answer = PhantomData;
        EventRequest { event, job, answer }
    }
}

impl<C: AsRef<SyncEvent>, A> HasAttachment for EventRequest<C, A> {
    #[inline(always)]
    fn attachment(&self) -> &Attachment {
        self.event.as_ref().attachment()
    }
}

impl<C: AsRef<SyncEvent>, A: Answer> Request for EventRequest<C, A> {
    type Leases = Leases;
    type Job = EventJob;

    const ORDERED: bool = true;

    #[inline(always)]
    fn begin(&self) -> Result<Leased<Leases, EventJob>, JobError> {
        self.attachment().check_open()?;
        Ok(mem::event(self.job))
    }
}

impl<C, A: Answer> Answers for EventRequest<C, A> {
    type Answer = A;
}

impl<C: AsRef<SyncEvent> + Handle<Owned = SyncEvent>, A: Answer> Own for EventRequest<C, A> {
    type Owned = EventRequest<SyncEvent, A>;

    fn own(flight: &JobFuture<Self>) -> Self::Owned {
        let request = flight.context();
        EventRequest::new(request.event.cloned(), request.job)
    }
}

/// The operation of [`SyncEvent::get`], [`SyncEvent::set`] and [`SyncEvent::add`]. Its output is
/// the value for `get`, nothing for `set`, and the previous value for `add`.
pub type SyncEventOp<C, A = u64> = Op<EventRequest<C, A>>;
