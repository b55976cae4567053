//! [`Action`], by which a context joins graphs: the engine asks nothing else of a context.
//!
//! A context that has a [`Request`] needs an [`Action`] in its own folder, together with a method
//! of `GraphBuilder` that makes the node.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Settable")]

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::super::super::op::{self, Request};
use super::handle::sealed::Put;
use crate::error::{ErrorKind, JobError, Reason, Result};
use crate::reactor::{Attachment, Outcome, Prepared, Run, RunWaiter, WorkQ, budget};

/// A function that attaches the context's device to another WorkQ and returns the new context.
pub(crate) type Attach<C> = fn(&C, &WorkQ) -> Result<C>;

/// The reason why a node cannot be on a WorkQ: the kind and text of an error.
pub(crate) type Refusal = (ErrorKind, String);

/// Returns the refusal of a node whose context cannot move to another WorkQ: an Rdma is connected
/// on its WorkQ, and a SyncEvent has its waits there.
pub(crate) fn stays() -> Refusal {
    let text =
        "its context is on another WorkQ, and stays there: Graph::instance_on takes that one alone";
    (ErrorKind::InvalidValue, text.to_owned())
}

/// A kind of node whose work is a job of a context.
pub trait Action: 'static {
    /// What the graph keeps for the node: a context, and whatever else is the same in all
    /// instances.
    type Context: Clone + Send + Sync + 'static;
    /// The operands that the node is set to.
    type Data;
    /// The request that begins when the node starts.
    #[allow(private_bounds, reason = "no other crate can name this trait")]
    type Request: Request + Send + Sync + 'static;
    /// The name of nodes of this kind.
    const NAME: &'static str;

    /// Attaches the context to another WorkQ, which has the context's device already. `None` if the
    /// context cannot move.
    const ATTACH: Option<Attach<Self::Context>>;

    /// Returns the attachment of the context.
    fn attachment(context: &Self::Context) -> &Attachment;

    /// Makes a request from the data that the node was set to.
    fn request(context: &Self::Context, data: Self::Data) -> Self::Request;
}

/// A context node of a plan, without the type of its kind.
pub(crate) trait Template: Send + Sync {
    fn name(&self) -> &'static str;
    fn attachment(&self) -> &Attachment;
    /// Makes the node's state for a new instance on `workq`.
    fn seat(&self, workq: &WorkQ) -> Result<Box<dyn Step>, Refusal>;
}

pub(crate) struct Planned<A: Action>(pub(crate) A::Context);

impl<A: Action> Template for Planned<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn attachment(&self) -> &Attachment {
        A::attachment(&self.0)
    }

    fn seat(&self, workq: &WorkQ) -> Result<Box<dyn Step>, Refusal> {
        let attachment = self.attachment();
        let context = if attachment.is_on(workq) {
            self.0.clone()
        } else {
            let attach = A::ATTACH.ok_or_else(stays)?;
            let device = attachment.device();
            if !workq.has(device) {
                let name = device.info().name();
                let text = format!("no context of device {name} is on this WorkQ: attach one");
                return Err((ErrorKind::InvalidValue, text));
            }
            attach(&self.0, workq).map_err(|error| (error.kind(), error.to_string()))?
        };
        Ok(Box::new(Seat::<A> {
            context,
            request: None,
            prepared: None,
        }))
    }
}

/// A context node of an instance, without the type of its kind.
pub(crate) trait Step: Any + Send + Sync {
    /// Takes the Leases, and finishes the job inline if the device can. Returns `None` if the job
    /// needs a slot: it is kept, prepared, until `launch` or `put_off`.
    fn begin(&mut self) -> Option<Outcome>;
    /// Submits the job that `begin` has kept. Returns false if there is no slot; the Leases were
    /// given back then.
    fn launch(&mut self, heard: &mut bool, run: &Arc<dyn Run>, node: u32)
    -> Result<bool, JobError>;
    /// Gives back the Leases of the job that `begin` has kept.
    fn put_off(&mut self);
    /// Waits in line for a slot, and submits the job.
    fn poll_launch(
        &self,
        line: Pin<&mut RunWaiter>,
        cx: &mut Context<'_>,
        run: &Arc<dyn Run>,
        node: u32,
    ) -> Poll<Result<(), JobError>>;
}

/// The state of a context node in an instance. `Instance::set` stores the operands here.
pub struct Seat<A: Action> {
    context: A::Context,
    request: Option<A::Request>,
    /// The prepared job, between `begin` and `launch`.
    prepared: Option<Prepared<<A::Request as Request>::Job>>,
}

impl<A: Action> Seat<A> {
    #[inline(always)]
    fn request(&self) -> Result<&A::Request, JobError> {
        self.request.as_ref().ok_or(JobError::of(Reason::NodeUnset))
    }
}

impl<A: Action> Step for Seat<A> {
    fn begin(&mut self) -> Option<Outcome> {
        let begun = self
            .request()
            .and_then(|request| Ok((request, request.begin()?)));
        let (request, begun) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                budget::spent(0);
                return Some(Err(error));
            }
        };
        match request.finish_inline(&begun) {
            Some(outcome) => {
                budget::spent(begun.end(&outcome));
                Some(outcome)
            }
            None => {
                budget::spent(0);
                self.prepared = Some(Prepared::new(begun));
                None
            }
        }
    }

    fn launch(
        &mut self,
        heard: &mut bool,
        run: &Arc<dyn Run>,
        node: u32,
    ) -> Result<bool, JobError> {
        let at = A::attachment(&self.context);
        match self.prepared.take() {
            Some(prepared) => RunWaiter::launch(at, heard, prepared, Arc::clone(run), node),
            None => unreachable!("it is launched once after each begin"),
        }
    }

    fn put_off(&mut self) {
        self.prepared = None;
    }

    fn poll_launch(
        &self,
        line: Pin<&mut RunWaiter>,
        cx: &mut Context<'_>,
        run: &Arc<dyn Run>,
        node: u32,
    ) -> Poll<Result<(), JobError>> {
        let prepare = || op::prepare(self.request()?);
        line.poll_launch(cx, A::attachment(&self.context), run, node, &prepare)
    }
}

impl<A: Action> Put for A {
    type Data = A::Data;
    type Seat = Seat<A>;

    fn put(seat: &mut Seat<A>, data: A::Data) -> Result<()> {
        seat.request = Some(A::request(&seat.context, data));
        Ok(())
    }
}
