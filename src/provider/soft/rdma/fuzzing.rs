//! What a peer may send and write, as a fuzzer generates it. This is built with `cfg(fuzzing)`
//! only; `.ci/fuzz` runs it.
//!
//! A bug shows as a panic, as a report of ASan, or as a run that does not end.
#![expect(unsafe_code, reason = "lends memory to a channel")]

use std::ptr::NonNull;
use std::sync::Arc;

use super::super::event::ConnectReply as EventReply;
use super::super::fabric::{Arena, PAYLOAD, Payload, payload};
use super::doorbell::RINGS;
use super::messages::{
    ENTRY, Head, INLINE, Kind, Memory, MessageRing, Receiving, Sending, Shape, Side,
};
use super::payload::{ConnectReply, ConnectRequest, EndpointInfo};
use crate::device::{Access, Segment, Segments};
use crate::sync::atomic::Ordering;

/// The fuzz target for the payloads by which peers connect. The input is parsed as an endpoint's
/// info, its request and its reply, and as a sync event's reply.
pub struct Payloads;

impl Payloads {
    /// Parses one input in each of these ways.
    pub fn take(input: &[u8]) {
        let mut said: Payload = [0; PAYLOAD];
        let len = input.len().min(PAYLOAD);
        said[..len].copy_from_slice(&input[..len]);
        if let Some(info) = EndpointInfo::parse(&said) {
            assert_eq!(payload(&info), said, "{info:?}");
            let shape = Shape {
                host: info.receives.get(),
                guest: info.receives.get(),
            };
            // Shared memory has at most 64 MiB.
            assert!(shape.len().is_some_and(|len| len <= 64 << 20), "{info:?}");
        }
        if let Some(request) = ConnectRequest::parse(&said) {
            assert_eq!(payload(&request), said, "{request:?}");
            assert_eq!(
                EndpointInfo::parse(&payload(&request.info)),
                Some(request.info)
            );
            assert_eq!(request.identity([3; 16]).proof, said[24..40]);
        }
        if let Some(reply) = ConnectReply::parse(&said) {
            assert_eq!(payload(&reply), said, "{reply:?}");
            assert!(reply.doorbell != 0 && reply.index.get() < RINGS);
        }
        if let Some(reply) = EventReply::parse(&said) {
            assert_eq!(payload(&reply), said, "{reply:?}");
            let (len, offset) = (reply.len.get(), reply.offset.get());
            assert!(
                len == 0 || offset % 8 == 0 && offset <= len - 8,
                "{reply:?}"
            );
        }
    }

    /// Returns the payloads of honest peers.
    pub fn seeds() -> Vec<Vec<u8>> {
        let info = EndpointInfo {
            queue: 1.into(),
            receives: 64.into(),
            permissions: (Access::RDMA_READ | Access::RDMA_WRITE).bits().into(),
        };
        let request = ConnectRequest {
            info,
            slot: 1.into(),
            generation: 2.into(),
            proof: [3; 16],
            doorbell: 4.into(),
            ring: 64.into(),
        };
        let reply = ConnectReply {
            doorbell: 5.into(),
            index: 6.into(),
            ring: 1.into(),
        };
        let event = EventReply {
            number: 1.into(),
            len: 4096.into(),
            offset: 64.into(),
        };
        [
            payload(&info),
            payload(&request),
            payload(&reply),
            payload(&event),
        ]
        .map(Vec::from)
        .into()
    }
}

/// The fuzz target for one end of a message ring. The input is what the other end writes, and when.
pub struct Scribbler {
    memory: Arc<Memory>,
    shape: Shape,
}

const RECEIVES: u32 = 4;
const GUARD: usize = 64;
const ROOM: usize = 4 * INLINE;
/// A length that is sent in more than one piece.
const LONG: usize = 40_000;
/// The length of the part of a side's block that has presence, counts, receives and messages, in
/// bytes.
const WORDS: usize = 1024;

fn segments(bytes: &mut [u8]) -> Segments {
    let addr = NonNull::from(&mut *bytes).cast();
    // SAFETY: the bytes are those of a slice, which the callers keep as long as they lend it.
    Segments::one(unsafe { Segment::new(addr, bytes.len(), 0) })
}

