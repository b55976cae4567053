//! Messages as they come, into Bufs of a pool.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;
use futures::Stream;
use futures::stream::{FusedStream, unfold};

use super::Rdma;
use super::recv::{RdmaRecv, RecvRequest};
use crate::device::RecvOpcode;
use crate::error::JobError;
use crate::mem::{Buf, BufPool};
use crate::reactor::{
    BATCH, DisconnectWait, EndpointPort, Receipt, Received, RecvBatch, Spin, Wanted, abandon,
    poll_posted, settle,
};

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

impl Message {
    fn new(buf: Buf, received: Received) -> Message {
        let empty = received.len == 0 || received.opcode == RecvOpcode::WriteImm;
        Message {
            buf: (!empty).then_some(buf),
            received,
        }
    }
}

/// The stream of [`Rdma::recv_stream`].
#[must_use = "streams do nothing unless polled"]
pub struct RecvStream {
    /// Receives that are posted, the oldest first, each with the Buf that it is for.
    posted: VecDeque<(Receipt, Buf)>,
    /// How long the first of them was polled for.
    spin: Spin,
    /// While none is posted: a receive that waits in line for a place, and its Buf.
    in_line: Pin<Box<Option<RdmaRecv<Rdma, Buf>>>>,
    in_line_buf: Option<Buf>,
    pool: BufPool,
    /// What the pool has, as it has it; polled while the pool is empty.
    bufs: Pin<Box<dyn Stream<Item = Buf> + Send + Sync>>,
    waits_for_buf: bool,
    /// What it waits for while it has no receive posted.
    disconnect_wait: Pin<Box<DisconnectWait<Pair>>>,
    rdma: Rdma,
    receives: usize,
    /// Why the next receive could not be posted.
    refused: Option<JobError>,
    failed: bool,
}

/// A context, as its connection.
struct Pair(Rdma);

