//! The half of an endpoint's end of a message ring that sends.
#![expect(unsafe_code, reason = "copies memory that Jobs lend")]

use super::super::super::copy;
use super::ring::{Head, INLINE, Kind, MessageRing, Nonsense, PIECE, STREAM};
use crate::device::Segments;

/// What is sent, and how far it is.
#[derive(Debug, Default)]
pub(in super::super) struct Sending {
    /// Messages published.
    number: u64,
    /// Bytes put into the stream; how many there were when its pages were given back, and when
    /// `give_back` was called last.
    produced: u64,
    given_back: u64,
    asked: u64,
    /// Of the message that is on its way: how many of its bytes are in the stream.
    part: Option<usize>,
}

/// How far a step of sending came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Sent {
    All,
    /// A part: there may be room for more at once.
    Part,
    /// The peer has no receive posted.
    NoReceive,
    /// The stream is full.
    NoRoom,
    /// The peer's receive has only so much room. It was notified.
    TooLong(u32),
}

impl Sending {
    /// Gives the pages of the stream back if the peer has taken all, and nothing was put there
    /// since this was called last; `rested` says that this is known. Returns whether it did.
    pub(in super::super) fn give_back(&mut self, messages: &MessageRing, rested: bool) -> bool {
        let rested = rested || self.asked == self.produced;
        self.asked = self.produced;
        let is_empty = || messages.stream_room(self.produced) == Ok(STREAM);
        let gives = rested && self.given_back != self.produced && self.part.is_none() && is_empty();
        if gives {
            messages.discard_stream();
            self.given_back = self.produced;
        }
        gives
    }

    /// Returns true if all of a message could be sent at once.
    #[inline]
    pub(in super::super) fn has_room(&self, messages: &MessageRing, len: usize) -> bool {
        let Some(room) = messages.room(self.number) else {
            return false;
        };
        let streamed = len > INLINE;
        len <= room as usize
            && (!streamed
                || messages
                    .stream_room(self.produced)
                    .is_ok_and(|room| room >= len))
    }

    /// Sends a message, or continues with it; what is copied in one go is bounded by `most`.
    ///
    /// # Safety
    ///
    /// The memory of the Segments is valid and leased, and has `len` bytes.
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
                let Some(room) = messages.room(self.number) else {
                    return Ok(Sent::NoReceive);
                };
                if head.len > room {
                    let kind = Kind::TooLong;
                    self.publish(messages, Head { kind, ..head });
                    return Ok(Sent::TooLong(room));
                }
                if len <= INLINE {
                    let to = messages.outgoing(self.number, len);
                    // SAFETY: `len` bytes lie on both sides; the message ring's memory overlaps no
                    // Job's.
                    unsafe { copy::gather(src, 0, &to, 0, len) };
                    self.publish(messages, head);
                    return Ok(Sent::All);
                }
                // The head first: the peer takes the bytes while they come.
                self.publish(messages, head);
                0
            }
        };
        let end = len.min(at.saturating_add(most));
        while at < end {
            let room = messages.stream_room(self.produced)?;
            if room == 0 {
                self.part = Some(at);
                return Ok(Sent::NoRoom);
            }
            let to = messages.stream_out(self.produced, PIECE.min(room).min(end - at));
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

    /// Returns true if the peer has the head of a message, and not all of its bytes.
    pub(in super::super) fn is_amid_message(&self) -> bool {
        self.part.is_some()
    }

    /// Returns how much of the message that is on its way was sent.
    pub(in super::super) fn part(&self) -> usize {
        self.part.unwrap_or(0)
    }

    /// Tells the peer of what was written to its memory.
    pub(in super::super) fn tell(&mut self, messages: &MessageRing, head: Head) -> Sent {
        if messages.room(self.number).is_none() {
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
