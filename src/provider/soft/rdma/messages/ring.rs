//! The memory that two connected endpoints share: a block for each side, which only that side
//! writes.
//!
//! | at | what the side stores there |
//! |---|---|
//! | 0 | its [`Presence`]: whether it is connected, or has left |
//! | 8 | whether it is *parked*: it polls this message ring only after a hint |
//! | 16 | whether it *wants*: its first job waits for a receive, or for capacity of the stream |
//! | 128 | the number of bytes that it has ever put into its stream |
//! | 256 | the number of bytes that it has ever taken from the peer's stream |
//! | 384 | its receives: a word for each, in turn, with the number of the post and the receive's length |
//! | then | its messages: 128 bytes for each receive of the peer, in turn |
//! | then | its stream: the bytes of messages longer than 112 bytes |
//!
//! A message uses up the peer's receive of the same number. The sender reads the word of that
//! receive first, and so knows how many bytes it may send: a published message is as good as
//! delivered. Words contain a number, which shows that the word was written for the current turn.
//! So neither side reads a counter: each side polls only the cache line that it waits for.
//!
//! The code treats everything that the peer writes as hostile. Each number is read once, and is
//! checked where it is read.

use std::sync::Arc;

use super::memory::Memory;
use crate::device::{Arrival, Segment};
use crate::sync::atomic::{AtomicU64, Ordering};

const PRESENCE: usize = 0;
const PARKED: usize = 8;
const WANTS: usize = 16;
const PRODUCED: usize = 128;
const CONSUMED: usize = 256;
const RECEIVES: usize = 384;
/// The length of a message's entry, in bytes.
pub(in super::super) const ENTRY: usize = 128;
const HEAD: usize = 16;
/// The maximum length of a message whose bytes are in its entry.
pub(in super::super) const INLINE: usize = ENTRY - HEAD;
/// The length, in bytes, of the part of a side's block for the bytes of longer messages.
pub(in super::super) const STREAM: usize = if cfg!(tokio_doca_loom) {
    256
} else {
    512 << 10
};
/// The alignment of a side's block: it begins and ends at a page boundary.
const PAGE: usize = 4096;
/// The maximum number of bytes that are copied to a stream before the peer can see them.
pub(super) const PIECE: usize = if cfg!(tokio_doca_loom) { 128 } else { 16 << 10 };
/// The maximum number of receives of an endpoint.
pub(in super::super) const MAX_RECEIVES: u32 = 1 << 14;

/// One of the two sides of a message ring or a doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Side {
    /// The side that made the shared memory.
    Host,
    Guest,
}

impl Side {
    pub(in super::super) fn peer(self) -> Side {
        match self {
            Side::Host => Side::Guest,
            Side::Guest => Side::Host,
        }
    }
}

/// The number of receives of the host and of the guest; both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Shape {
    pub(in super::super) host: u32,
    pub(in super::super) guest: u32,
}

impl Shape {
    fn receives(self, side: Side) -> usize {
        let receives = match side {
            Side::Host => self.host,
            Side::Guest => self.guest,
        };
        receives as usize
    }

    fn messages_at(self, side: Side) -> usize {
        (RECEIVES + 8 * self.receives(side)).next_multiple_of(ENTRY)
    }

    fn stream_at(self, side: Side) -> usize {
        self.messages_at(side) + ENTRY * self.receives(side.peer())
    }

    fn block(self, side: Side) -> usize {
        (self.stream_at(side) + STREAM).next_multiple_of(PAGE)
    }

    fn base(self, side: Side) -> usize {
        match side {
            Side::Host => 0,
            Side::Guest => self.block(Side::Host),
        }
    }

    /// Returns the size of the memory in bytes, and `None` for numbers that no endpoint has.
    pub(in super::super) fn len(self) -> Option<usize> {
        let right = |n: u32| n.is_power_of_two() && n <= MAX_RECEIVES;
        (right(self.host) && right(self.guest))
            .then(|| self.block(Side::Host) + self.block(Side::Guest))
    }
}

