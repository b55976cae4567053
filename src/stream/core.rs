//! Both directions of a stream: frames that came, frames on their way, and credits.
//!
//! Reader and writer may be different tasks, and either may take a frame or see the end of a send
//! that the other one waits for. So each of these events wakes the other one ([`Wakers`]). They
//! register one waker, which wakes both: a registration of one is the other's as well. So it ends
//! only by that wake, never because one of them had what it waited for.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, ready};

use super::flow::{Flow, HEAD, Kind, RESERVED};
use super::wakers::Wakers;
use crate::device::RecvOpcode;
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufData, BufPool, BufWait};
use crate::ops::{Message, Rdma, RecvPool, RecvStream, Sends};
use bytes::{Buf as _, Bytes};
use futures::Stream;

mod beginning;
mod rest;
mod sending;
mod stats;
mod view;

pub use stats::StreamStats;
use stats::Wait;
pub use view::StreamRdma;

/// What a stream has of the memory and the limits of its side.
pub(super) struct Parts<'a> {
    pub(super) receives: &'a BufPool,
    pub(super) sends: &'a BufPool,
    /// Two small Bufs, for a frame of credits and for the end.
    pub(super) control: [Buf; 2],
    /// Frames with data that the peer may send before they are read, and that may be on their way.
    pub(super) recv_window: usize,
    pub(super) send_window: usize,
}

/// A frame with data that was taken, shortened by what was read.
pub(super) enum Unread {
    Lent(BufData<'static>, Buf),
    /// It came in the last Buf of a pool that streams share, which has gone home.
    Copied(Bytes),
}

impl Unread {
    pub(super) fn data(&self) -> &[u8] {
        match self {
            Unread::Lent(data, _) => data,
            Unread::Copied(data) => data,
        }
    }

    pub(super) fn advance(&mut self, len: usize) {
        match self {
            Unread::Lent(data, _) => data.advance(len),
            Unread::Copied(data) => data.advance(len),
        }
    }
}

pub(super) struct Core {
    rdma: Rdma,
    flow: Flow,
    recv: RecvStream,
    sends: Sends,
    pool: BufPool,
    bufs: Pin<Box<BufWait>>,
    /// The pool that streams share for what they receive.
    shared: Option<Pin<Box<BufWait>>>,
    credits: Buf,
    last: Buf,
    /// The frame that was begun: writes have filled it, and it was not sent.
    begun: Option<Buf>,
    /// It could not be sent, and never will be.
    lost: bool,
    /// A frame of credits is to be sent.
    owes: bool,
    /// Frames that were taken, and that the reader does not have.
    inbox: VecDeque<Unread>,
    /// The reader has one.
    lends: bool,
    wakers: Arc<Wakers>,
    /// Receives that are posted, or hold a frame that was not read.
    receives: usize,
    send_window: usize,
    /// Each write is a frame of its own.
    eager: bool,
    /// Why no frame comes any more, and why none is sent.
    recv_error: Option<JobError>,
    send_error: Option<JobError>,
    /// How many frames were accepted with the last one that has data, and with the end.
    data_end: u32,
    end: u32,
    /// The end of the stream was submitted, or nobody waits for it.
    closed: bool,
    /// What is counted as it happens, and what the next frame has waited for last.
    counted: StreamStats,
    waits: Option<Wait>,
}

impl Core {
    /// Posts the receives: a peer may send as soon as it is connected, and has credits.
    pub(super) fn new(rdma: Rdma, parts: Parts<'_>, wakers: &Arc<Wakers>) -> Core {
        let [credits, last] = parts.control;
        let receives = parts.recv_window + RESERVED;
        let recv = match rdma.recv_pool() {
            Some(_) => rdma.messages(),
            None => rdma.recv_stream(parts.receives, receives),
        };
        let shared = rdma.recv_pool().map(RecvPool::bufs);
        let mut core = Core {
            flow: Flow::new(parts.sends.element_size(), parts.recv_window),
            recv,
            sends: Sends::new(&rdma),
            pool: parts.sends.clone(),
            bufs: Box::pin(BufWait::new(parts.sends)),
            shared: shared.map(|pool| Box::pin(BufWait::new(pool))),
            credits,
            last,
            begun: None,
            lost: false,
            owes: false,
            inbox: VecDeque::with_capacity(parts.recv_window),
            lends: false,
            wakers: Arc::clone(wakers),
            receives,
            send_window: parts.send_window,
            eager: true,
            recv_error: None,
            send_error: None,
            data_end: 0,
            end: 0,
            closed: false,
            counted: StreamStats::default(),
            waits: None,
            rdma,
        };
        let waker = wakers.waker();
        core.recv
            .lend(core.receives, &mut Context::from_waker(&waker));
        core
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    /// Returns what the application may have of it.
    pub(super) fn view(&self) -> StreamRdma {
        StreamRdma(self.rdma.clone())
    }

    /// Keeps room for what was not read, and posts all other receives now. Returns how many.
    fn lend(&mut self, cx: &mut Context<'_>) -> usize {
        self.recv.lend(self.receives - self.unread(), cx)
    }

    /// Returns how many frames with data were taken, and not read to their end.
    fn unread(&self) -> usize {
        self.inbox.len() + usize::from(self.lends)
    }

    /// The same if the peer is to be told that it may send another frame of credits. Returns
    /// whether there is no room for that yet.
    fn shall_lend(&mut self, cx: &mut Context<'_>) -> bool {
        self.flow.shall_lend(self.recv.lent()) && {
            let lent = self.lend(cx);
            self.flow.shall_lend(lent)
        }
    }

    fn take(&mut self, message: Message) -> Result<(), JobError> {
        let buf = message.buf;
        let buf = buf.filter(|_| message.received.opcode == RecvOpcode::Send);
        let buf = buf.ok_or(JobError::of(Reason::PeerNonsense))?;
        let mut data = buf.lend()?;
        let had_credits = self.flow.may_send();
        let kind = self.flow.take(&data)?;
        if kind == Kind::Data {
            data.advance(HEAD);
            self.counted.bytes_received += data.len() as u64;
            // The last one stays for others, however long this frame is not read.
            let is_last = self.shared.as_ref().is_some_and(|pool| pool.is_empty());
            self.inbox.push_back(match is_last {
                true => Unread::Copied(Bytes::copy_from_slice(&data)),
                false => Unread::Lent(data, buf),
            });
        }
        if kind == Kind::End {
            self.rdma().set_ended();
        }
        if kind != Kind::Credits {
            self.wakers.wake_reader();
        }
        if !had_credits && self.flow.may_send() {
            self.wakers.wake_writer();
        }
        // Frames that are not read have their room.
        self.recv.keep(self.receives - self.unread());
        Ok(())
    }

    /// Takes the next frame.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        if let Some(error) = self.recv_error {
            return Poll::Ready(Err(error));
        }
        let taken = match ready!(Pin::new(&mut self.recv).poll_next(cx)) {
            Some(Ok(message)) => self.take(message),
            Some(Err(error)) => Err(error),
            None => Err(JobError::of(Reason::PeerNonsense)),
        };
        if let Err(error) = taken {
            if error.cannot_wait() {
                return Poll::Ready(Err(self.cannot_wait(error)));
            }
            self.recv_error = Some(error);
            if error.reason() == Reason::PeerNonsense {
                self.fail(error);
                // It fails if the WorkQ was shut down, and then there is no connection any more.
                _ = self.rdma.reset();
            }
            self.wakers.wake_reader();
            self.wakers.wake_writer();
        }
        Poll::Ready(taken)
    }

