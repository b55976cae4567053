//! Messages as they come, into Bufs of a pool.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::Stream;
use futures::stream::{FusedStream, unfold};

use super::{Rdma, RdmaRecv};
use crate::device::RecvOpcode;
use crate::error::JobError;
use crate::mem::{Buf, BufPool};
use crate::reactor::{DisconnectWait, EndpointPort, Received};

/// What a [`RecvStream`] yields.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The data of the message; `None` if there is none: the peer sent an empty one, or wrote
    /// elsewhere.
    pub buf: Option<Buf>,
    /// What came.
    pub received: Received,
}

/// The stream of [`Rdma::recv_stream`].
#[must_use = "streams do nothing unless polled"]
pub struct RecvStream {
    /// In the order in which their receives were posted; who waits to be posted stands behind.
    posted: VecDeque<Entry>,
    /// Places that are used again.
    idle: Vec<Place>,
    /// What the pool has, as it has it.
    bufs: Pin<Box<dyn Stream<Item = Buf> + Send + Sync>>,
    /// What it waits for while it has no receive posted.
    disconnect_wait: Pin<Box<DisconnectWait<Pair>>>,
    rdma: Rdma,
    receives: usize,
    failed: bool,
}

/// A context, as its connection.
struct Pair(Rdma);

impl AsRef<EndpointPort> for Pair {
    fn as_ref(&self) -> &EndpointPort {
        self.0.port()
    }
}

type Place = Pin<Box<Option<RdmaRecv<Rdma, Buf>>>>;

struct Entry {
    place: Place,
    buf: Buf,
    outcome: Option<Result<Received, JobError>>,
}

impl Entry {
    fn recv(&self) -> Option<&RdmaRecv<Rdma, Buf>> {
        (*self.place).as_ref()
    }

    fn is_begun(&self) -> bool {
        self.recv().is_some_and(|recv| recv.flight().is_begun())
    }

    fn is_older_than(&self, other: &Entry) -> bool {
        let recvs = self.recv().zip(other.recv());
        recvs.is_some_and(|(this, other)| this.flight().is_older_than(other.flight()))
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        if self.outcome.is_none()
            && let Some(recv) = self.place.as_mut().as_pin_mut()
            && let Poll::Ready(outcome) = recv.poll(cx)
        {
            self.outcome = Some(outcome);
        }
    }
}

impl RecvStream {
    pub(super) fn new(rdma: &Rdma, pool: &BufPool, receives: usize) -> RecvStream {
        let bufs = unfold(pool.clone(), async |pool| {
            let buf = pool.alloc().await;
            Some((buf, pool))
        });
        RecvStream {
            posted: VecDeque::with_capacity(receives),
            idle: Vec::with_capacity(receives),
            // Once for all: no message allocates.
            bufs: Box::pin(bufs),
            disconnect_wait: Box::pin(DisconnectWait::new(Pair(rdma.clone()))),
            rdma: rdma.clone(),
            receives,
            failed: false,
        }
    }

    /// Begins as many receives as there shall be, in order.
    fn post(&mut self, cx: &mut Context<'_>) {
        while self.posted.len() < self.receives {
            let Poll::Ready(Some(buf)) = self.bufs.as_mut().poll_next(cx) else {
                break;
            };
            let mut place = self.idle.pop().unwrap_or_else(|| Box::pin(None));
            place.set(Some(self.rdma.recv(buf.clone()).owned()));
            self.posted.push_back(Entry {
                place,
                buf,
                outcome: None,
            });
        }
        // Those that are posted wake this task; only the first of them can be over.
        let begun = self.posted.iter().rposition(Entry::is_begun);
        for at in begun.map_or(0, |last| last + 1)..self.posted.len() {
            self.posted[at].poll(cx);
            if !self.posted[at].is_begun() {
                break;
            }
            self.put_in_order(at);
        }
    }

    /// A receive that was taken over from a dropped Op may be older than others of the stream.
    fn put_in_order(&mut self, mut at: usize) {
        while at > 0 && self.posted[at].is_older_than(&self.posted[at - 1]) {
            self.posted.swap(at, at - 1);
            at -= 1;
        }
    }
}

impl Stream for RecvStream {
    type Item = Result<Message, JobError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.failed {
            return Poll::Ready(None);
        }
        this.post(cx);
        let Some(first) = this.posted.front_mut() else {
            let error = ready!(this.disconnect_wait.as_mut().poll(cx));
            this.failed = true;
            return Poll::Ready(Some(Err(error)));
        };
        this.disconnect_wait.as_mut().stop();
        first.poll(cx);
        let Some(outcome) = first.outcome else {
            return Poll::Pending;
        };
        let Some(Entry { mut place, buf, .. }) = this.posted.pop_front() else {
            return Poll::Pending;
        };
        place.set(None);
        this.idle.push(place);
        if outcome.is_err() {
            this.failed = true;
            // What comes for them is for others.
            this.posted.clear();
        }
        Poll::Ready(Some(outcome.map(|received| {
            let empty = received.len == 0 || received.opcode == RecvOpcode::WriteImm;
            Message {
                buf: (!empty).then_some(buf),
                received,
            }
        })))
    }
}

impl FusedStream for RecvStream {
    fn is_terminated(&self) -> bool {
        self.failed
    }
}

impl fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvStream")
            .field("rdma", &self.rdma)
            .field("receives", &self.receives)
            .finish()
    }
}