/// The state of a side's connection. Later states are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(in super::super) enum Presence {
    /// The side has not connected yet.
    Absent,
    Connected,
    /// The side was reset or dropped.
    Closed,
    /// A job of the side failed, or the side found that the peer broke the protocol.
    Failed,
}

/// The operation of the peer that a message reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Kind {
    Send,
    SendImm,
    WriteImm,
    /// The peer's message was longer than the receive.
    TooLong,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Head {
    pub(in super::super) kind: Kind,
    pub(in super::super) len: u32,
    pub(in super::super) immediate: u32,
}

impl Head {
    /// Returns the operation of the peer, and `None` for `TooLong`.
    pub(in super::super) fn arrival(self) -> Option<Arrival> {
        match self.kind {
            Kind::Send => Some(Arrival::Send),
            Kind::SendImm => Some(Arrival::SendImm(self.immediate)),
            Kind::WriteImm => Some(Arrival::WriteImm(self.immediate)),
            Kind::TooLong => None,
        }
    }
}

/// The error that the peer has broken the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Nonsense;

/// A message ring, seen from one side.
pub(in super::super) struct MessageRing {
    memory: Arc<Memory>,
    shape: Shape,
    own: Block,
    peers: Block,
}

/// The offsets of a side's block, and of its parts.
struct Block {
    base: usize,
    /// The mask of a receive's number whose bits are the index of the receive, and of the message
    /// for it.
    mask: usize,
    messages: usize,
    stream: usize,
}

impl Block {
    fn of(shape: Shape, side: Side) -> Block {
        let base = shape.base(side);
        Block {
            base,
            mask: shape.receives(side) - 1,
            messages: base + shape.messages_at(side),
            stream: base + shape.stream_at(side),
        }
    }
}

/// Returns a word with a number and a value. It is never 0, except for the number 2^32 - 1.
fn numbered(number: u64, value: u32) -> u64 {
    number.wrapping_add(1) << 32 | u64::from(value)
}

/// Returns the value of a word, if the word has this number.
fn of_number(word: u64, number: u64) -> Option<u32> {
    (word >> 32 == u64::from(number.wrapping_add(1) as u32)).then_some(word as u32)
}

impl MessageRing {
    pub(in super::super) fn new(memory: Arc<Memory>, shape: Shape, side: Side) -> MessageRing {
        assert_eq!(shape.len(), Some(memory.len()));
        MessageRing {
            memory,
            shape,
            own: Block::of(shape, side),
            peers: Block::of(shape, side.peer()),
        }
    }

    pub(in super::super) fn is_ours(&self) -> bool {
        self.memory.is_ours()
    }

