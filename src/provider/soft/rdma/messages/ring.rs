//! What two connected endpoints share: for each side a block that it alone writes.
//!
//! | at | what the side says there |
//! |---|---|
//! | 0 | [`Presence`]: whether it is connected, or has left |
//! | 8 | whether it is *parked*: it looks at this message ring only if it was hinted at |
//! | 16 | whether it *wants*: a Job of its waits for a receive, or for room |
//! | 128 | how many bytes of messages it has put into its stream, ever |
//! | 256 | how many it has taken from the peer's, ever |
//! | 384 | its receives: a word for each that it posts, in turn; the number of the post, and the room |
//! | then | its messages: 128 bytes for each receive of the peer's, in turn |
//! | then | its stream: the bytes of messages that do not fit into 112 |
//!
//! A message uses up the peer's receive of the same number, whose word the sender looks at first:
//! who may send knows how much, and a message that was published is as good as delivered. A word
//! with a number in it says by the number that it was written for this turn, so that nobody counts:
//! the other side looks at the one line that it waits for.
//!
//! Everything that the peer writes is hostile: numbers are checked where they are read, once, and
//! nothing is read twice.

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
/// Of a message.
pub(in super::super) const ENTRY: usize = 128;
const HEAD: usize = 16;
/// What fits into a message's entry.
pub(in super::super) const INLINE: usize = ENTRY - HEAD;
/// The bytes of a stream.
pub(in super::super) const STREAM: usize = if cfg!(tokio_doca_loom) {
    256
} else {
    512 << 10
};
/// A side's block begins and ends with a page.
const PAGE: usize = 4096;
/// Bytes that are copied before the other side is notified of them.
pub(super) const PIECE: usize = if cfg!(tokio_doca_loom) { 128 } else { 16 << 10 };
/// The most receives of an endpoint.
pub(in super::super) const MAX_RECEIVES: u32 = 1 << 14;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Side {
    /// Who made the message ring.
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

/// How many receives host and guest have: powers of two.
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

    /// Returns the size of its memory in bytes; `None` for what no endpoint has.
    pub(in super::super) fn len(self) -> Option<usize> {
        let right = |n: u32| n.is_power_of_two() && n <= MAX_RECEIVES;
        (right(self.host) && right(self.guest))
            .then(|| self.block(Side::Host) + self.block(Side::Guest))
    }
}

/// Whether a side is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Presence {
    /// It has not connected yet.
    Absent,
    Connected,
    /// It was reset or dropped.
    Closed,
    /// A Job of its failed, or it found the peer at fault.
    Failed,
}

/// What a peer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Kind {
    Send,
    SendImm,
    WriteImm,
    /// It would have sent more than there is room for.
    TooLong,
}

/// A message's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Head {
    pub(in super::super) kind: Kind,
    pub(in super::super) len: u32,
    pub(in super::super) immediate: u32,
}

impl Head {
    /// Returns what the peer did; `None` if it says only that it had a longer message.
    pub(in super::super) fn arrival(self) -> Option<Arrival> {
        match self.kind {
            Kind::Send => Some(Arrival::Send),
            Kind::SendImm => Some(Arrival::SendImm(self.immediate)),
            Kind::WriteImm => Some(Arrival::WriteImm(self.immediate)),
            Kind::TooLong => None,
        }
    }
}

/// The peer wrote what no peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Nonsense;

/// A message ring, as one side sees it.
pub(in super::super) struct MessageRing {
    memory: Arc<Memory>,
    own: Block,
    peers: Block,
}

/// Where the block of a side lies, and what is in it.
struct Block {
    base: usize,
    /// The place of a receive is its number in these bits, and so is that of the message for it.
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

/// Returns a number and what is said of it, in a word: never 0 but for the number 2^32 - 1.
fn numbered(number: u64, value: u32) -> u64 {
    number.wrapping_add(1) << 32 | u64::from(value)
}

/// The value, if it is said of this number.
fn of_number(word: u64, number: u64) -> Option<u32> {
    (word >> 32 == u64::from(number.wrapping_add(1) as u32)).then_some(word as u32)
}

impl MessageRing {
    pub(in super::super) fn new(memory: Arc<Memory>, shape: Shape, side: Side) -> MessageRing {
        assert_eq!(shape.len(), Some(memory.len()));
        MessageRing {
            memory,
            own: Block::of(shape, side),
            peers: Block::of(shape, side.peer()),
        }
    }

