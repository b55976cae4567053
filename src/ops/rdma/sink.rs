//! [`SendSink`]: sends messages in batches. Messages are fed one by one, and submitted together.
//!
//! Invariant: `waiting` and `fed` are in the order in which their messages were fed, and all
//! messages in `fed` were fed after those in `waiting`. Submitted messages need no poll: see
//! [`super::sends`].

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;
use futures::Sink;

use super::Rdma;
use super::request::RdmaRequest;
use super::sends::Ends;
use crate::device::Verb;
use crate::error::{JobError, Reason};
use crate::mem::MaybeSource;
use crate::ops::op::{LeasedJob, Request, prepare};
use crate::reactor::{Prepared, Run, RunWaiter, SUBMIT_BATCH, budget};

/// The sink of [`Rdma::send_sink`].
///
/// ```
/// use futures::{SinkExt, StreamExt};
/// use tokio_doca::{Buf, rdma::SendSink};
/// # use tokio_doca::{BufPool, Device, Mmap, Rdma, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let (a, b) = (Rdma::builder(&device).attach(&workq)?, Rdma::builder(&device).attach(&workq)?);
/// # let (of_a, of_b) = (a.export()?, b.export()?);
/// # tokio::try_join!(a.connect(&of_b), b.connect(&of_a))?;
/// // `a` and `b` are connected.
/// let send = async {
///     let mut sink: SendSink<Buf> = a.send_sink(4);
///     for number in 0..3 {
///         let message = pool.alloc().await;
///         message.extend_from_slice(&[number])?;
///         sink.feed(message).await?;
///     }
///     sink.flush().await                              // the peer has all of them
/// };
/// let mut messages = b.recv_stream(&pool, 4);
/// let (sent, came) = tokio::join!(send, messages.by_ref().take(3).collect::<Vec<_>>());
/// # sent?;
/// assert_eq!(came.len(), 3);
/// # Ok(())
/// # }
/// ```
#[must_use = "sinks do nothing unless polled"]
pub struct SendSink<S: MaybeSource> {
    /// Messages that were fed and not submitted, with their leases.
    fed: ArrayVec<(S, LeasedSend<S>), SUBMIT_BATCH>,
    /// Messages that were fed before those in `fed`, and wait for a slot, each with its waiter in
    /// line.
    waiting: VecDeque<(Queued<S>, Pin<Box<RunWaiter>>)>,
    /// Waiters that were used before. They are used again, so that messages allocate nothing.
    spare: Vec<Pin<Box<RunWaiter>>>,
    /// The waiter for the completions of sends that were submitted.
    waiter: Pin<Box<RunWaiter>>,
    ends: Arc<Ends>,
    /// The number of sends that a device has, or whose completions were not taken from `ends`.
    in_flight: usize,
    /// The error of a message that was refused. It is returned once the sends before that message
    /// have completed.
    refused: Option<JobError>,
    rdma: Rdma,
    /// The maximum number of messages that are fed or on their way.
    depth: usize,
    failed: bool,
}

type Queued<S> = RdmaRequest<Rdma, S, ()>;
type LeasedSend<S> = LeasedJob<Queued<S>>;

impl<S: MaybeSource> SendSink<S> {
    pub(super) fn new(rdma: &Rdma, depth: usize) -> SendSink<S> {
        SendSink {
            fed: ArrayVec::new(),
            waiting: VecDeque::new(),
            spare: Vec::new(),
            waiter: Box::pin(RunWaiter::new(rdma.workq())),
            ends: Ends::new(false),
            in_flight: 0,
            refused: None,
            rdma: rdma.clone(),
            depth,
            failed: false,
        }
    }

    fn check(&self) -> Result<(), JobError> {
        match self.failed {
            true => Err(JobError::of(Reason::SinkFailed)),
            false => Ok(()),
        }
    }

    /// Ends the sink with an error: messages that were fed or wait for a Slot are not sent.
    fn fail(&mut self, error: JobError) -> JobError {
        self.failed = true;
        self.drop_unsent();
        error
    }

    fn drop_unsent(&mut self) {
        self.fed.clear();
        for (_, mut entry) in self.waiting.drain(..) {
            entry.as_mut().leave();
            self.spare.push(entry);
        }
    }

    /// Returns how many messages are submitted together. The number is halved if the device
    /// finishes messages inside the call, and this is the only connection. Such a device saves no
    /// doorbell by a batch, and the peer works on the first half of a burst while this side feeds
    /// the second. 32 messages there and back then take half the time.
    fn batch(&self) -> usize {
        match self.rdma.attachment().is_alone_and_inline() {
            true => SUBMIT_BATCH / 2,
            false => SUBMIT_BATCH,
        }
    }

    /// Returns how many messages were submitted and have not completed, or wait for a Slot.
    fn on_their_way(&self) -> usize {
        self.waiting.len() + self.in_flight
    }

