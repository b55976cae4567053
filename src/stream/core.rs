//! Both directions of a stream: frames received, frames in flight, and credits.
//!
//! The reader and the writer of a stream may be different tasks, and each of them may take a frame,
//! or notice the completion of a send, for which the other task waits. So each of these events
//! wakes the other task ([`Wakers`]). Both tasks register one waker, which wakes both, so that a
//! registration by one of them serves the other too. Such a registration is removed only when the
//! waker is woken, never because one of the two tasks has got what it waited for.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, ready};

use super::flow::{Flow, HEAD, Kind, reserved};
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

/// The memory and the limits of this side of a stream.
pub(super) struct Parts<'a> {
    pub(super) receives: &'a BufPool,
    pub(super) sends: &'a BufPool,
    /// Two small Bufs: one for frames of credits and the confirmation of the peer's end, and one
    /// for the frame that ends the stream.
    pub(super) control: [Buf; 2],
    /// The number of frames with data that the peer may send before the application reads them
    /// (`recv_window`), and the number of such frames of this side that may be in flight
    /// (`send_window`).
    pub(super) recv_window: usize,
    pub(super) send_window: usize,
    /// True if the sides confirm ends, since the transport does not acknowledge messages.
    pub(super) confirms: bool,
}

/// A frame with data that the stream has received, without the bytes that the application has read.
pub(super) enum Unread {
    Lent(BufData<'static>, Buf),
    /// A copy of a frame that arrived in the last free Buf of a pool that streams share. The Buf
    /// was returned to the pool.
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
    /// The pool of receive memory, if streams share one.
    shared: Option<Pin<Box<BufWait>>>,
    credits: Buf,
    last: Buf,
    /// The frame that writes are filling. It was not sent yet.
    begun: Option<Buf>,
    /// True if data that the stream had accepted was not sent, and never will be.
    lost: bool,
    /// True if this side must send a frame of credits, or the confirmation of the peer's end.
    owes: bool,
    /// Frames that the stream has received and the reader has not taken.
    inbox: VecDeque<Unread>,
    /// True while the reader holds a frame.
    lends: bool,
    wakers: Arc<Wakers>,
    /// The number of receives: posted ones, and ones that hold a frame which was not read.
    receives: usize,
    send_window: usize,
    /// True if each write becomes a frame of its own.
    eager: bool,
    /// The errors that ended receiving (`recv_error`) and sending (`send_error`).
    recv_error: Option<JobError>,
    send_error: Option<JobError>,
    /// The number of frames that the device had accepted when it accepted the last frame with data
    /// (`data_end`), and when it accepted the end of the stream (`end`).
    data_end: u32,
    end: u32,
    /// True once the end of the stream was submitted, or is not needed any more.
    closed: bool,
    /// The counts so far, and what the next frame has waited for most recently.
    counted: StreamStats,
    waits: Option<Wait>,
}

impl Core {
    /// Creates the Core and posts its receives, since a peer that is connected and has credits may
    /// send at once.
    pub(super) fn new(rdma: Rdma, parts: Parts<'_>, wakers: &Arc<Wakers>) -> Core {
        let [credits, last] = parts.control;
        let receives = parts.recv_window + reserved(parts.confirms);
        let frame = parts.sends.element_size();
        let flow = Flow::new(frame, parts.recv_window, parts.confirms);
        let recv = match rdma.recv_pool() {
            Some(_) => rdma.messages(),
            None => rdma.recv_stream(parts.receives, receives),
        };
        let shared = rdma.recv_pool().map(RecvPool::bufs);
        let mut core = Core {
            flow,
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

    /// Returns the part of the connection that the application may use.
    pub(super) fn view(&self) -> StreamRdma {
        StreamRdma(self.rdma.clone())
    }

    /// Posts all receives except those whose frames were not read. Returns how many are posted.
    fn lend(&mut self, cx: &mut Context<'_>) -> usize {
        self.recv.lend(self.receives - self.unread(), cx)
    }

    /// Returns how many frames with data were received, and not read to their end.
    fn unread(&self) -> usize {
        self.inbox.len() + usize::from(self.lends)
    }

    /// Posts receives if the peer waits for the acknowledgement that lets it send another frame of
    /// credits. Returns true if the posted receives do not allow that acknowledgement yet.
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
            // The last Buf stays free for other streams, however long the application leaves this
            // frame unread.
            let is_last = self.shared.as_ref().is_some_and(|pool| pool.is_empty());
            self.inbox.push_back(match is_last {
                true => Unread::Copied(Bytes::copy_from_slice(&data)),
                false => Unread::Lent(data, buf),
            });
        }
        if kind == Kind::End {
            self.rdma().set_ended();
            self.owes |= self.flow.confirms();
        }
        if matches!(kind, Kind::Data | Kind::End) {
            self.wakers.wake_reader();
        }
        if kind == Kind::Confirmation || (!had_credits && self.flow.may_send()) {
            self.wakers.wake_writer();
        }
        // A frame that was not read keeps its Buf, so the receive for that Buf is not posted.
        self.recv.keep(self.receives - self.unread());
        Ok(())
    }

