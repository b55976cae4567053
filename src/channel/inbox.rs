//! The receive queue: bytes that were read from a peer, and the messages in them that were not
//! taken yet.

use std::io;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

/// The number of bytes of a frame before its message.
pub(super) const HEAD: usize = 4;

/// Returns the codec of both directions: a length of four bytes, big-endian, and the message.
pub(super) fn codec(max_message: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .length_field_length(HEAD)
        .max_frame_length(max_message)
        .new_codec()
}

/// A buffer of bounded size for the bytes that a peer sent.
pub(crate) struct Inbox {
    bytes: BytesMut,
    codec: LengthDelimitedCodec,
    /// True if the head of the next message was decoded, but not all of its bytes have come.
    within: bool,
    bound: usize,
}

impl Inbox {
    /// Returns an inbox for messages of at most `max_message` bytes, which reads `ahead` messages
    /// ahead.
    pub(crate) fn new(max_message: usize, ahead: usize) -> Inbox {
        Inbox {
            bytes: BytesMut::new(),
            codec: codec(max_message),
            within: false,
            bound: (HEAD + max_message) * ahead,
        }
    }

    /// Sets the limits that both sides have agreed on, for the messages from now on.
    pub(crate) fn agree(&mut self, max_message: usize, ahead: usize) {
        self.codec.set_max_frame_length(max_message);
        self.bound = (HEAD + max_message) * ahead;
    }

    /// Returns the oldest message, if all of it has come.
    ///
    /// # Errors
    ///
    /// If the peer sends a message that is longer than allowed.
    pub(crate) fn next(&mut self) -> io::Result<Option<Bytes>> {
        let before = self.bytes.len();
        let frame = self.codec.decode(&mut self.bytes)?;
        self.within = match frame {
            Some(_) => false,
            None => self.within || self.bytes.len() < before,
        };
        // A copy, so that a message keeps no more memory than its length, and the buffer is reused.
        Ok(frame.map(|frame| Bytes::copy_from_slice(&frame)))
    }

    /// Returns the free part of the buffer, for further bytes: at least one byte.
    pub(crate) fn free(&mut self) -> Limit<&mut BytesMut> {
        let free = self.bound.saturating_sub(self.bytes.len()).max(1);
        self.bytes.reserve(free);
        (&mut self.bytes).limit(free)
    }

    /// Returns true if the last message has begun and not ended.
    pub(super) fn is_torn(&self) -> bool {
        self.within || !self.bytes.is_empty()
    }

    /// Returns how many bytes of memory the buffer has.
    #[cfg(any(test, fuzzing))]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(message: &[u8]) -> Vec<u8> {
        let mut bytes = (message.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(message);
        bytes
    }

    fn put(inbox: &mut Inbox, bytes: &[u8]) {
        let mut free = inbox.free();
        assert!(free.remaining_mut() >= bytes.len());
        free.put_slice(bytes);
    }

    #[test]
    fn messages_come_out_whole_however_their_bytes_come_in() {
        let messages: [&[u8]; 4] = [b"", b"a", b"0123456789", &[7; 100]];
        let sent: Vec<u8> = messages.iter().flat_map(|message| frame(message)).collect();
        for step in 1..sent.len() {
            let mut inbox = Inbox::new(100, 2);
            let mut got = Vec::new();
            for piece in sent.chunks(step) {
                for byte in piece.chunks(104) {
                    put(&mut inbox, byte);
                    while let Some(message) = inbox.next().unwrap() {
                        got.push(message);
                        assert!(inbox.capacity() < 2 * 208 + 104, "{}", inbox.capacity());
                    }
                }
            }
            assert_eq!(got, messages, "{step}");
            assert!(!inbox.is_torn());
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_has_come() {
        let mut inbox = Inbox::new(100, 1);
        put(&mut inbox, &frame(&[1; 100]));
        assert_eq!(inbox.next().unwrap().unwrap(), [1; 100][..]);
        put(&mut inbox, &101_u32.to_be_bytes());
        assert!(inbox.next().is_err());
        let mut inbox = Inbox::new(100, 1);
        put(&mut inbox, &[0xff; 4]);
        assert!(inbox.next().is_err());
        assert!(inbox.capacity() < 1000);
    }

    #[test]
    fn a_message_is_torn_from_its_first_byte_to_its_last() {
        let mut inbox = Inbox::new(10, 1);
        for byte in frame(b"abc") {
            put(&mut inbox, &[byte]);
            match inbox.next().unwrap() {
                Some(message) => assert_eq!(message, b"abc"[..]),
                None => assert!(inbox.is_torn()),
            }
        }
        assert!(!inbox.is_torn());
    }
}
