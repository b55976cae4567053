//! How a stream begins: its memory, its first credits, and the first frames.

use std::task::{Context, Poll, ready};

use bytes::BufMut;

use super::Core;
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufDataMut};
use crate::stream::flow::{HEAD, Kind};

impl Core {
    /// Returns whether there is memory for what the peer sends.
    pub(in crate::stream) fn has_receives(&self) -> bool {
        self.flow.shall_grant(self.recv.lent())
    }

    /// Sends this side's first frame, which gives the peer its first credits. Nothing may be sent
    /// before it: waits until the device has it.
    pub(in crate::stream) fn poll_introduce(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        self.grant(cx);
        ready!(self.poll_owed(cx))?;
        Poll::Ready(self.check())
    }

    /// Waits for the peer's. A peer that sends another one first breaks the protocol.
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

    /// Gives up the connection, and returns what another one begins with.
    pub(in crate::stream) fn into_control(self) -> [Buf; 2] {
        [self.credits, self.last]
    }

    /// Returns whether this side's first frame over a network waits for memory or a Slot alone.
    pub(in crate::stream) fn is_held_up(&self, dials: bool) -> bool {
        self.sends.accepted() == 0 && (dials || self.flow.may_send())
    }

    /// Waits until there is memory for what the peer sends.
    pub(in crate::stream) fn poll_receives(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.lend(cx);
        match self.has_receives() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Returns the first credits of the peer.
    pub(in crate::stream) fn first_credits(&mut self) -> u16 {
        let lent = self.recv.lent();
        self.flow.grant(lent)
    }

    /// Begins, with what the peer has said.
    pub(in crate::stream) fn begin(&mut self, frame: usize, credits: u16) -> Result<(), JobError> {
        self.flow.limit(frame);
        self.flow.add(credits)
    }

    /// The connection is there. One-sided operations and what is written arrive in order: so writes
    /// do not share a frame if the peer allows such operations.
    pub(in crate::stream) fn connected(&mut self) {
        self.eager = !self.rdma().peer_permissions().is_empty();
    }

    /// Sends this side's first frame over a network, which has a length of `len` bytes and gives
    /// the peer its first credits. Waits until the peer has it.
    pub(in crate::stream) fn poll_test(
        &mut self,
        len: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        if self.sends.accepted() == 0 {
            // The peer's first frame has given its receive back.
            ready!(self.poll_receives(cx));
            let len = (len - HEAD).min(self.flow.payload());
            let fill = |data: &mut BufDataMut<'_>| data.put_bytes(0, len);
            while let Err(error) = ready!(self.poll_filled(Kind::Credits, cx, fill)) {
                // It had a Slot: for a Buf first, this time.
                if error.reason() != Reason::PoolEmpty {
                    return Poll::Ready(Err(error));
                }
            }
        }
        let all = self.sends.accepted();
        self.poll_delivered(all, cx)
    }
}
