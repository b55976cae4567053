//! Sending: frames with data, and the end of the stream.
//!
//! When a call has accepted bytes, either the device has them, or they are in the frame that was
//! begun ([`super::rest`]). A frame that waits for a slot holds no Buf meanwhile, and a frame that
//! waits for a Buf holds no slot.

use std::cell::Cell;
use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;
use bytes::BufMut;

use super::Core;
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufDataMut};
use crate::reactor::{RdmaState, budget};
use crate::stream::flow::{HEAD, Kind};

/// The maximum number of slices, including the header, of a frame that is sent without a Buf.
const PIECES: usize = 16;

impl Core {
    /// Waits for a credit and, if an acknowledgement of the peer's credits is due, until enough
    /// receives are posted for it.
    fn poll_credit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        while !self.flow.may_send() || self.shall_lend(cx) {
            ready!(self.poll_next_frame(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends as many of these bytes as fit into one frame, or copies them into the frame that was
    /// begun. Returns how many bytes were taken; `None` if the stream was closed.
    pub(in crate::stream) fn poll_write(
        &mut self,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<usize>, JobError>> {
        if self.closed {
            return Poll::Ready(Ok(None));
        }
        self.check()?;
        let all = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let len = all.min(self.flow.payload());
        if len == 0 {
            return Poll::Ready(Ok(Some(0)));
        }
        let sent = match self.poll_begun(cx) {
            Poll::Ready(Ok(())) => self.poll_capacity(cx, |core, cx| core.poll_slices(slices, cx)),
            other => other,
        };
        match sent {
            Poll::Ready(Ok(())) => {
                self.count_sent(len);
                Poll::Ready(Ok(Some(len)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.fail(error))),
            Poll::Pending => match self.fill(slices, all, cx)? {
                0 => Poll::Pending,
                taken => Poll::Ready(Ok(Some(taken))),
            },
        }
    }

    /// Returns the maximum number of bytes of a message.
    pub(in crate::stream) fn max_message_size(&self) -> usize {
        self.flow.payload()
    }

    /// Sends the data of a Buf as a frame. The data must fit into a frame, with headroom for the
    /// header. Returns `None` if the stream was closed. If the send is refused or pending, the Buf
    /// is left as it was.
    pub(in crate::stream) fn poll_send_buf(
        &mut self,
        buf: &Buf,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<()>, JobError>> {
        if self.closed {
            return Poll::Ready(Ok(None));
        }
        self.check()?;
        ready!(self.poll_begun(cx))?;
        // Another handle may have changed the Buf since the caller checked it. That can break only
        // this stream.
        let (from, len) = (buf.headroom().saturating_sub(HEAD), buf.data_len());
        let sent = self.poll_capacity(cx, |core, cx| {
            let sent = core.poll_frame_of(Kind::Data, cx, |head| {
                buf.set_data(from, HEAD + len)?;
                buf.copy_in(0, &head)?;
                Ok(buf.clone())
            });
            match sent {
                Poll::Ready(Ok(())) => core.data_end = core.sends.accepted(),
                _ => _ = buf.set_data(from + HEAD, len),
            }
            sent
        });
        ready!(sent)?;
        self.count_sent(len);
        Poll::Ready(Ok(Some(())))
    }

    /// Waits for a credit and for capacity in the window. Then calls `poll`, which sends a frame,
    /// until it is ready.
    pub(super) fn poll_capacity(
        &mut self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Core, &mut Context<'_>) -> Poll<Result<(), JobError>>,
    ) -> Poll<Result<(), JobError>> {
        ready!(budget::proceed(cx));
        let credit = self.poll_credit(cx);
        if credit.is_pending() {
            self.count_wait();
        }
        ready!(credit)?;
        loop {
            if self.sends.in_flight() < self.send_window {
                match poll(self, cx) {
                    // The frame got a slot before a Buf, and is in no line now. This time it waits
                    // for the Buf first.
                    Poll::Ready(Err(error)) if error.reason() == Reason::PoolEmpty => continue,
                    Poll::Ready(sent) => return Poll::Ready(sent),
                    Poll::Pending => {}
                }
            }
            // Sends of this stream may hold the slot or the Buf, and only this call finds their
            // completions.
            let ended = self.sends.poll_end(cx);
            if ended.is_pending() {
                self.count_wait();
            }
            ready!(ended)?;
            self.check()?;
        }
    }

    /// Sends a frame. `frame` makes it from the header once it can be sent.
    pub(super) fn poll_frame_of(
        &mut self,
        kind: Kind,
        cx: &mut Context<'_>,
        frame: impl Fn([u8; HEAD]) -> Result<Buf, JobError>,
    ) -> Poll<Result<(), JobError>> {
        let mut flow = self.flow;
        let head = flow.head(kind, self.recv.lent());
        ready!(self.sends.poll_send(cx, || frame(head)))?;
        self.flow = flow;
        Poll::Ready(Ok(()))
    }

    /// Sends as many of these bytes as fit into one frame. Returns `PoolEmpty` if it must wait for
    /// a Buf.
    fn poll_slices(
        &mut self,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        if self.try_send_slices(slices)? {
            return Poll::Ready(Ok(()));
        }
        let longest = HEAD + self.flow.payload();
        ready!(self.poll_filled(Kind::Data, cx, |data| {
            for slice in slices {
                let capacity = longest - data.len();
                data.put_slice(&slice[..slice.len().min(capacity)]);
            }
        }))?;
        self.data_end = self.sends.accepted();
        Poll::Ready(Ok(()))
    }

    /// Sends a frame in a Buf, which `fill` fills after the header. Returns `PoolEmpty` if it must
    /// wait for a Buf.
    pub(super) fn poll_filled(
        &mut self,
        kind: Kind,
        cx: &mut Context<'_>,
        fill: impl Fn(&mut BufDataMut<'_>),
    ) -> Poll<Result<(), JobError>> {
        let buf = Cell::new(match self.sends.is_in_line() {
            true => None,
            false => match self.bufs.as_mut().poll(cx.waker()) {
                None => return Poll::Pending,
                buf => buf,
            },
        });
        let pool = self.pool.clone();
        self.poll_frame_of(kind, cx, |head| {
            let frame = buf.take().map_or_else(|| pool.try_alloc(), Ok)?;
            let mut data = frame.data_mut()?;
            data.put_slice(&head);
            fill(&mut data);
            drop(data);
            Ok(frame)
        })
    }

    /// Sends as many of these bytes as fit into one frame, without a Buf. Returns false if the
    /// device cannot do that, or there are too many slices.
    fn try_send_slices(&mut self, slices: &[IoSlice<'_>]) -> Result<bool, JobError> {
        let mut flow = self.flow;
        let head = flow.head(Kind::Data, self.recv.lent());
        let mut pieces = ArrayVec::<&[u8], PIECES>::from_iter([&head[..]]);
        let mut capacity = self.flow.payload();
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            let piece = &slice[..slice.len().min(capacity)];
            capacity -= piece.len();
            if !piece.is_empty() && pieces.try_push(piece).is_err() {
                return Ok(false);
            }
        }
        let sent = self.sends.try_send_bytes(&pieces)?;
        if sent {
            self.bufs.as_mut().stop();
            self.flow = flow;
            self.data_end = self.sends.accepted();
        }
        Ok(sent)
    }

    /// Gives up the turns of a dropped write, in the line for a Buf and in the line for sends.
    fn leave(&mut self) {
        self.bufs.as_mut().stop();
        if !self.owes {
            self.sends.leave();
        }
    }

    /// Waits until the frame that was begun was sent. Returns an error if accepted data was lost.
    /// While sends are in flight, no error is returned yet, since the peer may still receive them.
    pub(in crate::stream) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        ready!(self.poll_begun(cx))?;
        self.leave();
        Poll::Ready(match self.check() {
            Err(error) if self.sends.in_flight() == 0 => self.after(error),
            _ => Ok(()),
        })
    }

    /// Returns the result of a flush or a shutdown after `error`. Once the connection has ended,
    /// all that counts is whether accepted data was lost: without a loss the result is `Ok`, as
    /// with TCP.
    fn after(&self, error: JobError) -> Result<(), JobError> {
        let is_over = error.is_disconnect() || self.rdma.state() != RdmaState::Connected;
        let is_lost = self.lost || self.begun.is_some();
        let has_all = self.counted.bytes_sent == 0 || self.has_arrived(self.data_end);
        match is_over && has_all && !is_lost {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Returns true if the peer is known to have the first `first` frames. Where the sides confirm
    /// ends, only the peer's confirmation says so, of all frames.
    fn has_arrived(&self, first: u32) -> bool {
        self.sends.has_delivered(first) && self.flow.is_confirmed()
    }

    /// Sends the end of the stream, and waits until the peer has received the whole stream. If the
    /// peer has gone, this waits until it is known which data has arrived.
    pub(in crate::stream) fn poll_shutdown(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        if self.closed && self.has_arrived(self.end) {
            return Poll::Ready(Ok(()));
        }
        let Err(error) = ready!(self.poll_end(cx)) else {
            return Poll::Ready(Ok(()));
        };
        while !self.sends.has_delivered(self.data_end) && self.sends.in_flight() > 0 {
            ready!(self.sends.poll_end(cx))?;
        }
        // The confirmation may have arrived before the connection ended.
        while !self.flow.is_confirmed() {
            match self.poll_frame(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Pending if self.rdma.state() != RdmaState::Connected => return Poll::Pending,
                _ => break,
            }
        }
        let ended = self.after(error);
        self.closed |= ended.is_ok();
        Poll::Ready(ended)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.bufs.as_mut().stop();
        self.check()?;
        if !self.closed {
            ready!(self.poll_begun(cx))?;
            self.shall_lend(cx);
            let mut flow = self.flow;
            let head = flow.head(Kind::End, self.recv.lent());
            let end = || {
                self.last.reset_data_len()?;
                self.last.extend_from_slice(&head)?;
                Ok(self.last.clone())
            };
            if let Err(error) = ready!(self.sends.poll_send(cx, end)) {
                return Poll::Ready(Err(self.fail(error)));
            }
            (self.flow, self.closed, self.end) = (flow, true, self.sends.accepted());
        }
        // Frames of credits may be in flight behind the end.
        ready!(self.poll_delivered(self.end, cx))?;
        while !self.flow.is_confirmed() {
            ready!(self.poll_next_frame(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until the peer has received the first `first` frames.
    pub(super) fn poll_delivered(
        &mut self,
        first: u32,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        while !self.sends.has_delivered(first) {
            self.check()?;
            ready!(self.sends.poll_end(cx))?;
            self.sends.in_flight();
        }
        Poll::Ready(Ok(()))
    }
}
