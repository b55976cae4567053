//! The send queue: frames that were sent but not yet taken by the socket, in order.

use std::collections::VecDeque;

use bytes::{Buf, BytesMut};
use tokio_util::codec::{Encoder, LengthDelimitedCodec};

use super::inbox;

/// The encoded frames that were not written yet, oldest first.
pub(super) struct Outbox {
    bytes: BytesMut,
    codec: LengthDelimitedCodec,
    /// The number of unwritten bytes of each frame.
    frames: VecDeque<usize>,
    /// The number of frames that were appended so far.
    pushed: u64,
    /// True while a task writes the frames.
    pub(super) flushing: bool,
}

impl Outbox {
    pub(super) fn new(max_message: usize) -> Outbox {
        Outbox {
            bytes: BytesMut::new(),
            codec: inbox::codec(max_message),
            frames: VecDeque::new(),
            pushed: 0,
            flushing: false,
        }
    }

    /// Appends a message. Returns false if it is too long, which the caller has checked before.
    pub(super) fn push(&mut self, message: &[u8]) -> bool {
        let before = self.bytes.len();
        let encoded = self.codec.encode(message, &mut self.bytes).is_ok();
        if encoded {
            self.frames.push_back(self.bytes.len() - before);
            self.pushed += 1;
        }
        encoded
    }

    /// Returns the bytes to be written next.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes the first `written` bytes, which were written. Returns how many frames ended within
    /// them.
    pub(super) fn wrote(&mut self, written: usize) -> usize {
        if written == self.bytes.len() {
            // The memory stays, and is used again.
            self.bytes.clear();
        } else {
            self.bytes.advance(written);
        }
        let (mut left, mut ended) = (written, 0);
        while let Some(frame) = self.frames.front_mut() {
            if left < *frame {
                *frame -= left;
                break;
            }
            left -= *frame;
            ended += 1;
            self.frames.pop_front();
        }
        ended
    }

    /// Returns how many frames were appended so far.
    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns how many frames were written so far.
    pub(super) fn written(&self) -> u64 {
        self.pushed - self.frames.len() as u64
    }

    /// Returns how many frames wait.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::inbox::Inbox;
    use bytes::BufMut;

    #[test]
    fn frames_are_counted_when_their_last_byte_was_written() {
        let messages: [&[u8]; 4] = [b"", b"a", b"0123456789", &[7; 100]];
        for step in 1..140 {
            let (mut outbox, mut inbox) = (Outbox::new(100), Inbox::new(100, 4));
            assert!(messages.iter().all(|message| outbox.push(message)));
            let (mut ended, mut got) = (0, Vec::new());
            while !outbox.bytes().is_empty() {
                let piece = &outbox.bytes()[..step.min(outbox.bytes().len())];
                inbox.free().put_slice(piece);
                ended += outbox.wrote(piece.len().min(step));
                while let Some(message) = inbox.next().unwrap() {
                    got.push(message);
                }
                assert_eq!((ended, outbox.len()), (got.len(), 4 - got.len()));
            }
            assert_eq!(got, messages);
        }
        assert!(!Outbox::new(100).push(&[0; 101]));
    }
}
