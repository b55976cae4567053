//! Nodes that receive messages. A receive takes no slot, so the run polls it as it polls futures.
//! Since a peer may never send, receives stop when another node fails.

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

/// The state of a node that receives, in an instance.
#[pin_project]
pub struct Receive {
    // Dropped before `rdma`.
    #[pin]
    recv: Option<RdmaRecv<Rdma, RecvBuf>>,
    rdma: Rdma,
    dst: Option<RecvBuf>,
    /// The message of the last receive that has ended, or `None` if it failed.
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

    /// Drops the receive. It stays posted, for the next run or operation that receives.
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
    /// Returns a node that receives a message, as [`Rdma::recv`] does. The node is set to a
    /// destination, or to `()`. Its result is the number of bytes that were received;
    /// [`Instance::received`](crate::graph::Instance::received) and
    /// [`Scope::received`](crate::graph::Scope::received) return the whole description of the
    /// message.
    ///
    /// The receive is posted when the node starts, takes no slot of the WorkQ, and completes when a
    /// message has come. If the peer answers a message that another node sends, do not let the
    /// receive depend on that node: start both together, so that the receive is posted before the
    /// answer comes.
    ///
    /// # Cancel safety
    ///
    /// A peer may never send. So when another node fails, the run does not wait for this node,
    /// which becomes [`Stopped`](crate::graph::NodeState::Stopped). The receive then stays posted,
    /// with its memory leased, as when the run is dropped. The next receive on the same Rdma, of
    /// any run or operation, gets its message.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn rdma_recv(&mut self, rdma: &Rdma) -> Node<RecvNode> {
        self.add(NodeWork::Recv(rdma.clone()))
    }
}