    pub(in super::super) fn is_ours(&self) -> bool {
        self.memory.is_ours()
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

    /// Returns where the entry of this side's message is.
    #[inline(always)]
    fn outgoing_entry(&self, number: u64) -> usize {
        self.own.messages + ENTRY * (number as usize & self.peers.mask)
    }

    /// Returns where the entry of the peer's message is.
    #[inline(always)]
    fn incoming_entry(&self, number: u64) -> usize {
        self.peers.messages + ENTRY * (number as usize & self.own.mask)
    }

    /// This side says where it stands. What it published before is seen by who sees this.
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

    /// From now on this side looks at the message ring by itself, or does not. The party that says
    /// that it does not looks once more.
    pub(in super::super) fn set_parked(&self, parked: bool) {
        self.word(&self.own, PARKED)
            .store(parked.into(), Ordering::SeqCst);
    }

    /// This side waits for a receive or for room, or does not. The party that waits looks once
    /// more.
    pub(in super::super) fn set_wants(&self, wants: bool) {
        self.word(&self.own, WANTS)
            .store(wants.into(), Ordering::SeqCst);
    }

    /// Returns true if the peer must be hinted at a message. After a SeqCst fence.
    #[inline]
    pub(in super::super) fn peer_is_parked(&self) -> bool {
        self.word(&self.peers, PARKED).load(Ordering::SeqCst) != 0
    }

    /// Returns true if the peer must be hinted at a receive or at room. After a SeqCst fence.
    #[inline]
    pub(in super::super) fn peer_wants(&self) -> bool {
        self.word(&self.peers, WANTS).load(Ordering::SeqCst) != 0
    }

    /// Posts this side's receive of this number.
    #[inline]
    pub(in super::super) fn post(&self, number: u64, room: u32) {
        // Release: the message that was there a turn before was read.
        self.receive(&self.own, number)
            .store(numbered(number, room), Ordering::Release);
    }

    /// Takes this side's receive of this number back, which may have a message already: its word
    /// says what it said a turn before.
    pub(in super::super) fn withdraw(&self, number: u64) {
        let before = number.wrapping_sub(self.own.mask as u64 + 1);
        // Release: who sees it sees what this side said before.
        self.receive(&self.own, number)
            .store(numbered(before, 0), Ordering::Release);
    }

    /// Returns the room of the peer's receive of this number, if it is posted.
    #[inline]
    pub(in super::super) fn room(&self, number: u64) -> Option<u32> {
        of_number(
            self.receive(&self.peers, number).load(Ordering::Acquire),
            number,
        )
    }

    /// Returns where the bytes of a short message of this side go.
    #[inline]
    pub(in super::super) fn outgoing(&self, number: u64, len: usize) -> Segment {
        debug_assert!(len <= INLINE);
        let at = self.outgoing_entry(number) + HEAD;
        self.memory.to_write(at, len)
    }

    /// Publishes this side's message of this number.
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
        // Release: the bytes and the word before it.
        self.memory
            .word(entry)
            .store(numbered(number, head.len), Ordering::Release);
    }

    /// Returns true if the peer's message of this number is there.
    #[inline]
    pub(in super::super) fn has(&self, number: u64) -> bool {
        let entry = self.incoming_entry(number);
        of_number(self.memory.word(entry).load(Ordering::Acquire), number).is_some()
    }

    /// Returns the peer's message of this number, if it is there.
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

    /// Returns where the bytes of a short message of the peer's are.
    #[inline]
    pub(in super::super) fn incoming(&self, number: u64, len: usize) -> Segment {
        debug_assert!(len <= INLINE);
        let at = self.incoming_entry(number) + HEAD;
        self.memory.to_read(at, len)
    }

    /// Returns how much room there is in this side's stream, of which so much was produced.
    pub(super) fn stream_room(&self, produced: u64) -> Result<usize, Nonsense> {
        let consumed = self.word(&self.peers, CONSUMED).load(Ordering::Acquire);
        let full = usize::try_from(produced.wrapping_sub(consumed)).map_err(|_| Nonsense)?;
        STREAM.checked_sub(full).ok_or(Nonsense)
    }

    /// Returns how many bytes there are in the peer's stream, of which so much was consumed.
    pub(in super::super) fn stream_len(&self, consumed: u64) -> Result<usize, Nonsense> {
        let produced = self.word(&self.peers, PRODUCED).load(Ordering::Acquire);
        let len = usize::try_from(produced.wrapping_sub(consumed)).map_err(|_| Nonsense)?;
        (len <= STREAM).then_some(len).ok_or(Nonsense)
    }

    /// Returns where the first of so many bytes of a side's stream are, from this one on: as many
    /// as lie together.
    fn stream_piece(block: &Block, at: u64, len: usize) -> (usize, usize) {
        let from = at as usize & (STREAM - 1);
        (block.stream + from, len.min(STREAM - from))
    }

    /// Returns where this side's bytes go next.
    pub(in super::super) fn stream_out(&self, produced: u64, len: usize) -> Segment {
        let (at, len) = Self::stream_piece(&self.own, produced, len);
        self.memory.to_write(at, len)
    }

    /// Gives the pages of this side's stream back, which has no bytes that the peer has not taken.
    pub(super) fn discard_stream(&self) {
        let from = self.own.stream.next_multiple_of(PAGE);
        let end = (self.own.stream + STREAM).next_multiple_of(PAGE);
        self.memory.discard(from, end - from);
    }

    /// Returns where the peer's bytes are next.
    pub(in super::super) fn stream_in(&self, consumed: u64, len: usize) -> Segment {
        let (at, len) = Self::stream_piece(&self.peers, consumed, len);
        self.memory.to_read(at, len)
    }

    /// So many bytes are in this side's stream.
    pub(in super::super) fn set_produced(&self, produced: u64) {
        self.word(&self.own, PRODUCED)
            .store(produced, Ordering::Release);
    }

    /// So many bytes of the peer's stream were taken: they may be overwritten.
    pub(in super::super) fn set_consumed(&self, consumed: u64) {
        self.word(&self.own, CONSUMED)
            .store(consumed, Ordering::Release);
    }
}
