//! Both directions of a stream: frames that came, frames on their way, and credits.
//!
//! Reader and writer may be different tasks, and either may take a frame or see the end of a send
//! that the other one waits for. So each of these events wakes the other one ([`Wakers`]). They
//! register one waker, which wakes both: a registration of one is the other's as well. So it ends
//! only by that wake, never because one of them had what it waited for.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures::Stream;
use tokio::runtime::Handle;

use super::flow::{Flow, HEAD, Kind, RESERVED};
use super::wakers::Wakers;
use crate::device::RecvOpcode;
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufData, BufPool, BufWait};
use crate::ops::{Message, Rdma, RecvPool, RecvStream, Sends};

mod beginning;
mod late;
mod sending;
mod stats;
mod view;

use late::Late;
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
    pub(super) runtime: Handle,
}

/// A frame with data that was taken, shortened by what was read.
enum Unread {
    Lent(BufData<'static>, Buf),
    /// It came in the last Buf of a pool that streams share, which has gone home.
    Copied(Bytes),
}

impl Unread {
    fn data(&self) -> &[u8] {
        match self {
            Unread::Lent(data, _) => data,
            Unread::Copied(data) => data,
        }
    }

    fn advance(&mut self, len: usize) {
        match self {
            Unread::Lent(data, _) => data.advance(len),
            Unread::Copied(data) => data.advance(len),
        }
    }
}

pub(super) struct Core {
    rdma: StreamRdma,
    flow: Flow,
    recv: RecvStream,
    sends: Sends,
    pool: BufPool,
    bufs: Pin<Box<BufWait>>,
    /// The pool that streams share for what they receive.
    shared: Option<Pin<Box<BufWait>>>,
    credits: Buf,
    last: Buf,
    /// A frame of credits that could not be sent at once.
    late: Option<Late>,
    runtime: Handle,
    /// Frames that were taken and not read.
    inbox: VecDeque<Unread>,
    wakers: Arc<Wakers>,
    /// Receives that are posted, or hold a frame that was not read.
    receives: usize,
    send_window: usize,
    /// The longest frame that both sides take.
    frame: usize,
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
            flow: Flow::new(parts.recv_window),
            recv,
            sends: Sends::new(&rdma),
            pool: parts.sends.clone(),
            bufs: Box::pin(BufWait::new(parts.sends)),
            shared: shared.map(|pool| Box::pin(BufWait::new(pool))),
            credits,
            last,
            late: None,
            runtime: parts.runtime,
            inbox: VecDeque::with_capacity(parts.recv_window),
            wakers: Arc::clone(wakers),
            receives,
            send_window: parts.send_window,
            frame: parts.sends.element_size(),
            recv_error: None,
            send_error: None,
            data_end: 0,
            end: 0,
            closed: false,
            counted: StreamStats::default(),
            waits: None,
            rdma: StreamRdma(rdma),
        };
        let waker = wakers.waker();
        core.recv
            .lend(core.receives, &mut Context::from_waker(&waker));
        core
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.rdma.0
    }

    /// What the application may have of it.
    pub(super) fn view(&self) -> &StreamRdma {
        &self.rdma
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
                _ = self.rdma.0.reset();
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

    fn fail(&mut self, error: JobError) -> JobError {
        self.send_error = Some(error);
        self.wakers.wake_writer();
        error
    }

    /// Gives the peer credits, if it is time.
    fn grant(&mut self, cx: &mut Context<'_>) {
        let most = self.receives - self.inbox.len();
        // The last one may not be back yet.
        if self.is_late(cx) || !self.flow.shall_grant(most) {
            return;
        }
        if self.recv_error.is_some() || self.check().is_err() {
            return;
        }
        let lent = self.lend(cx);
        if self.flow.shall_grant(lent) {
            let head = self.flow.head(Kind::Credits, lent);
            self.send_credits(head, cx);
        }
    }

    fn send_credits(&mut self, head: [u8; HEAD], cx: &mut Context<'_>) {
        // The peer may know of the last frame before this side knows of its end.
        if self.credits.reset_data_len().is_err() {
            return self.grant_late(head, cx);
        }
        let filled = self.credits.extend_from_slice(&head);
        match filled.and_then(|()| self.sends.try_send(&self.credits)) {
            Ok(true) => {}
            Ok(false) => self.grant_late(head, cx),
            // It shows in the next write, and does not keep back what came.
            Err(error) => _ = self.fail(error),
        }
    }

    /// Whether a frame of credits is not sent yet. It is sent again if its task has failed, or was
    /// dropped with its runtime: the peer may wait for it, and acknowledges no other one.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(late) = &mut self.late else {
            return false;
        };
        let Poll::Ready(sent) = late.poll(cx) else {
            return true;
        };
        let head = late.head;
        self.late = None;
        if !sent {
            self.send_credits(head, cx);
        }
        self.late.is_some()
    }

    /// Has the frame of credits sent by a task of its own, once the last one has ended and there is
    /// a Slot.
    #[cold]
    fn grant_late(&mut self, head: [u8; HEAD], cx: &mut Context<'_>) {
        // The runtime that the stream was made on may be driven by nobody any more.
        let runtime = Handle::try_current().unwrap_or_else(|_| self.runtime.clone());
        self.late = Some(Late::new(&self.rdma.0, &self.credits, head, runtime));
        // The next poll waits for the end of that task.
        cx.waker().wake_by_ref();
    }

    /// Takes the next frame. While it waits for one, it gives the peer credits.
    fn poll_next_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let taken = self.poll_frame(cx);
        if taken.is_pending() {
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
        self.inbox.front().map_or(&[], Unread::data)
    }

    pub(super) fn consume(&mut self, len: usize, cx: &mut Context<'_>) {
        let Some(unread) = self.inbox.front_mut() else {
            return;
        };
        unread.advance(len);
        if unread.data().is_empty() {
            // Its Buf is home then, and is lent again.
            self.inbox.pop_front();
            self.popped(cx);
        }
    }

    /// A frame was taken out of the inbox.
    fn popped(&mut self, cx: &mut Context<'_>) {
        self.leave_bufs();
        self.recv.keep(self.receives - self.inbox.len());
        // The application may not read again for long.
        self.grant(cx);
    }

    /// Takes out what is left of the oldest frame, as the data of its Buf. One that was copied
    /// waits for another Buf.
    pub(super) fn poll_take_buf(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Buf>, JobError>> {
        let mut copied = None;
        if let (Some(Unread::Copied(data)), Some(pool)) = (self.inbox.front(), &mut self.shared) {
            let Some(buf) = pool.as_mut().poll(cx.waker()) else {
                return Poll::Pending;
            };
            buf.set_data(HEAD, 0)?;
            buf.extend_from_slice(data)?;
            copied = Some(buf);
        }
        let unread = self.inbox.pop_front();
        self.popped(cx);
        if let Some(Unread::Lent(data, buf)) = unread {
            let len = data.len();
            drop(data);
            buf.set_data(buf.headroom() + buf.data_len() - len, len)?;
            return Poll::Ready(Ok(Some(buf)));
        }
        Poll::Ready(Ok(copied))
    }

    /// Gives up the turn of a `poll_take_buf` that was dropped.
    pub(super) fn leave_bufs(&mut self) {
        if let Some(pool) = &mut self.shared {
            pool.as_mut().stop();
        }
    }

    /// Shuts a stream down that nobody reads any more.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.leave_bufs();
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
