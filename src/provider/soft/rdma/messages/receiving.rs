//! The half of an endpoint's end of a message ring that receives.
#![expect(unsafe_code, reason = "copies memory that Jobs lend")]

use super::super::super::copy;
use super::ring::{Head, INLINE, Kind, MessageRing, Nonsense, PIECE, STREAM};
use crate::device::Segments;

/// The progress of one side in receiving messages.
#[derive(Debug, Default)]
pub(in super::super) struct Receiving {
    /// The number of receives that were posted.
    posted: u64,
    /// The number of messages that were taken, and so the number of the next message.
    number: u64,
    /// The number of bytes that were taken from the stream.
    consumed: u64,
    /// The message that was taken in part, and the number of its bytes that were taken.
    part: Option<(Head, usize)>,
    /// Set for an endpoint that posts no receives: its caller pulls each message once the message
    /// has come.
    noted: Option<Noted>,
}

/// How far the polling thread has seen messages that wait to be pulled.
#[derive(Debug)]
struct Noted {
    /// The number of messages that have arrived whole.
    number: u64,
    /// The position in the stream at which the bytes of these messages end.
    end: u64,
    /// What must arrive next.
    watch: Watch,
    /// True if a caller found no message, and was not notified of a message since.
    wanted: bool,
    /// The maximum length of a message in bytes.
    capacity: u32,
}

/// What a side that polls without hints waits for.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Watch {
    /// The message with this number.
    Message(u64),
    /// At least this many bytes (the second number) in the stream, after this position (the first
    /// number).
    Stream(u64, usize),
}

impl Watch {
    #[inline]
    pub(in super::super) fn finds(self, messages: &MessageRing) -> bool {
        match self {
            Watch::Message(number) => messages.has(number),
            // This also finds a peer that breaks the protocol, so that the endpoint is polled and
            // fails.
            Watch::Stream(consumed, least) => {
                !messages.stream_len(consumed).is_ok_and(|len| len < least)
            }
        }
    }
}

/// The state of the next message.
enum Next {
    /// All bytes of the message have arrived.
    Whole(Head),
    /// The message has not arrived whole; the `Watch` is the missing part.
    Missing(Watch),
}

/// Returns how many bytes of a message lie in the stream.
fn streamed(head: Head) -> usize {
    match head.kind {
        Kind::Send | Kind::SendImm if head.len as usize > INLINE => head.len as usize,
        _ => 0,
    }
}

/// Checks whether a message has arrived whole. Its bytes begin at position `at` of the stream. A
/// message of more than `capacity` bytes breaks the protocol.
fn whole(messages: &MessageRing, number: u64, at: u64, capacity: u32) -> Result<Next, Nonsense> {
    let Some(head) = messages.head(number) else {
        return Ok(Next::Missing(Watch::Message(number)));
    };
    let head = head?;
    let len = streamed(head);
    let is_data = matches!(head.kind, Kind::Send | Kind::SendImm);
    if len > STREAM || is_data && head.len > capacity {
        return Err(Nonsense);
    }
    if len > 0 && messages.stream_len(at)? < len {
        return Ok(Next::Missing(Watch::Stream(at, len)));
    }
    Ok(Next::Whole(head))
}

/// The result of a call of [`Receiving::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Got {
    Nothing,
    /// A part was taken. With `more`, the rest can be taken at once.
    Part {
        more: bool,
    },
    All(Head),
}

impl Receiving {
    /// Returns the number of bytes that were taken from the peer's stream.
    pub(in super::super) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Starts to receive messages that are pulled. The peer may send `credits` of them, of at most
    /// `size` bytes each.
    pub(in super::super) fn pulled(messages: &MessageRing, credits: u32, size: u32) -> Receiving {
        let noted = Noted {
            number: 0,
            end: 0,
            watch: Watch::Message(0),
            // A caller may have asked for a message before the message ring existed.
            wanted: true,
            capacity: size,
        };
        let mut receiving = Receiving {
            noted: Some(noted),
            ..Receiving::default()
        };
        for _ in 0..credits {
            receiving.post(messages, size);
        }
        receiving
    }

    #[inline]
    pub(in super::super) fn post(&mut self, messages: &MessageRing, capacity: u32) {
        messages.post(self.posted, capacity);
        self.posted += 1;
    }

    /// Takes back all receives: messages that the peer begins from now on find none.
    pub(in super::super) fn withdraw(&self, messages: &MessageRing) {
        (self.number..self.posted).for_each(|number| messages.withdraw(number));
    }

    /// Returns true if there is something to take.
    #[inline]
    pub(in super::super) fn has_more(&self, messages: &MessageRing) -> bool {
        match self.noted {
            None => self.watch().finds(messages),
            Some(_) => self.next(messages) != Ok(None),
        }
    }

    /// Returns what must arrive next.
    #[inline]
    pub(in super::super) fn watch(&self) -> Watch {
        match (&self.noted, self.part) {
            (Some(noted), _) => noted.watch,
            (None, None) => Watch::Message(self.number),
            (None, Some(_)) => Watch::Stream(self.consumed, 1),
        }
    }

    pub(in super::super) fn is_pulled(&self) -> bool {
        self.noted.is_some()
    }

    /// Returns the oldest message that was not pulled, if it has arrived whole.
    fn next(&self, messages: &MessageRing) -> Result<Option<Head>, Nonsense> {
        let Some(noted) = &self.noted else {
            return Ok(None);
        };
        match whole(messages, self.number, self.consumed, noted.capacity)? {
            Next::Whole(head) => Ok(Some(head)),
            Next::Missing(_) => Ok(None),
        }
    }

