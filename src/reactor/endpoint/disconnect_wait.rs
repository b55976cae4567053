//! [`DisconnectWait`], the wait of a stream of messages that has no receive posted: its pool is
//! empty, or it takes its messages from the endpoint (ADR 0040).
//!
//! A posted receive completes when its connection ends. A stream without a posted receive waits
//! here for that end, or for a message to take. It waits in the list of the watchers of the state:
//! in the line for entries it would hold up receives that have a buffer.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project::pin_project;

use super::endpoint_port::EndpointPort;
use crate::error::JobError;
use crate::reactor::mode::LOOKS;
use crate::reactor::tables::Watching;
use crate::sync::WaitNode;
use crate::sync::atomic::{Ordering, fence};

/// Waits for the end of the connection, until `stop` is called. The task is also woken when a
/// message waits to be taken.
#[pin_project]
pub(crate) struct DisconnectWait<P: AsRef<EndpointPort>> {
    // Dropped before `port`, which keeps alive the list that the node is in.
    #[pin]
    node: WaitNode,
    port: P,
    waits: Option<Wait>,
}

struct Wait {
    /// The life of the endpoint in which the wait began.
    life: u32,
    _watching: Watching,
}

impl<P: AsRef<EndpointPort>> DisconnectWait<P> {
    pub(crate) fn new(port: P) -> DisconnectWait<P> {
        DisconnectWait {
            node: WaitNode::new(),
            port,
            waits: None,
        }
    }

    /// Ends the wait, since the stream has a receive posted or has completed.
    #[inline]
    pub(crate) fn stop(self: Pin<&mut Self>) {
        let this = self.project();
        if this.waits.take().is_some() {
            this.port.as_ref().leave_disconnect(this.node.as_ref());
        }
    }

    /// Waits until no message can come any more. Returns the error with which a posted receive
    /// would have failed.
    pub(crate) fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<JobError> {
        let polled = self.as_mut().poll_end(cx);
        if polled.is_ready() {
            self.stop();
        }
        polled
    }

    fn poll_end(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<JobError> {
        let this = self.project();
        let port = this.port.as_ref();
        let shared = port.shared();
        let wait = this.waits.get_or_insert_with(|| Wait {
            life: port.receives().life(),
            _watching: shared.core.registry.watch(),
        });
        let policy = shared.mode.load();
        // In Hybrid mode this wait does not spin: the connection may not end for a long time.
        if policy.is_busy() {
            if !shared.poll_queue(port.queue(), LOOKS) {
                shared.misses.add();
            }
            cx.waker().wake_by_ref();
        } else {
            if let Err(error) = shared.events.register(shared) {
                return Poll::Ready(error);
            }
            port.enqueue_disconnect(this.node.as_ref(), cx.waker());
            // Arm, then poll. As in `poll_event`, an event that other operations armed for is for
            // this wait, too.
            fence(Ordering::SeqCst);
            if !shared.expected.load(Ordering::Relaxed) && shared.arm() {
                shared.turn();
            }
            if !shared.mode.is_still(policy) {
                cx.waker().wake_by_ref();
            }
        }
        match port.ended_since(wait.life).or_else(|| port.failure()) {
            Some(error) => Poll::Ready(error),
            None => Poll::Pending,
        }
    }
}
