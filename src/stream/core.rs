//! Both directions of a stream: frames that came, frames on their way, and credits.
//!
//! Reader and writer may be different tasks, and either may take a frame or see the end of a send
//! that the other one waits for. So each of these events wakes the other one ([`Wakers`]).

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _};
use futures::{Sink, Stream};

use super::flow::{Flow, HEAD, Kind, RESERVED};
use super::wakers::Wakers;
use crate::device::RecvOpcode;
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufData, BufPool, BufWait};
use crate::ops::{Message, Rdma, RecvStream, SendSink};

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

pub(super) struct Core {
    rdma: Rdma,
    flow: Flow,
    recv: RecvStream,
    sink: SendSink<Buf>,
    bufs: Pin<Box<BufWait>>,
    credits: Buf,
    last: Buf,
    /// Frames that were taken and not read. Their payload is what is left of them.
    inbox: VecDeque<BufData<'static>>,
    wakers: Arc<Wakers>,
    /// Receives that are posted, or hold a frame that was not read.
    receives: usize,
    send_window: usize,
    /// The longest frame that both sides take.
    frame: usize,
    /// Why no frame comes any more, and why none is sent.
    recv_error: Option<JobError>,
    send_error: Option<JobError>,
    /// The end of the stream was submitted, and whether the peer had everything before it then.
    closed: bool,
    only_end: bool,
}

impl Core {
    /// Posts the receives: a peer may send as soon as it is connected, and has credits.
    pub(super) fn new(rdma: Rdma, parts: Parts<'_>, wakers: &Arc<Wakers>) -> Core {
        let [credits, last] = parts.control;
        let receives = parts.recv_window + RESERVED;
        let mut core = Core {
            flow: Flow::new(parts.recv_window),
            recv: rdma.recv_stream(parts.receives, receives),
            sink: rdma.send_sink(parts.send_window + 2),
            bufs: Box::pin(BufWait::new(parts.sends)),
            credits,
            last,
            inbox: VecDeque::with_capacity(parts.recv_window),
            wakers: Arc::clone(wakers),
            receives,
            send_window: parts.send_window,
            frame: parts.sends.element_size(),
            recv_error: None,
            send_error: None,
            closed: false,
            only_end: false,
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

    /// Returns the first credits of the peer; none if there is no memory for another stream.
    pub(super) fn first_credits(&mut self) -> u16 {
        let lent = self.recv.lent();
        self.flow.grant(lent)
    }

    /// Begins, with what the peer has said.
    pub(super) fn begin(&mut self, frame: usize, credits: u16) -> Result<(), JobError> {
        self.frame = self.frame.min(frame);
        self.flow.add(credits)
    }

    /// Keeps room for what was not read, and posts all other receives now. Returns how many.
    fn lend(&mut self, cx: &mut Context<'_>) -> usize {
        self.recv.lend(self.receives - self.inbox.len(), cx)
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
        let mut data = buf.ok_or(JobError::of(Reason::PeerNonsense))?.into_data()?;
        let had_credits = self.flow.may_send();
        let kind = self.flow.take(&data)?;
        if kind == Kind::Data {
            data.advance(HEAD);
            self.inbox.push_back(data);
        }
        if kind != Kind::Credits {
            self.wakers.wake_reader();
        }
        if !had_credits && self.flow.may_send() {
            self.wakers.wake_writer();
        }
        // Frames that are not read have their room.
        self.recv.keep(self.receives - self.inbox.len());
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
            self.recv_error = Some(error);
            if error.reason() == Reason::PeerNonsense {
                self.send_error = Some(error);
                // It fails if the WorkQ was shut down, and then there is no connection any more.
                _ = self.rdma.reset();
            }
            self.wakers.wake_reader();
            self.wakers.wake_writer();
        }
        Poll::Ready(taken)
    }

    /// Goes on with what is on its way.
    fn advance(&mut self, cx: &mut Context<'_>) {
        let before = self.sink.len();
        if before == 0 || self.send_error.is_some() {
            return;
        }
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.sink).poll_flush(cx) {
            self.send_error = Some(error);
        }
        if self.sink.len() < before || self.send_error.is_some() {
            self.wakers.wake_writer();
        }
    }

