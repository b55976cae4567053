//! What was read and not taken yet: bytes that a peer sent, and the messages in them.

use std::io;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

/// Bytes of a frame before its message.
pub(super) const HEAD: usize = 4;

/// Returns the codec of both directions: a length of four bytes, big-endian, and the message.
pub(super) fn codec(max_message: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .length_field_length(HEAD)
        .max_frame_length(max_message)
        .new_codec()
}

/// What a peer sent, up to a bound.
pub(crate) struct Inbox {
    bytes: BytesMut,
    codec: LengthDelimitedCodec,
    /// The head of the next message was taken, and not all of the rest has come.
    within: bool,
    bound: usize,
}

impl Inbox {
    /// Of messages of at most so many bytes, read ahead by so many messages.
    pub(crate) fn new(max_message: usize, ahead: usize) -> Inbox {
        Inbox {
            bytes: BytesMut::new(),
            codec: codec(max_message),
            within: false,
            bound: (HEAD + max_message) * ahead,
        }
    }

    /// What was agreed on for the messages from now on.
    pub(crate) fn agree(&mut self, max_message: usize, ahead: usize) {
        self.codec.set_max_frame_length(max_message);
        self.bound = (HEAD + max_message) * ahead;
    }

    /// The oldest message, if all of it is here.
    ///
    /// # Errors
    ///
    /// The peer sends a longer one than it may.
    pub(crate) fn next(&mut self) -> io::Result<Option<Bytes>> {
        let before = self.bytes.len();
        let frame = self.codec.decode(&mut self.bytes)?;
        self.within = match frame {
            Some(_) => false,
            None => self.within || self.bytes.len() < before,
        };
        // By copy, so that a message keeps no more memory than it is long, and the room is used
        // again.
        Ok(frame.map(|frame| Bytes::copy_from_slice(&frame)))
    }

    /// Room for more: at least a byte where `next` has none.
    pub(crate) fn room(&mut self) -> Limit<&mut BytesMut> {
        let room = self.bound.saturating_sub(self.bytes.len()).max(1);
        self.bytes.reserve(room);
        (&mut self.bytes).limit(room)
    }

    /// Returns true if the last message has begun and not ended.
    pub(super) fn is_torn(&self) -> bool {
        self.within || !self.bytes.is_empty()
    }

    /// Returns how much memory it has taken.
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
        let mut room = inbox.room();
        assert!(room.remaining_mut() >= bytes.len());
        room.put_slice(bytes);
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
