//! The nodes of a SyncEvent. What changes and reads the counter are Jobs; a wait is polled, as a
//! receive is, and ends with the first failure, since the event may never be set.

#![allow(unreachable_pub, reason = "named by the body of a node")]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::super::super::sync_event::{EventRequest, SyncEvent, SyncEventWait};
use super::super::node::{Action, Attach, Node, Put, Refusal, stays};
use super::super::plan::{GraphBuilder, NodeWork};
use crate::device::EventJob;
use crate::error::{JobError, Reason, Result};
use crate::reactor::{Attachment, WorkQ};

/// Each operation: its node's kind, what that is set to, and the call that makes one.
macro_rules! nodes {
    ($(
        $(#[$doc:meta])*
        fn $method:ident -> $kind:ident ($data:ty) { $job:expr }
    )*) => {$(
        #[doc = concat!("The kind of a node of [`GraphBuilder::", stringify!($method), "`], which says what it is set to.")]
        #[derive(Debug)]
        pub enum $kind {}

        impl Action for $kind {
            type Context = SyncEvent;
            type Data = $data;
            type Request = EventRequest<SyncEvent>;
            const NAME: &'static str = stringify!($method);
            /// Its waits are where it is.
            const ATTACH: Option<Attach<SyncEvent>> = None;

            fn attachment(event: &SyncEvent) -> &Attachment {
                event.attachment()
            }

            fn request(event: &SyncEvent, data: $data) -> Self::Request {
                let job: fn($data) -> EventJob = $job;
                EventRequest::new(event.clone(), job(data))
            }
        }

        impl GraphBuilder {
            $(#[$doc])*
            #[doc(alias = "doca_graph_ctx_node_create")]
            pub fn $method(&mut self, event: &SyncEvent) -> Node<$kind> {
                self.context(event.clone())
            }
        }
    )*};
}

nodes! {
    /// A node that gets the value, as [`SyncEvent::get`] does: it is set to `()`. Its result is the
    /// value.
    fn sync_event_get -> EventGetNode (()) { |()| EventJob::Get }

    /// A node that sets the counter, as [`SyncEvent::set`] does: it is set to the value, which is
    /// its result too.
    fn sync_event_set -> EventSetNode (u64) { EventJob::Set }

    /// Returns a node that adds to the counter, as [`SyncEvent::add`] does: it is set to what is
    /// added. Its result is what the value was.
    fn sync_event_add -> EventAddNode (u64) { EventJob::Add }
}

/// The kind of a node that waits: [`GraphBuilder::sync_event_wait_gt`]. It is set to a threshold,
/// or to `(threshold, mask)`.
#[derive(Debug)]
pub enum EventWaitNode {}

/// The operands of a waiting node: made of a threshold, or of `(threshold, mask)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventWaitData {
    threshold: u64,
    mask: u64,
}

impl From<u64> for EventWaitData {
    fn from(threshold: u64) -> EventWaitData {
        let mask = u64::MAX;
        EventWaitData { threshold, mask }
    }
}

impl From<(u64, u64)> for EventWaitData {
    fn from((threshold, mask): (u64, u64)) -> EventWaitData {
        EventWaitData { threshold, mask }
    }
}

/// A waiting node of an instance.
#[pin_project]
pub struct Waiting {
    // Before the context.
    #[pin]
    wait: Option<SyncEventWait<SyncEvent>>,
    event: SyncEvent,
    until: Option<EventWaitData>,
}

impl Waiting {
    pub(crate) fn seat(event: &SyncEvent, workq: &WorkQ) -> Result<Pin<Box<Waiting>>, Refusal> {
        if !event.attachment().is_on(workq) {
            return Err(stays());
        }
        Ok(Box::pin(Waiting {
            wait: None,
            event: event.clone(),
            until: None,
        }))
    }

    pub(crate) fn start(self: Pin<&mut Self>) -> Result<(), JobError> {
        let mut this = self.project();
        let until = this.until.ok_or(JobError::of(Reason::NodeUnset))?;
        let wait = this
            .event
            .wait_gt_masked(until.threshold, until.mask)
            .owned();
        this.wait.set(Some(wait));
        Ok(())
    }

    pub(crate) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u64, JobError>> {
        let mut this = self.project();
        let Some(wait) = this.wait.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let outcome = ready!(wait.poll(cx));
        this.wait.set(None);
        Poll::Ready(outcome)
    }

    /// It waits no more.
    pub(crate) fn stop(self: Pin<&mut Self>) {
        self.project().wait.set(None);
    }
}

impl Put for EventWaitNode {
    type Data = EventWaitData;
    type Seat = Pin<Box<Waiting>>;

    fn put(wait: &mut Self::Seat, data: EventWaitData) -> Result<()> {
        *wait.as_mut().project().until = Some(data);
        Ok(())
    }
}

impl GraphBuilder {
    /// Returns a node that waits, as [`SyncEvent::wait_gt`] does: it is set to a threshold, or to
    /// `(threshold, mask)`. Its result is a value that ended it. It takes no Slot of the WorkQ.
    ///
    /// # Cancel safety
    ///
    /// The event may never be set. So when another node fails the wait does not continue: it is
    /// [`Stopped`](crate::graph::NodeState::Stopped).
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn sync_event_wait_gt(&mut self, event: &SyncEvent) -> Node<EventWaitNode> {
        self.add(NodeWork::Wait(event.clone()))
    }
}
