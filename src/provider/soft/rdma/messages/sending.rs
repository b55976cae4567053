//! The half of an endpoint's end of a message ring that sends.
#![expect(unsafe_code, reason = "copies memory that Jobs lend")]

use super::super::super::copy;
use super::ring::{Head, INLINE, Kind, MessageRing, Nonsense, PIECE, STREAM};
use crate::device::Segments;

/// The progress of one side in sending messages.
#[derive(Debug, Default)]
pub(in super::super) struct Sending {
    /// The number of messages that were published, and so the number of the next message.
    number: u64,
    /// The number of bytes that were put into the stream: in all (`produced`), when its pages were
    /// last returned (`given_back`), and when `give_back` was last called (`asked`).
    produced: u64,
    given_back: u64,
    asked: u64,
    /// If a message was sent in part, the number of its bytes that are in the stream.
    part: Option<usize>,
}

/// The result of a call of [`Sending::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Sent {
    All,
    /// A part was sent. The rest may be sent at once.
    Part,
    /// The peer has no receive posted.
    NoReceive,
    /// The stream is full.
    IsFull,
    /// The peer's receive has only this number of bytes. The peer was notified.
    TooLong(u32),
}

impl Sending {
    /// Returns the number of bytes that were put into the stream.
    pub(in super::super) fn produced(&self) -> u64 {
        self.produced
    }

    /// Returns the pages of the stream to the kernel if the peer has taken all bytes, and none were
    /// added since the last call. A caller that knows that none were added sets `rested`. The
    /// result is true if pages were returned.
    pub(in super::super) fn give_back(&mut self, messages: &MessageRing, rested: bool) -> bool {
        let rested = rested || self.asked == self.produced;
        self.asked = self.produced;
        let is_empty = || messages.stream_free(self.produced) == Ok(STREAM);
        let gives = rested && self.given_back != self.produced && self.part.is_none() && is_empty();
        if gives {
            messages.discard_stream();
            self.given_back = self.produced;
        }
        gives
    }

    /// Returns true if a whole message of `len` bytes could be sent at once.
    #[inline]
    pub(in super::super) fn has_capacity(&self, messages: &MessageRing, len: usize) -> bool {
        let Some(capacity) = messages.capacity(self.number) else {
            return false;
        };
        let streamed = len > INLINE;
        len <= capacity as usize
            && (!streamed
                || messages
                    .stream_free(self.produced)
                    .is_ok_and(|capacity| capacity >= len))
    }

    /// Sends a message, or continues to send one. A call copies at most `most` bytes into the
    /// stream.
    ///
    /// # Safety
    ///
    /// The memory of `src` is valid and leased, and has `head.len` bytes.
    pub(in super::super) unsafe fn send(
        &mut self,
        messages: &MessageRing,
        head: Head,
        src: &Segments,
        most: usize,
    ) -> Result<Sent, Nonsense> {
        let len = head.len as usize;
        let mut at = match self.part {
            Some(at) => at,
            None => {
                let Some(capacity) = messages.capacity(self.number) else {
                    return Ok(Sent::NoReceive);
                };
                if head.len > capacity {
                    let kind = Kind::TooLong;
                    self.publish(messages, Head { kind, ..head });
                    return Ok(Sent::TooLong(capacity));
                }
                if len <= INLINE {
                    let to = messages.outgoing(self.number, len);
                    // SAFETY: `len` bytes lie on both sides; the message ring's memory overlaps no
                    // job's.
                    unsafe { copy::gather(src, 0, &to, 0, len) };
                    self.publish(messages, head);
                    return Ok(Sent::All);
                }
                // The header is published first, so that the peer takes the bytes while they are
                // added.
                self.publish(messages, head);
                0
            }
        };
        let end = len.min(at.saturating_add(most));
        while at < end {
            let capacity = messages.stream_free(self.produced)?;
            if capacity == 0 {
                self.part = Some(at);
                return Ok(Sent::IsFull);
            }
            let to = messages.stream_out(self.produced, PIECE.min(capacity).min(end - at));
            let step = to.len();
            // SAFETY: as above.
            unsafe { copy::gather(src, at, &to, 0, step) };
            at += step;
            self.produced += step as u64;
            messages.set_produced(self.produced);
        }
        self.part = (at < len).then_some(at);
        Ok(if at < len { Sent::Part } else { Sent::All })
    }

    /// Returns true if the peer has the header of a message, but not all of its bytes.
    pub(in super::super) fn is_amid_message(&self) -> bool {
        self.part.is_some()
    }

    /// Returns the number of bytes that are in the stream of a message that was sent in part; 0 if
    /// there is none.
    pub(in super::super) fn part(&self) -> usize {
        self.part.unwrap_or(0)
    }

    /// Completes the peer's next receive, after a write with an immediate.
    pub(in super::super) fn notify_peer(&mut self, messages: &MessageRing, head: Head) -> Sent {
        if messages.capacity(self.number).is_none() {
            return Sent::NoReceive;
        }
        self.publish(messages, head);
        Sent::All
    }

    fn publish(&mut self, messages: &MessageRing, head: Head) {
        messages.publish(self.number, head);
        self.number += 1;
    }
}
