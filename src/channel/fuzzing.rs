//! A fuzz target for the data that a peer of a Channel sends. Built with `cfg(fuzzing)` only;
//! .ci/fuzz runs it.

use bytes::{BufMut, Bytes};

use super::greeting::{Answer, Hello};
use super::inbox::{HEAD, Inbox};

/// A stream of frames. The input is the maximum message size, the number of messages that are read
/// ahead, the number of bytes that come at once, and the stream.
pub struct Messages;

impl Messages {
    /// Parses the input as a stream, and as a greeting of either side.
    pub fn take(input: &[u8]) {
        let Some((&[max, ahead, step], stream)) = input.split_first_chunk() else {
            return;
        };
        let (max, ahead) = (1 + usize::from(max), 1 + usize::from(ahead & 15));
        if let Ok(hello) = Hello::parse(stream) {
            assert_eq!(hello.bytes(), stream);
        }
        if let Some((answer, theirs)) = Answer::parse(stream) {
            // Any version may answer.
            assert_eq!(answer.bytes(theirs)[5..], stream[5..]);
        }
        assert_eq!(received(stream, max, ahead, step.into()), sent(stream, max));
    }

    /// Returns inputs with which the fuzzer begins.
    pub fn seeds() -> Vec<Vec<u8>> {
        let hello = Hello {
            max_message: 4080,
            service: "a service",
        };
        let frame = |message: &[u8]| {
            let mut bytes = vec![100, 3, 7];
            bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
            bytes.extend_from_slice(message);
            bytes
        };
        let mut seeds = vec![frame(b"a message"), frame(&hello.bytes()), frame(b"")];
        seeds.push([&[0, 0, 0], &hello.bytes()[..]].concat());
        seeds.push([&[0, 0, 0], &Answer::Welcome.bytes(4080)[..]].concat());
        seeds
    }
}

/// Returns the messages that an `Inbox` finds in `stream`, and whether the stream ends with a
/// message that is too long.
fn received(mut stream: &[u8], max: usize, ahead: usize, step: usize) -> (Vec<Bytes>, bool) {
    let mut inbox = Inbox::new(max, ahead);
    let mut messages = Vec::new();
    loop {
        match inbox.next() {
            Ok(Some(message)) => {
                messages.push(message);
                continue;
            }
            Ok(None) => {}
            Err(_) => return (messages, true),
        }
        let bound = (HEAD + max) * ahead;
        assert!(inbox.capacity() <= 4 * bound + 64, "{}", inbox.capacity());
        let mut free = inbox.free();
        let len = stream.len().min(free.remaining_mut()).min(1 + step);
        free.put_slice(&stream[..len]);
        stream = &stream[len..];
        if len == 0 {
            return (messages, false);
        }
    }
}

/// Returns what `received` should return, by a simpler parser.
fn sent(mut stream: &[u8], max: usize) -> (Vec<Bytes>, bool) {
    let mut messages = Vec::new();
    while let Some((head, rest)) = stream.split_first_chunk::<HEAD>() {
        let len = u32::from_be_bytes(*head) as usize;
        if len > max {
            return (messages, true);
        }
        let Some((message, rest)) = rest.split_at_checked(len) else {
            break;
        };
        messages.push(Bytes::copy_from_slice(message));
        stream = rest;
    }
    (messages, false)
}
