//! Messages as they come, into Bufs of a pool.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::Stream;
use futures::stream::FusedStream;

use super::{Rdma, RdmaRecv};
use crate::device::RecvOpcode;
use crate::error::JobError;
use crate::mem::{Buf, BufPool};
use crate::reactor::Received;

/// What a [`RecvStream`] yields.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The data of the message; `None` if there is none: the peer sent an empty one, or wrote elsewhere.
    pub buf: Option<Buf>,
    /// What came.
    pub received: Received,
}

/// The stream of [`Rdma::recv_stream`].
#[must_use = "streams do nothing unless polled"]
pub struct RecvStream {
    // Before the pool.
    posted: VecDeque<Entry>,
    /// Places that are used again.
    idle: Vec<Place>,
    /// The pool was empty.
    alloc: Option<Pin<Box<dyn Future<Output = Buf> + Send + Sync>>>,
    rdma: Rdma,
    pool: BufPool,
    receives: usize,
    failed: bool,
}

type Place = Pin<Box<Option<RdmaRecv<Rdma, Buf>>>>;

struct Entry {
    place: Place,
    buf: Buf,
    outcome: Option<Result<Received, JobError>>,
}

impl Entry {
    fn is_begun(&self) -> bool {
        let posted = (*self.place).as_ref().is_some_and(RdmaRecv::is_posted);
        posted || self.outcome.is_some()
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
        RecvStream {
            posted: VecDeque::with_capacity(receives),
            idle: Vec::with_capacity(receives),
            alloc: None,
            rdma: rdma.clone(),
            pool: pool.clone(),
            receives,
            failed: false,
        }
    }

    /// The next Buf of the pool.
    fn poll_buf(&mut self, cx: &mut Context<'_>) -> Poll<Buf> {
        if self.alloc.is_none() {
            if let Ok(buf) = self.pool.try_alloc() {
                return Poll::Ready(buf);
            }
            let pool = self.pool.clone();
            self.alloc = Some(Box::pin(async move { pool.alloc().await }));
        }
        let alloc = self.alloc.as_mut().expect("it was just made");
        let buf = ready!(alloc.as_mut().poll(cx));
        self.alloc = None;
        Poll::Ready(buf)
    }

    /// Begins as many receives as there shall be, in order.
    fn post(&mut self, cx: &mut Context<'_>) {
        while self.posted.len() < self.receives {
            let Poll::Ready(buf) = self.poll_buf(cx) else {
                break;
            };
            let mut place = self.idle.pop().unwrap_or_else(|| Box::pin(None));
            place.set(Some(self.rdma.recv_owned(buf.clone())));
            self.posted.push_back(Entry {
                place,
                buf,
                outcome: None,
            });
        }
        // Those that are posted wake this task; only the first of them can be over.
        let begun = self.posted.iter().rposition(Entry::is_begun);
        for entry in self.posted.range_mut(begun.map_or(0, |last| last + 1)..) {
            entry.poll(cx);
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
            return Poll::Pending;
        };
        first.poll(cx);
        let Some(outcome) = first.outcome else {
            return Poll::Pending;
        };
        let Some(Entry { mut place, buf, .. }) = this.posted.pop_front() else {
            return Poll::Pending;
        };
        place.set(None);
        this.idle.push(place);
        this.failed = outcome.is_err();
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
