//! The receiving side of [`Rdma::recv_stream`]: receives that the stream has posted.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;

use super::Rdma;
use super::context::Pair;
use super::recv::{Message, RecvRequest};
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufPool, BufWait};
use crate::reactor::{
    DisconnectWait, Receipt, RecvBatch, RecvFuture, SUBMIT_BATCH, Spin, Wanted, abandon,
    poll_posted, settle,
};

/// The state of a stream that posts receives: the posted ones, and the waits for entries and Bufs.
pub(super) struct PostedReceives {
    /// The posted receives, the oldest first, each with its destination.
    posted: VecDeque<(Receipt, Buf)>,
    /// How long the oldest posted receive has been polled.
    spin: Spin,
    /// While no receive is posted: a receive that waits in line for an entry.
    in_line: Pin<Box<Option<Recv>>>,
    /// The wait for Bufs of the pool. It is in line while the pool is empty.
    bufs: Pin<Box<BufWait>>,
    /// While no receive is posted, and the pool is empty: the wait for the end of the connection.
    disconnect_wait: Pin<Box<DisconnectWait<Pair>>>,
    rdma: Rdma,
    receives: usize,
    /// The error with which the next receive was refused. It is returned after the messages of the
    /// receives that were posted before.
    refused: Option<JobError>,
}

type Recv = RecvFuture<RecvRequest<Rdma, Buf>>;

