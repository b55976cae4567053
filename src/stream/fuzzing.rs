//! What a peer of a stream may send, as a fuzzer generates it. Built with `cfg(fuzzing)` only;
//! .ci/fuzz runs it.

use super::flow::{Flow, Kind, reserved};
use super::wire::{Message, Offer};

/// The fuzz target for a message of the exchange, or for frames, each after a length of one byte.
pub struct Exchange;

impl Exchange {
    /// Parses the input as a message, and then as frames.
    pub fn take(input: &[u8]) {
        if let Ok(message) = Message::parse(input) {
            assert_eq!(message.bytes(), input);
        }
        for confirms in [false, true] {
            Exchange::take_frames(input, confirms);
        }
    }

    fn take_frames(input: &[u8], confirms: bool) {
        let all = 8 + reserved(confirms);
        let (mut flow, mut lent) = (Flow::new(4096, 8, confirms), all);
        flow.grant(lent);
        let (mut rest, mut closed) = (input, false);
        while let Some((&len, tail)) = rest.split_first() {
            let (frame, tail) = tail.split_at(usize::from(len).min(tail.len()));
            rest = tail;
            if flow.take(frame).is_err() {
                break;
            }
            lent = lent.checked_sub(1).expect("each frame found a receive");
            // Some receives are posted again later.
            if len & 0x40 == 0 {
                lent = all;
            }
            if len & 0x20 != 0 && !closed {
                flow.head(Kind::End, lent);
                closed = true;
            }
            if let Some(kind) = flow.due(lent) {
                flow.head(kind, lent);
            }
        }
    }

    /// Returns the inputs with which the fuzzer begins.
    pub fn seeds() -> Vec<Vec<u8>> {
        let offer = Offer {
            frame: 4096,
            credits: 7,
            flags: 0,
            blob: b"a blob",
            data: b"data",
        };
        let messages = [
            Message::Hello(offer),
            Message::Welcome(offer),
            Message::Ready,
            Message::Refusal("a reason"),
        ];
        let mut seeds: Vec<_> = messages.iter().map(Message::bytes).collect();
        seeds.push(b"\x05\0\0\0\x01a\x04\x02\0\0\x07\x04\x01\0\0\0".to_vec());
        seeds
    }
}