    /// Returns true if the last pulled message is the first one that no poll had seen. Then the
    /// polling threads may watch for something that never arrives, so they must poll this endpoint
    /// once.
    pub(in super::super) fn has_overtaken(&self) -> bool {
        let noted = self.noted.as_ref();
        noted.is_some_and(|noted| self.number == noted.number + 1)
    }

    /// Returns true if there is a message to pull. Otherwise [`note`](Self::note) will report the
    /// next message.
    pub(in super::super) fn ask(&mut self, messages: &MessageRing) -> bool {
        let has = self.has_more(messages);
        if let Some(noted) = &mut self.noted {
            // The flag is not cleared here: another caller may have asked before, and may sleep.
            noted.wanted |= !has;
        }
        has
    }

    /// Counts the messages that have arrived and wait to be pulled. Returns true if a caller must
    /// be notified, because it had found no message.
    pub(in super::super) fn note(&mut self, messages: &MessageRing) -> Result<bool, Nonsense> {
        let Some(noted) = &mut self.noted else {
            return Ok(false);
        };
        if noted.number < self.number {
            (noted.number, noted.end) = (self.number, self.consumed);
        }
        // The number of messages that wait to be pulled never exceeds the peer's credits.
        while noted.number < self.posted {
            match whole(messages, noted.number, noted.end, noted.capacity)? {
                Next::Whole(head) => {
                    noted.number += 1;
                    noted.end += streamed(head) as u64;
                }
                Next::Missing(watch) => {
                    noted.watch = watch;
                    break;
                }
            }
        }
        if noted.number == self.posted {
            // The peer has no credit for another message until one was pulled.
            if messages.has(noted.number) {
                return Err(Nonsense);
            }
            noted.watch = Watch::Message(noted.number);
        }
        let told = noted.wanted && noted.number > self.number;
        noted.wanted &= !told;
        Ok(told)
    }

    /// Takes the oldest message if it has arrived whole, and gives its credit back to the peer. A
    /// message stays if it is longer than `capacity`, or if it reports that the peer's message was
    /// too long.
    ///
    /// # Safety
    ///
    /// The memory of `dst` is valid and leased, and has `capacity` bytes.
    pub(in super::super) unsafe fn pull(
        &mut self,
        messages: &MessageRing,
        dst: &Segments,
        capacity: usize,
    ) -> Result<Option<Head>, Nonsense> {
        let Some(head) = self.next(messages)? else {
            return Ok(None);
        };
        let len = head.len as usize;
        match head.kind {
            Kind::TooLong => return Ok(Some(head)),
            Kind::Send | Kind::SendImm if len > capacity => return Ok(Some(head)),
            Kind::Send | Kind::SendImm if len <= INLINE => {
                let from = messages.incoming(self.number, len);
                // SAFETY: `len` bytes lie on both sides; the message ring's memory overlaps no
                // job's.
                unsafe { copy::scatter(&from, 0, dst, 0, len) };
            }
            Kind::Send | Kind::SendImm => {
                let mut at = 0;
                while at < len {
                    let from = messages.stream_in(self.consumed + at as u64, len - at);
                    // SAFETY: as above.
                    unsafe { copy::scatter(&from, 0, dst, at, from.len()) };
                    at += from.len();
                }
                self.consumed += len as u64;
                messages.set_consumed(self.consumed);
            }
            Kind::WriteImm => {}
        }
        self.number += 1;
        let lent = self.noted.as_ref().map_or(0, |noted| noted.capacity);
        self.post(messages, lent);
        Ok(Some(head))
    }

    /// Takes a message, or continues to take one. A call copies at most `most` bytes of the stream.
    /// `dst` is the memory of the oldest receive and its length, if a receive is posted.
    ///
    /// # Safety
    ///
    /// The memory of `dst` is valid and leased, and has the length that goes with it.
    pub(in super::super) unsafe fn take(
        &mut self,
        messages: &MessageRing,
        dst: Option<(&Segments, usize)>,
        most: usize,
    ) -> Result<Got, Nonsense> {
        let (head, mut at) = match self.part {
            Some(part) => part,
            None => {
                let Some(head) = messages.head(self.number) else {
                    return Ok(Got::Nothing);
                };
                (head?, 0)
            }
        };
        // The peer can have sent this message only for a posted receive that it has seen.
        let (dst, capacity) = dst.ok_or(Nonsense)?;
        let len = head.len as usize;
        match head.kind {
            Kind::WriteImm | Kind::TooLong => {
                self.number += 1;
                return Ok(Got::All(head));
            }
            Kind::Send | Kind::SendImm if len > capacity => return Err(Nonsense),
            Kind::Send | Kind::SendImm => {}
        }
        if len <= INLINE {
            let from = messages.incoming(self.number, len);
            // SAFETY: `len` bytes lie on both sides; the message ring's memory overlaps no job's.
            unsafe { copy::scatter(&from, 0, dst, 0, len) };
            self.number += 1;
            return Ok(Got::All(head));
        }
        let end = len.min(at.saturating_add(most));
        while at < end {
            let there = messages.stream_len(self.consumed)?;
            if there == 0 {
                self.part = Some((head, at));
                return Ok(Got::Part { more: false });
            }
            let from = messages.stream_in(self.consumed, PIECE.min(there).min(end - at));
            let step = from.len();
            // SAFETY: as above.
            unsafe { copy::scatter(&from, 0, dst, at, step) };
            at += step;
            self.consumed += step as u64;
            messages.set_consumed(self.consumed);
        }
        if at < len {
            self.part = Some((head, at));
            return Ok(Got::Part { more: true });
        }
        self.part = None;
        self.number += 1;
        Ok(Got::All(head))
    }
}
