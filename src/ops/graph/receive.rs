//! Nodes that receive. No Slot is theirs, so that they are polled, as futures are; and a peer may never send, so that they end
//! with the first failure.

#![allow(unreachable_pub, reason = "named by the body of a node")]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::super::rdma::{Rdma, RdmaRecv};
use super::MaybeAnyDestination;
use super::action::{Refusal, stays};
use super::builder::GraphBuilder;
use super::node::sealed::Put;
use super::node::{Node, NodeState};
use super::plan::{Plan, Work};
use super::progress::{Body, Place, Progress};
use crate::error::{JobError, Reason, Result};
use crate::reactor::{Received, WorkQ};

/// The kind of a node that receives: [`GraphBuilder::rdma_recv`]. It is set to a destination, or to `()`.
#[derive(Debug)]
pub enum RecvNode {}

type Room = MaybeAnyDestination;

/// A receiving node of an instance.
#[pin_project]
pub struct Receive {
    // Before the context.
    #[pin]
    recv: Option<RdmaRecv<Rdma, Room>>,
    rdma: Rdma,
    dst: Option<Room>,
    /// Of the last run in which it completed.
    received: Option<Received>,
}

impl Receive {
    pub(super) fn seat(rdma: &Rdma, workq: &WorkQ) -> Result<Pin<Box<Receive>>, Refusal> {
        if !rdma.place().is_on(workq) {
            return Err(stays());
        }
        Ok(Box::pin(Receive {
            recv: None,
            rdma: rdma.clone(),
            dst: None,
            received: None,
        }))
    }

    fn start(self: Pin<&mut Self>) -> Result<(), JobError> {
        let mut this = self.project();
        let dst = this.dst.clone().ok_or(JobError::of(Reason::NodeUnset))?;
        this.recv.set(Some(this.rdma.recv(dst).owned()));
        Ok(())
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u64, JobError>> {
        let mut this = self.project();
        let Some(recv) = this.recv.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let outcome = ready!(recv.poll(cx));
        this.recv.set(None);
        *this.received = outcome.ok();
        Poll::Ready(outcome.map(|received| received.len as u64))
    }

    /// The receive stays posted, for the next one.
    pub(super) fn stop(self: Pin<&mut Self>) {
        self.project().recv.set(None);
    }
}

impl Put for RecvNode {
    type Data = Room;

    fn put(place: Place<'_>, data: Room) -> Result<()> {
        match place.body {
            Body::Recv(recv) => *recv.as_mut().project().dst = Some(data),
            _ => return Err(place.mismatch()),
        }
        Ok(())
    }
}

impl Progress {
    /// Starts a receive, or a wait.
    pub(super) fn begin_polled(&mut self, plan: &Plan, node: u32, cx: &mut Context<'_>) {
        let started = match &mut self.bodies[node as usize] {
            Body::Recv(recv) => recv.as_mut().start(),
            Body::Wait(wait) => wait.as_mut().start(),
            _ => return,
        };
        match started {
            Ok(()) => {
                self.active.insert(node);
                self.poll_polled(plan, node, cx);
            }
            Err(error) => self.fail(node, error, None),
        }
    }

    pub(super) fn poll_polled(&mut self, plan: &Plan, node: u32, cx: &mut Context<'_>) {
        let polled = match &mut self.bodies[node as usize] {
            Body::Recv(recv) => recv.as_mut().poll(cx),
            Body::Wait(wait) => wait.as_mut().poll(cx),
            _ => return,
        };
        if let Poll::Ready(outcome) = polled {
            self.active.remove(node);
            self.over(plan, node, outcome);
        }
    }

    pub(super) fn stop_polled(&mut self, node: u32) {
        match &mut self.bodies[node as usize] {
            Body::Recv(recv) => recv.as_mut().stop(),
            Body::Wait(wait) => wait.as_mut().stop(),
            _ => {}
        }
    }

    pub(super) fn received(&self, plan: &Plan, node: Node<RecvNode>) -> Option<Received> {
        match &self.bodies.get(node.id().index as usize)? {
            Body::Recv(recv) if self.state(plan, node.id()) == NodeState::Completed => {
                recv.received
            }
            _ => None,
        }
    }

    /// Whether a future or a receive goes on, those of sub-graphs not asked.
    pub(super) fn has_futures(&self) -> bool {
        let mut at = 0;
        while let Some(index) = self.active.next(at) {
            if !matches!(self.bodies[index as usize], Body::Sub(_)) {
                return true;
            }
            at = index + 1;
        }
        false
    }
}

impl GraphBuilder {
    /// A node that receives, as [`Rdma::recv`] does: it is set to a destination, or to `()`. Its result is the number of bytes;
    /// [`Instance::received`](super::Instance::received) and [`Scope::received`](super::Scope::received) tell the rest.
    ///
    /// It is posted when its turn comes, takes no Slot of the WorkQ, and is over when a message came. A node whose message makes the
    /// peer answer should not be waited for: the receive of the answer is better posted beside it than after it.
    ///
    /// # Cancel safety
    ///
    /// A peer may never send. So when another node fails it is not waited for: it is
    /// [`Stopped`](super::NodeState::Stopped). As with a run that is dropped the receive stays posted then, its memory leased, and
    /// the next one, of whatever run or Op, gets its message.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn rdma_recv(&mut self, rdma: &Rdma) -> Node<RecvNode> {
        self.add(Work::Recv(rdma.clone()))
    }
}