    /// Returns the size of the memory in bytes.
    pub(in super::super) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(in super::super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Resets the ring before the next connection uses it. An honest peer does not write to the
    /// ring meanwhile. The bytes of earlier messages stay.
    pub(in super::super) fn renew(&self) {
        for (block, peers) in [(&self.own, &self.peers), (&self.peers, &self.own)] {
            let words = [PRESENCE, PARKED, WANTS, PRODUCED, CONSUMED];
            let receives = (0..=block.mask).map(|turn| RECEIVES + 8 * turn);
            let of_block = words.into_iter().chain(receives).map(|at| block.base + at);
            let entries = (0..=peers.mask).map(|turn| block.messages + ENTRY * turn);
            for at in of_block.chain(entries) {
                self.memory.word(at).store(0, Ordering::Relaxed);
            }
        }
    }

    #[inline(always)]
    fn word(&self, block: &Block, at: usize) -> &AtomicU64 {
        self.memory.word(block.base + at)
    }

    #[inline(always)]
    fn receive(&self, block: &Block, number: u64) -> &AtomicU64 {
        let turn = number as usize & block.mask;
        self.word(block, RECEIVES + 8 * turn)
    }

    /// Returns the offset of the entry for this side's message.
    #[inline(always)]
    fn outgoing_entry(&self, number: u64) -> usize {
        self.own.messages + ENTRY * (number as usize & self.peers.mask)
    }

    /// Returns the offset of the entry for the peer's message.
    #[inline(always)]
    fn incoming_entry(&self, number: u64) -> usize {
        self.peers.messages + ENTRY * (number as usize & self.own.mask)
    }

    /// Stores this side's presence. A peer that sees it also sees everything that this side
    /// published before.
    pub(in super::super) fn say(&self, presence: Presence) {
        let word = match presence {
            Presence::Absent => 0,
            Presence::Connected => 1,
            Presence::Closed => 2,
            Presence::Failed => 3,
        };
        self.word(&self.own, PRESENCE).store(word, Ordering::SeqCst);
    }

    pub(in super::super) fn peer(&self) -> Presence {
        match self.word(&self.peers, PRESENCE).load(Ordering::SeqCst) {
            0 => Presence::Absent,
            1 => Presence::Connected,
            2 => Presence::Closed,
            _ => Presence::Failed,
        }
    }

    /// A parked side polls the ring after hints only, and once more after this call.
    pub(in super::super) fn set_parked(&self, parked: bool) {
        self.word(&self.own, PARKED)
            .store(parked.into(), Ordering::SeqCst);
    }

    /// A side that waits for a receive or for capacity polls once more after this call.
    pub(in super::super) fn set_wants(&self, wants: bool) {
        self.word(&self.own, WANTS)
            .store(wants.into(), Ordering::SeqCst);
    }

    /// Returns true if the peer needs a hint to see a message. The caller must have made a SeqCst
    /// fence before.
    #[inline]
    pub(in super::super) fn peer_is_parked(&self) -> bool {
        self.word(&self.peers, PARKED).load(Ordering::SeqCst) != 0
    }

    /// Returns true if the peer needs a hint that a receive was posted, or that capacity is free.
    /// The caller must have made a SeqCst fence before.
    #[inline]
    pub(in super::super) fn peer_wants(&self) -> bool {
        self.word(&self.peers, WANTS).load(Ordering::SeqCst) != 0
    }

    /// Posts this side's receive with this number, of `capacity` bytes.
    #[inline]
    pub(in super::super) fn post(&self, number: u64, capacity: u32) {
        // Release: this side has read the message that this entry had in the turn before.
        self.receive(&self.own, number)
            .store(numbered(number, capacity), Ordering::Release);
    }

    /// Takes back this side's receive with this number: its word gets the number of the turn
    /// before. The peer may have sent a message for the receive already.
    pub(in super::super) fn withdraw(&self, number: u64) {
        let before = number.wrapping_sub(self.own.mask as u64 + 1);
        // Release: a peer that sees the word also sees what this side stored before.
        self.receive(&self.own, number)
            .store(numbered(before, 0), Ordering::Release);
    }

    /// Returns the length of the peer's receive with this number, if it is posted.
    #[inline]
    pub(in super::super) fn capacity(&self, number: u64) -> Option<u32> {
        of_number(
            self.receive(&self.peers, number).load(Ordering::Acquire),
            number,
        )
    }

    /// Returns the memory for the bytes of a short message of this side.
    #[inline]
    pub(in super::super) fn outgoing(&self, number: u64, len: usize) -> Segment {
        debug_assert!(len <= INLINE);
        let at = self.outgoing_entry(number) + HEAD;
        self.memory.to_write(at, len)
    }

    /// Publishes this side's message with this number.
    #[inline]
    pub(in super::super) fn publish(&self, number: u64, head: Head) {
        let kind = match head.kind {
            Kind::Send => 0,
            Kind::SendImm => 1,
            Kind::WriteImm => 2,
            Kind::TooLong => 3,
        };
        let entry = self.outgoing_entry(number);
        let rest = kind << 32 | u64::from(head.immediate);
        self.memory.word(entry + 8).store(rest, Ordering::Relaxed);
        // Release: the message's bytes and the second word are stored before.
        self.memory
            .word(entry)
            .store(numbered(number, head.len), Ordering::Release);
    }

    /// Returns true if the peer has published its message with this number.
    #[inline]
    pub(in super::super) fn has(&self, number: u64) -> bool {
        let entry = self.incoming_entry(number);
        of_number(self.memory.word(entry).load(Ordering::Acquire), number).is_some()
    }

    /// Returns the header of the peer's message with this number, if the peer has published it.
    #[inline]
    pub(in super::super) fn head(&self, number: u64) -> Option<Result<Head, Nonsense>> {
        let entry = self.incoming_entry(number);
        let len = of_number(self.memory.word(entry).load(Ordering::Acquire), number)?;
        let rest = self.memory.word(entry + 8).load(Ordering::Relaxed);
        let kind = match rest >> 32 {
            0 => Kind::Send,
            1 => Kind::SendImm,
            2 => Kind::WriteImm,
            3 => Kind::TooLong,
            _ => return Some(Err(Nonsense)),
        };
        let immediate = rest as u32;
        Some(Ok(Head {
            kind,
            len,
            immediate,
        }))
    }

    /// Returns the memory with the bytes of a short message of the peer.
    #[inline]
    pub(in super::super) fn incoming(&self, number: u64, len: usize) -> Segment {
        debug_assert!(len <= INLINE);
        let at = self.incoming_entry(number) + HEAD;
        self.memory.to_read(at, len)
    }

    /// Returns the number of free bytes in this side's stream, after `produced` bytes were put into
    /// it.
    pub(super) fn stream_free(&self, produced: u64) -> Result<usize, Nonsense> {
        let consumed = self.word(&self.peers, CONSUMED).load(Ordering::Acquire);
        let full = usize::try_from(produced.wrapping_sub(consumed)).map_err(|_| Nonsense)?;
        STREAM.checked_sub(full).ok_or(Nonsense)
    }

    /// Returns the number of bytes that wait in the peer's stream, after `consumed` bytes were
    /// taken from it.
    pub(in super::super) fn stream_len(&self, consumed: u64) -> Result<usize, Nonsense> {
        let produced = self.word(&self.peers, PRODUCED).load(Ordering::Acquire);
        let len = usize::try_from(produced.wrapping_sub(consumed)).map_err(|_| Nonsense)?;
        (len <= STREAM).then_some(len).ok_or(Nonsense)
    }

    /// Returns the offset and the length of the contiguous bytes at position `at` of a side's
    /// stream. The length is at most `len`.
    fn stream_piece(block: &Block, at: u64, len: usize) -> (usize, usize) {
        let from = at as usize & (STREAM - 1);
        (block.stream + from, len.min(STREAM - from))
    }

    /// Returns the memory for this side's next bytes in its stream: at most `len`, contiguous.
    pub(in super::super) fn stream_out(&self, produced: u64, len: usize) -> Segment {
        let (at, len) = Self::stream_piece(&self.own, produced, len);
        self.memory.to_write(at, len)
    }

    /// Returns the pages of this side's stream to the kernel. The peer must have taken all bytes of
    /// the stream.
    pub(super) fn discard_stream(&self) {
        let from = self.own.stream.next_multiple_of(PAGE);
        let end = (self.own.stream + STREAM).next_multiple_of(PAGE);
        self.memory.discard(from, end - from);
    }

    /// Returns the memory with the peer's next bytes in its stream: at most `len`, contiguous.
    pub(in super::super) fn stream_in(&self, consumed: u64, len: usize) -> Segment {
        let (at, len) = Self::stream_piece(&self.peers, consumed, len);
        self.memory.to_read(at, len)
    }

    /// Publishes that `produced` bytes were put into this side's stream.
    pub(in super::super) fn set_produced(&self, produced: u64) {
        self.word(&self.own, PRODUCED)
            .store(produced, Ordering::Release);
    }

    /// Publishes that `consumed` bytes of the peer's stream were taken, so that the peer may
    /// overwrite them.
    pub(in super::super) fn set_consumed(&self, consumed: u64) {
        self.word(&self.own, CONSUMED)
            .store(consumed, Ordering::Release);
    }
}
