//! How a stream begins: its memory, its first credits, and the first frames.

use std::task::{Context, Poll, ready};

use bytes::BufMut;

use super::Core;
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufDataMut};
use crate::stream::flow::{HEAD, Kind};

impl Core {
    /// Returns true if enough receives are posted to give the peer credits.
    pub(in crate::stream) fn has_receives(&self) -> bool {
        self.flow.due(self.recv.lent()).is_some()
    }

    /// Sends this side's first frame, which gives the peer its first credits, and waits until the
    /// device has accepted it. No other frame may be sent before it.
    pub(in crate::stream) fn poll_introduce(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        self.grant(cx);
        ready!(self.poll_owed(cx))?;
        Poll::Ready(self.check())
    }

    /// Waits for the peer's first frame. A peer that sends another kind of frame first breaks the
    /// protocol.
    pub(in crate::stream) fn poll_introduction(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        ready!(self.poll_frame(cx))?;
        let is_credits = self.flow.may_send() && self.inbox.is_empty() && !self.flow.is_ended();
        match is_credits {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(JobError::of(Reason::PeerNonsense))),
        }
    }

    /// Gives up the connection, and returns the two Bufs for control frames, for another
    /// connection.
    pub(in crate::stream) fn into_control(self) -> [Buf; 2] {
        [self.credits, self.last]
    }

    /// Returns true if this side's first frame over a network waits only for memory or for a slot.
    pub(in crate::stream) fn is_held_up(&self, dials: bool) -> bool {
        self.sends.accepted() == 0 && (dials || self.flow.may_send())
    }

    /// Waits until enough receives are posted to give the peer credits.
    pub(in crate::stream) fn poll_receives(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.lend(cx);
        match self.has_receives() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Returns the first credits for the peer, and counts them as granted.
    pub(in crate::stream) fn first_credits(&mut self) -> u16 {
        let lent = self.recv.lent();
        self.flow.grant(lent)
    }

    /// Sets the frame length and the first credits, which the peer has sent.
    pub(in crate::stream) fn begin(&mut self, frame: usize, credits: u16) -> Result<(), JobError> {
        self.flow.limit(frame);
        self.flow.add(credits)
    }

    /// Notes that the sides are connected. If the peer allows one-sided operations, writes do not
    /// share a frame, since operations and writes must arrive in order.
    pub(in crate::stream) fn connected(&mut self) {
        self.eager = !self.rdma().peer_permissions().is_empty();
    }

    /// Sends this side's first frame over a network, which has `len` bytes and gives the peer its
    /// first credits. Waits until the peer has received it.
    pub(in crate::stream) fn poll_test(
        &mut self,
        len: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        if self.sends.accepted() == 0 {
            // The Buf of the peer's first frame may not be posted again yet.
            ready!(self.poll_receives(cx));
            let len = (len - HEAD).min(self.flow.payload());
            let fill = |data: &mut BufDataMut<'_>| data.put_bytes(0, len);
            while let Err(error) = ready!(self.poll_filled(Kind::Credits, cx, fill)) {
                // The frame got a slot before a Buf. This time it waits for the Buf first.
                if error.reason() != Reason::PoolEmpty {
                    return Poll::Ready(Err(error));
                }
            }
        }
        let all = self.sends.accepted();
        self.poll_delivered(all, cx)
    }
}