impl PostedReceives {
    pub(super) fn new(rdma: &Rdma, pool: &BufPool, receives: usize) -> PostedReceives {
        let most = rdma.recv_queue_size() as usize;
        let refused = match rdma.recv_pool() {
            Some(_) => Some(JobError::of(Reason::ReceivesFromPool)),
            None if (1..=most).contains(&receives) => None,
            None => Some(JobError::new(
                Reason::ReceivesOutOfRange,
                receives as u64,
                most as u64,
            )),
        };
        PostedReceives {
            posted: VecDeque::with_capacity(receives.min(most)),
            spin: Spin::default(),
            // These boxes are used again and again, so that no message allocates.
            in_line: Box::pin(None),
            bufs: Box::pin(BufWait::new(pool)),
            disconnect_wait: Box::pin(DisconnectWait::new(Pair(rdma.clone()))),
            rdma: rdma.clone(),
            receives,
            refused,
        }
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    /// Keeps `receives` receives posted from the next poll on.
    pub(super) fn keep(&mut self, receives: usize) {
        self.receives = receives;
    }

    /// Posts the receives that are missing, as far as the pool allows.
    pub(super) fn lend(&mut self, cx: &mut Context<'_>) {
        if self.in_line.is_none() {
            self.post(cx);
        }
    }

    /// Returns the number of receives that are posted.
    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Returns true if receives shall be posted before the oldest one is polled: if many are
    /// missing, if the task may be about to sleep, or if a dropped receive may be older than the
    /// oldest one.
    fn shall_post(&self) -> bool {
        let missing = self.receives.saturating_sub(self.posted.len());
        let Some((first, _)) = self.posted.front() else {
            return true;
        };
        let receives = self.rdma.port().receives();
        missing > 0
            && (missing >= (self.receives / 4).clamp(1, SUBMIT_BATCH)
                || receives.any_orphan()
                || !receives.is_over(*first))
    }

    /// Posts receives in order until `self.receives` are posted, no entry or Buf is left, or a
    /// receive is refused. Returns true if the pool is empty.
    fn post(&mut self, cx: &mut Context<'_>) -> bool {
        while self.refused.is_none() && self.posted.len() < self.receives {
            let receives = self.rdma.port().receives();
            // Receives that wait in line for an entry come first, if their tasks are polled.
            let free = match receives.lets_pass() {
                true => receives.available(),
                false => 0,
            };
            let count = free.min(self.receives - self.posted.len());
            if count == 0 {
                // This stream needs no Buf now, and leaves the line for other tasks. Without a
                // posted receive the stream needs its first Buf, and keeps its turn.
                if !self.posted.is_empty() {
                    self.bufs.as_mut().stop();
                }
                return false;
            }
            let mut bufs = ArrayVec::<Buf, SUBMIT_BATCH>::new();
            while bufs.len() < count.min(SUBMIT_BATCH)
                && let Some(buf) = self.bufs.as_mut().poll(cx.waker())
            {
                bufs.push(buf);
            }
            let is_empty = bufs.len() < count.min(SUBMIT_BATCH);
            if !self.post_for(bufs) || is_empty {
                return is_empty;
            }
        }
        false
    }

    /// Posts a receive for each Buf. Returns true if all were posted.
    fn post_for(&mut self, mut bufs: ArrayVec<Buf, SUBMIT_BATCH>) -> bool {
        // Dropped receives are older than those that are posted here.
        while let Some(buf) = bufs.pop() {
            let Some(receipt) = self.rdma.port().receives().adopt() else {
                bufs.push(buf);
                break;
            };
            self.insert(receipt, buf);
        }
        let port = self.rdma.port();
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

    /// Inserts a receive into `posted`, which is ordered by age.
    fn insert(&mut self, receipt: Receipt, buf: Buf) {
        let younger = |(other, _): &(Receipt, Buf)| !other.is_older_than(receipt);
        let at = self.posted.iter().position(younger);
        let at = at.unwrap_or(self.posted.len());
        self.posted.insert(at, (receipt, buf));
    }

    /// Polls the oldest posted receive until it completes.
    fn poll_posted(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message, JobError>> {
        let rdma = &self.rdma;
        let (receipt, dst) = self.posted.front().expect("one is posted");
        let (receipt, receiver) = (*receipt, RecvRequest { rdma, dst });
        let ended = ready!(poll_posted(&receiver, receipt, None, &mut self.spin, cx));
        if let Err(error) = ended
            && error.cannot_wait()
        {
            return Poll::Ready(Err(error));
        }
        // The receive is removed first: `settle` may call the application's tracing subscriber,
        // which may panic.
        let (_, dst) = self.posted.pop_front().expect("one is posted");
        self.spin = Spin::default();
        let outcome = settle(&RecvRequest { rdma, dst: &dst }, receipt, ended);
        Poll::Ready(outcome.map(|received| Message::new(dst, received)))
    }

    /// Waits until a receive is posted: for an entry, or, if the pool is empty, for a Buf and for
    /// the end of the connection.
    fn poll_unposted(
        &mut self,
        is_empty: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        if self.in_line.is_none() {
            if let Some(error) = self.refused.take() {
                return Poll::Ready(Err(error));
            }
            // `post` has polled the empty pool already. A second poll in one turn could pass other
            // tasks that wait for a Buf.
            let buf = match is_empty {
                true => None,
                false => self.bufs.as_mut().poll(cx.waker()),
            };
            let Some(dst) = buf else {
                return self.disconnect_wait.as_mut().poll(cx).map(Err);
            };
            let rdma = self.rdma.clone();
            let recv = RecvFuture::new(RecvRequest { rdma, dst });
            self.in_line.set(Some(recv));
        }
        self.disconnect_wait.as_mut().stop();
        let mut recv = self.in_line.as_mut().as_pin_mut().expect("set above");
        let receipt = ready!(recv.as_mut().poll_receipt(cx));
        let buf = recv.receiver().dst.clone();
        self.in_line.set(None);
        Poll::Ready(receipt.map(|receipt| self.insert(receipt, buf)))
    }

    /// Ends all waits, and abandons the posted receives, whose messages go to later receives.
    pub(super) fn end(&mut self) {
        self.bufs.as_mut().stop();
        self.disconnect_wait.as_mut().stop();
        self.in_line.set(None);
        while let Some((receipt, buf)) = self.posted.pop_front() {
            abandon(self.rdma.port(), receipt);
            drop(buf);
        }
    }

    /// Posts the first receives for a task that has no budget to take a message.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) {
        if self.posted.is_empty() {
            self.lend(cx);
        }
    }

    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message, JobError>> {
        loop {
            let may_post = self.in_line.is_none() && self.shall_post();
            let is_empty = may_post && self.post(cx);
            if !self.posted.is_empty() {
                self.disconnect_wait.as_mut().stop();
                return self.poll_posted(cx);
            }
            if let Err(error) = ready!(self.poll_unposted(is_empty, cx)) {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl Drop for PostedReceives {
    fn drop(&mut self) {
        self.end();
    }
}
