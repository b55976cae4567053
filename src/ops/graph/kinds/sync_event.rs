//! The nodes of a SyncEvent. Nodes that change or read the counter are jobs. A wait is polled, as a
//! receive is, and stops when another node fails, since the event may never be set.

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

/// Defines, for each job of a SyncEvent, the kind of its node, the type that the node is set to,
/// and the method of the builder.
macro_rules! nodes {
    ($(
        $(#[$doc:meta])*
        fn $method:ident -> $kind:ident ($data:ty) { $job:expr }
    )*) => {$(
        #[doc = concat!("The kind of a node of [`GraphBuilder::", stringify!($method), "`], which documents what the node is set to.")]
        #[derive(Debug)]
        pub enum $kind {}

        impl Action for $kind {
            type Context = SyncEvent;
            type Data = $data;
            type Request = EventRequest<SyncEvent>;
            const NAME: &'static str = stringify!($method);
            /// `None`: a SyncEvent cannot change its WorkQ, since its waits are there.
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
    /// Returns a node that gets the value of the counter, as [`SyncEvent::get`] does. The node has
    /// no operands: set it to `()`. Its result is the value.
    fn sync_event_get -> EventGetNode (()) { |()| EventJob::Get }

    /// Returns a node that sets the counter, as [`SyncEvent::set`] does. The node is set to the new
    /// value, which is also its result.
    fn sync_event_set -> EventSetNode (u64) { EventJob::Set }

    /// Returns a node that adds to the counter, as [`SyncEvent::add`] does. The node is set to the
    /// number to add. Its result is the previous value.
    fn sync_event_add -> EventAddNode (u64) { EventJob::Add }
}

/// The kind of a node that waits for a sync event ([`GraphBuilder::sync_event_wait_gt`]). Such a
/// node is set to a threshold, or to `(threshold, mask)`.
#[derive(Debug)]
pub enum EventWaitNode {}

/// The operands of a node that waits for a sync event. A threshold, or `(threshold, mask)`,
/// converts to them.
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

/// The state of a node that waits for a sync event, in an instance.
#[pin_project]
pub struct Waiting {
    // Dropped before `event`.
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

    /// Drops the wait.
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
    /// Returns a node that waits for a sync event, as [`SyncEvent::wait_gt`] does. The node is set
    /// to a threshold, or to `(threshold, mask)`. Its result is the value that ended the wait. The
    /// node takes no slot of the WorkQ.
    ///
    /// # Cancel safety
    ///
    /// The event may never be set. So when another node fails, the wait ends, and the node is
    /// [`Stopped`](crate::graph::NodeState::Stopped).
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn sync_event_wait_gt(&mut self, event: &SyncEvent) -> Node<EventWaitNode> {
        self.add(NodeWork::Wait(event.clone()))
    }
}
