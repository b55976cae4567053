//! Nodes that receive. No Slot is theirs, so that they are polled, as futures are; and a peer may
//! never send, so that they end with the first failure.

#![allow(unreachable_pub, reason = "named by the body of a node")]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::super::super::rdma::{Rdma, RdmaRecv};
use super::super::node::{Node, Put, RecvNode, Refusal, stays};
use super::super::plan::{GraphBuilder, NodeWork};
use crate::error::{JobError, Reason, Result};
use crate::mem::MaybeAnyDestination;
use crate::reactor::{Received, WorkQ};

type RecvBuf = MaybeAnyDestination;

/// A receiving node of an instance.
#[pin_project]
pub struct Receive {
    // Before the context.
    #[pin]
    recv: Option<RdmaRecv<Rdma, RecvBuf>>,
    rdma: Rdma,
    dst: Option<RecvBuf>,
    /// The message that the node has received in the last run in which the receive succeeded.
    pub(crate) received: Option<Received>,
}

impl Receive {
    pub(crate) fn seat(rdma: &Rdma, workq: &WorkQ) -> Result<Pin<Box<Receive>>, Refusal> {
        if !rdma.attachment().is_on(workq) {
            return Err(stays());
        }
        Ok(Box::pin(Receive {
            recv: None,
            rdma: rdma.clone(),
            dst: None,
            received: None,
        }))
    }

    pub(crate) fn start(self: Pin<&mut Self>) -> Result<(), JobError> {
        let mut this = self.project();
        let dst = this.dst.clone().ok_or(JobError::of(Reason::NodeUnset))?;
        this.recv.set(Some(this.rdma.recv(dst).owned()));
        Ok(())
    }

    pub(crate) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u64, JobError>> {
        let mut this = self.project();
        let Some(recv) = this.recv.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let outcome = ready!(recv.poll(cx));
        this.recv.set(None);
        *this.received = outcome.ok();
        Poll::Ready(outcome.map(|received| received.len as u64))
    }

    /// Leaves the receive posted, for the next run.
    pub(crate) fn stop(self: Pin<&mut Self>) {
        self.project().recv.set(None);
    }
}

impl Put for RecvNode {
    type Data = RecvBuf;
    type Seat = Pin<Box<Receive>>;

    fn put(recv: &mut Self::Seat, data: RecvBuf) -> Result<()> {
        *recv.as_mut().project().dst = Some(data);
        Ok(())
    }
}

impl GraphBuilder {
    /// Returns a node that receives a message, as [`Rdma::recv`] does. The caller sets it to a
    /// destination, or to `()`. Its result is the number of bytes;
    /// [`Instance::received`](crate::graph::Instance::received) and
    /// [`Scope::received`](crate::graph::Scope::received) return the rest.
    ///
    /// It is posted when its turn comes, takes no Slot of the WorkQ, and has completed when a
    /// message came. A node whose message makes the peer answer should not be waited for: the
    /// receive of the answer is better posted beside it than after it.
    ///
    /// # Cancel safety
    ///
    /// A peer may never send. So when another node fails it is not waited for: it is
    /// [`Stopped`](crate::graph::NodeState::Stopped). As with a run that is dropped the receive
    /// stays posted then, its memory leased, and the next one, of whatever run or Op, gets its
    /// message.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn rdma_recv(&mut self, rdma: &Rdma) -> Node<RecvNode> {
        self.add(NodeWork::Recv(rdma.clone()))
    }
}