impl Scribbler {
    /// Returns a scribbler with a message ring.
    #[expect(clippy::new_without_default, reason = "it maps memory")]
    pub fn new() -> Scribbler {
        let shape = Shape {
            host: RECEIVES,
            guest: RECEIVES,
        };
        let len = shape.len().expect("powers of two");
        let (_memfd, mapping) = Arena::create(len).expect("a memfd");
        // SAFETY: only message rings, one at a time, and this value access the memory, by atomics.
        let memory = Arc::new(unsafe { Memory::new(mapping, len) });
        Scribbler { memory, shape }
    }

    /// Runs one input. Each ten bytes are: the index of the word that is written (one byte), its
    /// value (eight bytes), and the step that follows (one byte).
    pub fn take(&self, input: &[u8]) {
        let blocks = [0, self.memory.len() / 2];
        let words = || {
            blocks
                .into_iter()
                .flat_map(|block| (block..block + WORDS).step_by(8))
        };
        words().for_each(|at| self.memory.word(at).store(0, Ordering::SeqCst));
        let messages = MessageRing::new(Arc::clone(&self.memory), self.shape, Side::Host);
        let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
        for _ in 0..RECEIVES {
            receiving.post(&messages, ROOM as u32);
        }
        // This receives the same messages as an endpoint that pulls its messages.
        let mut pulling = Receiving::pulled(&messages, RECEIVES, ROOM as u32);
        let mut bytes = vec![0xa5; GUARD + ROOM + GUARD];
        let mut message = vec![1; LONG];
        for act in input.chunks_exact(10) {
            let at = blocks[usize::from(act[0] >> 7)] + 8 * usize::from(act[0] & 0x7f);
            let word = u64::from_le_bytes(act[1..9].try_into().expect("eight bytes"));
            self.memory.word(at).store(word, Ordering::SeqCst);
            match act[9] % 5 {
                4 => {
                    let dst = segments(&mut bytes[GUARD..GUARD + ROOM]);
                    // SAFETY: the slice has `ROOM` bytes.
                    let _ = unsafe { pulling.pull(&messages, &dst, ROOM) };
                    pulling.ask(&messages);
                    if pulling.note(&messages).is_ok() {
                        let finds = pulling.watch().finds(&messages);
                        assert!(!finds, "a peer keeps who looks awake");
                    }
                }
                0 | 1 => {
                    let dst = segments(&mut bytes[GUARD..GUARD + ROOM]);
                    // SAFETY: the slice has `ROOM` bytes.
                    let _ = unsafe { receiving.take(&messages, Some((&dst, ROOM)), usize::MAX) };
                }
                sends => {
                    let len = if sends == 2 { INLINE } else { message.len() };
                    let head = Head {
                        kind: Kind::Send,
                        len: len as u32,
                        immediate: 0,
                    };
                    let src = segments(&mut message[..len]);
                    // SAFETY: as above.
                    let _ = unsafe { sending.send(&messages, head, &src, usize::MAX) };
                }
            }
        }
        let mut guards = bytes[..GUARD].iter().chain(&bytes[GUARD + ROOM..]);
        assert!(guards.all(|&byte| byte == 0xa5), "a guard was written");
        assert!(
            message.iter().all(|&byte| byte == 1),
            "a source was written"
        );
    }

    /// Returns inputs with what honest peers write: receives, messages, and counts of the stream's
    /// bytes.
    pub fn seeds() -> Vec<Vec<u8>> {
        // The peer is the guest, so its block is the second one.
        let act = |at: usize, word: u64, then: u8| {
            let mut act = vec![0x80 | (at / 8) as u8];
            act.extend(word.to_le_bytes());
            act.push(then);
            act
        };
        let messages = (384 + 8 * RECEIVES as usize).next_multiple_of(ENTRY);
        let short = act(messages, 1 << 32 | 9, 0);
        let long = [
            act(128, ROOM as u64, 0),
            act(messages, 1 << 32 | ROOM as u64, 0),
        ];
        let sent = [act(384, 1 << 32 | 1 << 20, 3), act(256, 1 << 18, 3)];
        vec![short, long.concat(), sent.concat()]
    }
}