    fn send(&mut self, frame: Buf, cx: &mut Context<'_>) -> Result<(), JobError> {
        let mut sink = Pin::new(&mut self.sink);
        let sent = sink.as_mut().start_send(frame);
        let sent = sent.and_then(|()| match sink.poll_flush(cx) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Ok(()),
        });
        if let Err(error) = sent {
            self.send_error = Some(error);
            self.wakers.wake_writer();
        }
        sent
    }

    /// Gives the peer credits, if it is time.
    fn grant(&mut self, cx: &mut Context<'_>) {
        let most = self.receives - self.inbox.len();
        if self.send_error.is_some() || self.recv_error.is_some() || !self.flow.shall_grant(most) {
            return;
        }
        let lent = self.lend(cx);
        self.advance(cx);
        // The last one may not be back yet.
        if self.send_error.is_none()
            && self.flow.shall_grant(lent)
            && self.credits.reset_data_len().is_ok()
        {
            let head = self.flow.head(Kind::Credits, lent);
            let frame = self.credits.clone();
            // A failure shows in the next write, and does not keep back what came.
            if frame.extend_from_slice(&head).is_ok() {
                _ = self.send(frame, cx);
            }
        }
    }

    /// Takes the next frame. While it waits for one, it goes on with what is on its way, and gives
    /// the peer credits.
    fn poll_next_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let taken = self.poll_frame(cx);
        if taken.is_pending() {
            self.advance(cx);
            self.grant(cx);
        }
        taken
    }

    /// Waits until there is something to read, or the end of the stream.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        while self.inbox.is_empty() && !self.flow.is_ended() {
            ready!(self.poll_next_frame(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// The bytes that can be read at once.
    pub(super) fn unread(&self) -> &[u8] {
        self.inbox.front().map_or(&[], |data| data)
    }

    pub(super) fn consume(&mut self, len: usize, cx: &mut Context<'_>) {
        let Some(data) = self.inbox.front_mut() else {
            return;
        };
        data.advance(len);
        if data.is_empty() {
            self.inbox.pop_front();
            self.recv.keep(self.receives - self.inbox.len());
            // The application may not read again for long.
            self.grant(cx);
        }
    }

    /// Waits for a credit, and for room to acknowledge the peer's.
    fn poll_credit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        while !self.flow.may_send() || self.shall_lend(cx) {
            ready!(self.poll_next_frame(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn check(&self) -> Result<(), JobError> {
        self.send_error.map_or(Ok(()), Err)
    }

    /// Sends a frame of what it takes of these bytes. `None` if the stream was closed.
    pub(super) fn poll_write(
        &mut self,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<usize>, JobError>> {
        if self.closed {
            return Poll::Ready(Ok(None));
        }
        self.advance(cx);
        self.check()?;
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(Some(0)));
        }
        ready!(self.poll_credit(cx))?;
        if self.sink.len() >= self.send_window {
            return Poll::Pending;
        }
        let Some(frame) = self.bufs.as_mut().poll(cx.waker()) else {
            return Poll::Pending;
        };
        let mut data = frame.data_mut()?;
        let head = self.flow.head(Kind::Data, self.recv.lent());
        data.put_slice(&head);
        for slice in slices {
            let room = self.frame - data.len();
            data.put_slice(&slice[..slice.len().min(room)]);
        }
        let len = data.len() - HEAD;
        drop(data);
        self.send(frame, cx)?;
        Poll::Ready(Ok(Some(len)))
    }

    /// Waits until the device has what was written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        // A write that was dropped waits no more.
        self.bufs.as_mut().stop();
        self.advance(cx);
        self.check()?;
        match self.sink.is_submitted() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Sends the end of the stream, and waits until the peer has all of it. A peer that has ended
    /// its own stream and gone needs no end, if it has all else: TCP reports no error then either.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let closed = ready!(self.poll_end(cx));
        let is_needed = !self.only_end || !self.flow.is_ended();
        Poll::Ready(closed.or_else(|error| if is_needed { Err(error) } else { Ok(()) }))
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.bufs.as_mut().stop();
        self.advance(cx);
        self.check()?;
        if !self.closed {
            self.shall_lend(cx);
            let head = self.flow.head(Kind::End, self.recv.lent());
            self.last.extend_from_slice(&head)?;
            self.closed = true;
            self.only_end = self.sink.len() == 0;
            self.send(self.last.clone(), cx)?;
            self.advance(cx);
            self.check()?;
        }
        // Frames of credits may be on their way behind it.
        match self.last.reset_data_len() {
            Ok(()) => Poll::Ready(Ok(())),
            Err(_) => Poll::Pending,
        }
    }

    /// The same, of a stream that nobody reads any more.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        loop {
            self.inbox.clear();
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
