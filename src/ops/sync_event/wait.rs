//! One wait, from its first poll to a value.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{self, Poll, ready};

use pin_project::pin_project;

use super::{SyncEvent, SyncEventOp};
use crate::device::{EventJob, EventWait};
use crate::error::{JobError, Result};
use crate::reactor::{Attachment, Nap, Subscription, WaitFlight, Waiter};

pub(super) struct WaitRequest<C> {
    pub(super) event: C,
    pub(super) wait: EventWait,
}

impl<C: AsRef<SyncEvent>> Deref for WaitRequest<C> {
    type Target = Attachment;

    #[inline(always)]
    fn deref(&self) -> &Attachment {
        &self.event.as_ref().0
    }
}

impl<C: AsRef<SyncEvent>> Waiter for WaitRequest<C> {
    #[inline(always)]
    fn subscription(&self) -> &Subscription {
        self.event.as_ref().subscription()
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

/// The future of [`SyncEvent::wait_gt`] and its other forms: a value that ended it, all its bits.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct SyncEventWait<C: AsRef<SyncEvent>>(#[pin] How<C>);

#[pin_project(project = HowProjected)]
enum How<C: AsRef<SyncEvent>> {
    /// The device waits.
    Waits(#[pin] WaitFlight<WaitRequest<C>>),
    /// It cannot: the value is got again and again, after naps.
    Gets {
        #[pin]
        get: SyncEventOp<SyncEvent>,
        #[pin]
        nap: Nap,
        event: C,
        wait: EventWait,
        over: bool,
    },
}

impl<C: AsRef<SyncEvent>> SyncEventWait<C> {
    pub(super) fn new(event: C, threshold: u64, mask: u64) -> SyncEventWait<C> {
        let wait = EventWait { threshold, mask };
        SyncEventWait(match event.as_ref().caps().max_wait {
            Some(_) => How::Waits(WaitFlight::new(WaitRequest { event, wait })),
            None => How::Gets {
                get: SyncEventOp::new(event.as_ref().clone(), EventJob::Get),
                nap: Nap::new(event.as_ref().0.workq()),
                event,
                wait,
                over: false,
            },
        })
    }

    /// Begun now, or refused.
    pub(super) fn begun(event: C, threshold: u64, mask: u64) -> Result<SyncEventWait<C>, JobError> {
        let mut wait = SyncEventWait::new(event, threshold, mask);
        match &mut wait.0 {
            How::Waits(flight) => flight.try_start()?,
            How::Gets { get, event, .. } => {
                *get = SyncEventOp::submitted(event.as_ref().clone(), EventJob::Get)?;
            }
        }
        Ok(wait)
    }
}

impl<C: AsRef<SyncEvent>> Future for SyncEventWait<C> {
    type Output = Result<u64, JobError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        match self.project().0.project() {
            HowProjected::Waits(flight) => flight.poll(cx),
            HowProjected::Gets {
                mut get,
                mut nap,
                event,
                wait,
                over,
            } => {
                assert!(!*over, "an Op was polled after it had finished");
                let event = event.as_ref();
                if let Err(error) = ready!(nap.as_mut().poll(cx)) {
                    *over = true;
                    return Poll::Ready(Err(error));
                }
                let looked =
                    ready!(get.as_mut().poll(cx)).and_then(|value| match wait.is_over(value) {
                        true => Ok(Some(value)),
                        // Whether there is anybody to wait for no get tells.
                        false => event.subscription().event().look(wait),
                    });
                if let Some(result) = looked.transpose() {
                    *over = true;
                    return Poll::Ready(result);
                }
                get.set(SyncEventOp::new(event.clone(), EventJob::Get));
                if let Err(error) = nap.go_on(cx) {
                    *over = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending
            }
        }
    }
}
