//! The request and the future of a wait for a sync event.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::pin::Pin;
use std::task::{self, Poll, ready};

use pin_project::pin_project;

use super::SyncEvent;
use super::request::EventRequest;
use crate::device::{EventJob, EventWait};
use crate::error::{JobError, Reason, Result};
use crate::mem::Handle;
use crate::ops::operation::Op;
use crate::ops::operation::sealed::{Kind, Own, Post};
use crate::reactor::{
    Attachment, Backoff, EventPortHandle, EventWaitFuture, HasAttachment, JobFuture, Waiter,
};

type Get = EventRequest<SyncEvent>;

/// A request to wait for a sync event. `C` is the event: borrowed (`&SyncEvent`) or owned
/// (`SyncEvent`).
pub struct WaitRequest<C> {
    pub(super) event: C,
    pub(super) wait: EventWait,
}

impl<C: AsRef<SyncEvent>> HasAttachment for WaitRequest<C> {
    #[inline(always)]
    fn attachment(&self) -> &Attachment {
        self.event.as_ref().attachment()
    }
}

impl<C: AsRef<SyncEvent>> Waiter for WaitRequest<C> {
    #[inline(always)]
    fn port(&self) -> &EventPortHandle {
        self.event.as_ref().port()
    }

    #[inline(always)]
    fn wait(&self) -> EventWait {
        self.wait
    }

    #[inline]
    fn check(&self) -> Result<(), JobError> {
        self.event.as_ref().check_wait(&self.wait)
    }

    fn highest(&self) -> u64 {
        self.event.as_ref().caps().max_wait.unwrap_or(u64::MAX)
    }
}

/// The operation of [`SyncEvent::wait_gt`] and [`SyncEvent::wait_gt_masked`]. Its output is the
/// whole value that ended the wait.
pub type SyncEventWait<C> = Op<WaitRequest<C>>;

/// The future of a wait for a sync event.
#[pin_project(project = WaitingProjected)]
pub enum Waiting<C: AsRef<SyncEvent>> {
    /// The wait on a device that can wait.
    Waits(#[pin] EventWaitFuture<WaitRequest<C>>),
    /// The wait on a device that cannot wait: jobs get the value again and again, with pauses in
    /// between.
    Gets {
        #[pin]
        get: JobFuture<Get>,
        #[pin]
        nap: Backoff,
        event: C,
        wait: EventWait,
        finished: bool,
    },
}

impl<C: AsRef<SyncEvent>> Kind for WaitRequest<C> {
    type Output = Result<u64, JobError>;
    type JobFuture = Waiting<C>;

    fn flight(self) -> Waiting<C> {
        let WaitRequest { event, wait } = self;
        match event.as_ref().caps().max_wait {
            Some(_) => Waiting::Waits(EventWaitFuture::new(WaitRequest { event, wait })),
            None => Waiting::Gets {
                get: get(&event),
                nap: Backoff::new(event.as_ref().attachment().workq()),
                event,
                wait,
                finished: false,
            },
        }
    }

    fn start(flight: &mut Waiting<C>) -> Result<(), JobError> {
        match flight {
            Waiting::Waits(flight) => flight.start(),
            Waiting::Gets { get, .. } => Get::start(get),
        }
    }

    #[inline]
    fn poll(flight: Pin<&mut Waiting<C>>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        match flight.project() {
            WaitingProjected::Waits(flight) => flight.poll(cx),
            WaitingProjected::Gets {
                mut get,
                mut nap,
                event,
                wait,
                finished,
            } => {
                assert!(!*finished, "an Op was polled after it had finished");
                if let Err(error) = ready!(nap.as_mut().poll(cx)) {
                    *finished = true;
                    return Poll::Ready(Err(error));
                }
                let looked = ready!(Get::poll(get.as_mut(), cx)).and_then(|value| {
                    match wait.is_met(value) {
                        true => Ok(Some(value)),
                        // A get does not report whether a peer that could set the event has ended,
                        // but `ask` does.
                        false => event.as_ref().port().event().ask(wait),
                    }
                });
                if let Some(result) = looked.transpose() {
                    *finished = true;
                    return Poll::Ready(result);
                }
                get.set(self::get(event));
                if let Err(error) = nap.resume(cx) {
                    *finished = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending
            }
        }
    }
}

/// Returns a job that gets the value, for a device that cannot wait.
fn get(event: &impl AsRef<SyncEvent>) -> JobFuture<Get> {
    Get::flight(Get::new(event.as_ref().clone(), EventJob::Get))
}

impl<C: AsRef<SyncEvent>> Post for WaitRequest<C> {
    fn post(flight: &mut Waiting<C>, user_data: u64) -> Result<(), JobError> {
        match flight {
            Waiting::Waits(flight) => flight.post(user_data),
            // The caller's own loop can get the value itself.
            Waiting::Gets { .. } => Err(JobError::of(Reason::NotPosted)),
        }
    }
}

impl<C: AsRef<SyncEvent> + Handle<Owned = SyncEvent>> Own for WaitRequest<C> {
    type Owned = WaitRequest<SyncEvent>;

    fn own(flight: &Waiting<C>) -> WaitRequest<SyncEvent> {
        let (event, wait) = match flight {
            Waiting::Waits(flight) => (&flight.waiter().event, flight.waiter().wait),
            Waiting::Gets { event, wait, .. } => (event, *wait),
        };
        let event = event.cloned();
        WaitRequest { event, wait }
    }
}