impl AsRef<EndpointPort> for Pair {
    fn as_ref(&self) -> &EndpointPort {
        self.0.port()
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
            spin: Spin::default(),
            // Once for all: no message allocates.
            in_line: Box::pin(None),
            in_line_buf: None,
            pool: pool.clone(),
            bufs: Box::pin(bufs),
            waits_for_buf: false,
            disconnect_wait: Box::pin(DisconnectWait::new(Pair(rdma.clone()))),
            rdma: rdma.clone(),
            receives,
            refused: None,
            failed: false,
        }
    }

    /// The next Buf. If the pool has none, the task is woken when it has.
    fn buf(&mut self, cx: &mut Context<'_>) -> Option<Buf> {
        if !self.waits_for_buf
            && let Some(buf) = self.pool.try_alloc_in_turn()
        {
            return Some(buf);
        }
        let polled = self.bufs.as_mut().poll_next(cx);
        self.waits_for_buf = polled.is_pending();
        match polled {
            Poll::Ready(buf) => buf,
            Poll::Pending => None,
        }
    }

    /// Whether receives are to be posted before the first is looked at: if many are missing, if
    /// the task may be about to sleep, or if a dropped receive may be older than the first.
    fn shall_post(&self) -> bool {
        let missing = self.receives - self.posted.len();
        let Some((first, _)) = self.posted.front() else {
            return true;
        };
        let receives = self.rdma.port().receives();
        missing > 0
            && (missing >= (self.receives / 4).clamp(1, BATCH)
                || receives.any_orphan()
                || !receives.is_over(*first))
    }

    /// Posts as many receives as there shall be, in order. Returns whether a Buf is waited for.
    fn post(&mut self, cx: &mut Context<'_>) -> bool {
        while self.refused.is_none() && self.posted.len() < self.receives {
            let receives = self.rdma.port().receives();
            // Others that stand in line come first.
            let places = match receives.line.is_empty() {
                true => receives.available(),
                false => 0,
            };
            let count = places.min(self.receives - self.posted.len()).min(BATCH);
            let mut bufs = ArrayVec::new();
            while bufs.len() < count
                && let Some(buf) = self.buf(cx)
            {
                bufs.push(buf);
            }
            let lacks_buf = bufs.len() < count;
            if count == 0 || !self.post_for(bufs) || lacks_buf {
                return lacks_buf;
            }
        }
        false
    }

    /// Posts a receive for each Buf. Returns whether all found a place.
    fn post_for(&mut self, mut bufs: ArrayVec<Buf, BATCH>) -> bool {
        let port = self.rdma.port();
        // Dropped receives are older than those that are posted here.
        while let Some(buf) = bufs.pop() {
            let Some(receipt) = port.receives().adopt() else {
                bufs.push(buf);
                break;
            };
            let younger = |(other, _): &(Receipt, Buf)| !other.is_older_than(receipt);
            let at = self.posted.iter().position(younger);
            let at = at.unwrap_or(self.posted.len());
            self.posted.insert(at, (receipt, buf));
        }
        let (mut batch, mut receipts) = (RecvBatch::new(), ArrayVec::new());
        let rdma = &self.rdma;
        let leased = bufs
            .iter()
            .try_for_each(|dst| batch.add(&RecvRequest { rdma, dst }));
        let posted = batch.post(port, &mut receipts);
        let all = receipts.len() == bufs.len();
        self.posted.extend(receipts.drain(..).zip(bufs.drain(..)));
        self.refused = posted.and(leased).err();
        all
    }

    /// Waits for the first receive that is posted.
    fn poll_posted(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message, JobError>> {
        let rdma = &self.rdma;
        let (receipt, dst) = self.posted.front().expect("one is posted");
        let (receipt, receiver) = (*receipt, RecvRequest { rdma, dst });
        let ended = ready!(poll_posted(&receiver, receipt, None, &mut self.spin, cx));
        // First: what follows may run code of the user's, which may panic.
        let (_, dst) = self.posted.pop_front().expect("one is posted");
        self.spin = Spin::default();
        let outcome = settle(&RecvRequest { rdma, dst: &dst }, receipt, ended);
        Poll::Ready(outcome.map(|received| Message::new(dst, received)))
    }

    /// Waits while no receive is posted: for a Buf, for a place, or for the end of the connection.
    fn poll_unposted(
        &mut self,
        lacks_buf: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Message, JobError>> {
        if let Some(error) = self.refused.take() {
            return Poll::Ready(Err(error));
        }
        if self.in_line.is_none() {
            // Who is polled twice in one turn passes others that wait for a Buf.
            let buf = match lacks_buf {
                true => None,
                false => self.buf(cx),
            };
            let Some(buf) = buf else {
                return self.disconnect_wait.as_mut().poll(cx).map(Err);
            };
            self.disconnect_wait.as_mut().stop();
            let recv = self.rdma.recv(buf.clone()).owned();
            self.in_line.set(Some(recv));
            self.in_line_buf = Some(buf);
        }
        let recv = self.in_line.as_mut().as_pin_mut().expect("set above");
        let outcome = ready!(recv.poll(cx));
        self.in_line.set(None);
        let buf = self.in_line_buf.take().expect("set with the receive");
        Poll::Ready(outcome.map(|received| Message::new(buf, received)))
    }

    /// What comes for the receives is for others.
    fn abandon_all(&mut self) {
        self.in_line.set(None);
        while let Some((receipt, buf)) = self.posted.pop_front() {
            abandon(self.rdma.port(), receipt);
            drop(buf);
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
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let lacks_buf = this.in_line.is_none() && this.shall_post() && this.post(cx);
        let outcome = if this.posted.is_empty() {
            ready!(this.poll_unposted(lacks_buf, cx))
        } else {
            this.disconnect_wait.as_mut().stop();
            ready!(this.poll_posted(cx))
        };
        budget.made_progress();
        if outcome.is_err() {
            this.failed = true;
            this.abandon_all();
        }
        Poll::Ready(Some(outcome))
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.abandon_all();
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