    /// Submits the fed messages, as far as there are Slots, and takes the completions of earlier
    /// ones.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        // If the submission panics, the sink has failed.
        self.failed = true;
        let (mut jobs, mut bytes) = (0, 0);
        if self.refused.is_none() {
            let before = self.in_flight;
            let submitted = self.submit(cx);
            if self.in_flight > before {
                // The sink may not be polled again for a long time, so the reactor must handle the
                // completions.
                RunWaiter::attend(self.rdma.attachment());
            }
            match submitted {
                Ok(finished) => (jobs, bytes) = finished,
                Err(error) => {
                    self.drop_unsent();
                    self.refused = Some(error);
                }
            }
        }
        self.in_flight -= self.ends.take();
        self.failed = false;
        // The messages on their way were fed first, so their error is returned first.
        let refused = self.refused.filter(|_| self.in_flight == 0);
        if let Some(error) = self.ends.error().or(refused) {
            return Poll::Ready(Err(self.fail(error)));
        }
        // The budget is charged last, since it must not delay a submission, whose order is fixed.
        if jobs > 0 {
            ready!(budget::finished_all(cx, jobs, bytes));
        }
        Poll::Ready(Ok(()))
    }

    /// Submits the fed messages in order: inline as far as the device can, and the others with
    /// Slots. Returns how many messages were finished inline, and their bytes.
    fn submit(&mut self, cx: &mut Context<'_>) -> Result<(usize, usize), JobError> {
        let (mut jobs, mut bytes) = (0, 0);
        let at = self.rdma.attachment();
        let run: Arc<dyn Run> = self.ends.clone();
        if self.waiting.is_empty() && !self.fed.is_empty() {
            at.check_open()?;
            let begun = self.fed.iter().map(|(_, begun)| begun);
            let outcomes: ArrayVec<_, SUBMIT_BATCH> = at.finish_inline_all(begun);
            jobs = outcomes.len();
            for ((_, begun), outcome) in self.fed.drain(..jobs).zip(outcomes) {
                bytes += begun.end(&outcome);
                outcome?;
            }
        }
        let fed = self
            .fed
            .drain(..)
            .map(|(src, begun)| (src, Prepared::new(begun)));
        let (mut fed, mut batch): (ArrayVec<S, SUBMIT_BATCH>, ArrayVec<_, SUBMIT_BATCH>) =
            fed.unzip();
        let (launched, refused) = match self.waiting.is_empty() && !batch.is_empty() {
            true => RunWaiter::launch_all::<_, SUBMIT_BATCH>(at, &mut batch, &run),
            false => (0, Ok(())),
        };
        // This returns the Leases of the messages that must wait.
        drop(batch);
        self.in_flight += launched;
        refused?;
        fed.drain(..launched);
        for src in fed {
            let send = RdmaRequest::new(self.rdma.clone(), Verb::Send(None), src, ());
            let new = || Box::pin(RunWaiter::new(self.rdma.workq()));
            let entry = self.spare.pop().unwrap_or_else(new);
            self.waiting.push_back((send, entry));
        }
        // The first waiting message may have its turn. New messages behind it enter the line.
        let mut next = 0;
        while let Some((send, entry)) = self.waiting.get_mut(next) {
            let stays = next > 0 && entry.is_in_line();
            let prepare = || prepare(send);
            if stays
                || entry
                    .as_mut()
                    .poll_launch(cx, at, &run, 0, &prepare)?
                    .is_pending()
            {
                next += 1;
                continue;
            }
            let sent = self.waiting.remove(next);
            self.spare.extend(sent.map(|(_, entry)| entry));
            self.in_flight += 1;
        }
        Ok((jobs, bytes))
    }

    /// Waits until a send that the device has completes. If there is none, waits for the Slot of
    /// the first waiting message, which has registered the task.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        match self.in_flight {
            0 => Poll::Pending,
            _ => {
                let waiter = self.waiter.as_mut();
                let ended = waiter.poll_ends(cx, &mut false, &*self.ends);
                ended.map_err(|error| self.fail(error))
            }
        }
    }
}

// The waiters are pinned inside their boxes, and sources are not pinned.
impl<S: MaybeSource> Unpin for SendSink<S> {}

impl<S: MaybeSource> Sink<S> for SendSink<S> {
    type Error = JobError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let this = &mut *self;
        this.check()?;
        let fed = this.fed.len();
        if fed < this.batch() && fed + this.on_their_way() < this.depth {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(this.advance(cx))?;
            if this.on_their_way() < this.depth && this.refused.is_none() {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_end(cx))?;
        }
    }

    fn start_send(mut self: Pin<&mut Self>, src: S) -> Result<(), JobError> {
        let this = &mut *self;
        this.check()?;
        let request = RdmaRequest::<_, _, _, usize>::new(&this.rdma, Verb::Send(None), src, ());
        match request.begin() {
            Ok(begun) => {
                this.fed.push((request.into_source(), begun));
                Ok(())
            }
            Err(error) => Err(this.fail(error)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let this = &mut *self;
        this.check()?;
        loop {
            ready!(this.advance(cx))?;
            if this.on_their_way() == 0 {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_end(cx))?;
        }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.poll_flush(cx)
    }
}

impl<S: MaybeSource> Drop for SendSink<S> {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            self.waiter.as_mut().abandon();
        }
    }
}

impl<S: MaybeSource> fmt::Debug for SendSink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSink")
            .field("rdma", &self.rdma)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