    /// Why nothing can be sent any more, if so.
    fn check(&self) -> Result<(), JobError> {
        self.send_error
            .or_else(|| self.sends.error())
            .map_or(Ok(()), Err)
    }

    /// Ends what is sent, unless the error is one of where the stream was polled.
    fn fail(&mut self, error: JobError) -> JobError {
        if error.cannot_wait() {
            return self.cannot_wait(error);
        }
        self.send_error = Some(error);
        self.lose_rest();
        self.wakers.wake_writer();
        error
    }

    /// The stream stays as it was. What its other tasks wait for may have lost its place in line:
    /// they ask anew.
    #[cold]
    fn cannot_wait(&self, error: JobError) -> JobError {
        self.wakers.wake_by_ref();
        error
    }

    /// Gives the peer credits, if it is time.
    fn grant(&mut self, cx: &mut Context<'_>) {
        // The last frame of credits may not be sent yet.
        if !self.owes {
            if !self.flow.shall_grant(self.receives - self.unread()) {
                return;
            }
            if self.recv_error.is_some() || self.check().is_err() {
                return;
            }
            let lent = self.lend(cx);
            self.owes = self.flow.shall_grant(lent);
        }
        _ = self.poll_owed(cx);
    }

    /// Takes the next frame. While it waits for one, it gives the peer credits.
    fn poll_next_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let taken = self.poll_frame(cx);
        if taken.is_pending() {
            self.grant(cx);
        }
        taken
    }

    /// Waits until there is a frame to read, or the end of the stream. `front`: what the reader
    /// has.
    pub(super) fn poll_fill(
        &mut self,
        front: &mut Option<Unread>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        while front.is_none() {
            if let Some(next) = self.inbox.pop_front() {
                (*front, self.lends) = (Some(next), true);
            } else if self.flow.is_ended() {
                break;
            } else {
                ready!(self.poll_next_frame(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The reader has given its frame back, whose Buf is home then, and is lent again. `lends`: it
    /// has given up its place in line alone.
    pub(super) fn popped(&mut self, lends: bool, cx: &mut Context<'_>) {
        self.lends = lends;
        self.leave_bufs();
        self.recv.keep(self.receives - self.unread());
        // The application may not read again for long.
        self.grant(cx);
    }

    /// Takes out what is left of the frame that the reader has, as the data of its Buf. One that
    /// was copied waits for another Buf.
    pub(super) fn poll_take_buf(
        &mut self,
        front: &mut Option<Unread>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Buf>, JobError>> {
        let mut copied = None;
        if let (Some(Unread::Copied(data)), Some(pool)) = (&*front, &mut self.shared) {
            let Some(buf) = pool.as_mut().poll(cx.waker()) else {
                return Poll::Pending;
            };
            buf.set_data(HEAD, 0)?;
            buf.extend_from_slice(data)?;
            copied = Some(buf);
        }
        let Some(unread) = front.take() else {
            return Poll::Ready(Ok(None));
        };
        self.popped(false, cx);
        if let Unread::Lent(data, buf) = unread {
            let len = data.len();
            drop(data);
            buf.set_data(buf.headroom() + buf.data_len() - len, len)?;
            return Poll::Ready(Ok(Some(buf)));
        }
        Poll::Ready(Ok(copied))
    }

    /// Gives up the turn of a `poll_take_buf`.
    fn leave_bufs(&mut self) {
        if let Some(pool) = &mut self.shared {
            pool.as_mut().stop();
        }
    }

    /// Shuts a stream down that nobody reads any more.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.leave_bufs();
        loop {
            self.inbox.clear();
            self.lends = false;
            self.recv.keep(self.receives);
            if let Poll::Ready(closed) = self.poll_shutdown(cx) {
                return Poll::Ready(closed);
            }
            match self.poll_frame(cx) {
                Poll::Ready(taken) => taken?,
                Poll::Pending => {
                    self.grant(cx);
                    return Poll::Pending;
                }
            }
        }
    }
}