    /// Receives the peer's next frame.
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
                // The reset fails if the WorkQ was shut down, and then the connection has ended as
                // well.
                _ = self.rdma.reset();
            }
            self.wakers.wake_reader();
            self.wakers.wake_writer();
        }
        Poll::Ready(taken)
    }

    /// Returns the error that has ended sending, if there is one.
    fn check(&self) -> Result<(), JobError> {
        self.send_error
            .or_else(|| self.sends.error())
            .map_or(Ok(()), Err)
    }

    /// Ends sending, unless the error only says that the stream cannot wait where it was polled.
    fn fail(&mut self, error: JobError) -> JobError {
        if error.cannot_wait() {
            return self.cannot_wait(error);
        }
        self.send_error = Some(error);
        self.lose_rest();
        self.wakers.wake_writer();
        error
    }

    /// Returns the error, and leaves the stream as it was. The other tasks of the stream may have
    /// lost their turn in a line, so this wakes them, and they enqueue again.
    #[cold]
    fn cannot_wait(&self, error: JobError) -> JobError {
        self.wakers.wake_by_ref();
        error
    }

    /// Sends the peer credits if a frame of credits is due.
    fn grant(&mut self, cx: &mut Context<'_>) {
        // If `owes` is set, the last frame of credits was not sent yet.
        if !self.owes {
            if self.flow.due(self.receives - self.unread()).is_none() {
                return;
            }
            if self.recv_error.is_some() || self.check().is_err() {
                return;
            }
            let lent = self.lend(cx);
            self.owes = self.flow.due(lent).is_some();
        }
        _ = self.poll_owed(cx);
    }

    /// Takes the next frame. While none has arrived, sends the peer credits if they are due.
    fn poll_next_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let taken = self.poll_frame(cx);
        if taken.is_pending() {
            self.grant(cx);
        }
        taken
    }

    /// Waits until there is a frame to read, or the end of the stream. `front` is the frame that
    /// the reader holds.
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

    /// Notes that the reader has returned its frame; the Buf is free then, and is posted again.
    /// With `lends` the reader has only given up its turn in a line, and keeps a frame.
    pub(super) fn popped(&mut self, lends: bool, cx: &mut Context<'_>) {
        self.lends = lends;
        self.leave_bufs();
        self.recv.keep(self.receives - self.unread());
        // The application may not read again for long, so credits are sent now.
        self.grant(cx);
    }

    /// Takes the unread rest of the reader's frame, as the data of its Buf. If the frame was
    /// copied, this waits for another Buf.
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

    /// Gives up the turn of `poll_take_buf` in the line for a Buf.
    fn leave_bufs(&mut self) {
        if let Some(pool) = &mut self.shared {
            pool.as_mut().stop();
        }
    }

    /// Shuts down a stream that the application does not read any more.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.leave_bufs();
        loop {
            self.inbox.clear();
            self.lends = false;
            self.recv.keep(self.receives);
            let closed = self.poll_shutdown(cx);
            let confirms = self.flow.confirms() && closed == Poll::Ready(Ok(()));
            if closed.is_ready() && !confirms {
                return closed;
            }
            // This side also confirms the peer's end, which may be yet to come.
            if confirms && self.flow.is_ended() {
                _ = ready!(self.poll_owed(cx));
                _ = ready!(self.poll_delivered(self.sends.accepted(), cx));
                return closed;
            }
            match self.poll_frame(cx) {
                Poll::Ready(Err(_)) if closed.is_ready() => return closed,
                Poll::Ready(taken) => taken?,
                Poll::Pending => {
                    self.grant(cx);
                    return Poll::Pending;
                }
            }
        }
    }
}
