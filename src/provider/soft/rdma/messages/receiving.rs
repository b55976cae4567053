//! The half of an endpoint's end of a message ring that receives.
#![expect(unsafe_code, reason = "copies memory that Jobs lend")]

use super::super::super::copy;
use super::ring::{Head, INLINE, Kind, MessageRing, Nonsense, PIECE, STREAM};
use crate::device::Segments;

/// What is received, and how far it is.
#[derive(Debug, Default)]
pub(in super::super) struct Receiving {
    /// Receives posted.
    posted: u64,
    /// Messages taken.
    number: u64,
    /// Bytes taken from the stream.
    consumed: u64,
    /// The message that is on its way, and how many of its bytes were taken.
    part: Option<(Head, usize)>,
    /// Of an endpoint whose messages are pulled.
    noted: Option<Noted>,
}

/// How far whoever looks has seen messages that wait to be pulled.
#[derive(Debug)]
struct Noted {
    /// Messages that are there whole.
    number: u64,
    /// Where their bytes end in the stream.
    end: u64,
    /// What comes next.
    watch: Watch,
    /// Somebody found no message, and was not told of one since.
    wanted: bool,
    /// The most bytes of a message.
    room: u32,
}

/// What a side that looks by itself looks for.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Watch {
    /// The message of this number.
    Message(u64),
    /// At least so many (the second) bytes behind so many.
    Stream(u64, usize),
}

impl Watch {
    #[inline]
    pub(in super::super) fn finds(self, messages: &MessageRing) -> bool {
        match self {
            Watch::Message(number) => messages.has(number),
            // Nonsense is found, too, so that somebody looks.
            Watch::Stream(consumed, least) => {
                !messages.stream_len(consumed).is_ok_and(|len| len < least)
            }
        }
    }
}

/// What is known of the next message.
enum Next {
    /// It is there, with all of its bytes.
    Whole(Head),
    /// It is not, and this is missing.
    Missing(Watch),
}

/// Returns how many bytes of a message lie in the stream.
fn streamed(head: Head) -> usize {
    match head.kind {
        Kind::Send | Kind::SendImm if head.len as usize > INLINE => head.len as usize,
        _ => 0,
    }
}

/// Looks for a message whose bytes begin so far in the stream, and which has at most so many.
fn whole(messages: &MessageRing, number: u64, at: u64, room: u32) -> Result<Next, Nonsense> {
    let Some(head) = messages.head(number) else {
        return Ok(Next::Missing(Watch::Message(number)));
    };
    let head = head?;
    let len = streamed(head);
    let is_data = matches!(head.kind, Kind::Send | Kind::SendImm);
    if len > STREAM || is_data && head.len > room {
        return Err(Nonsense);
    }
    if len > 0 && messages.stream_len(at)? < len {
        return Ok(Next::Missing(Watch::Stream(at, len)));
    }
    Ok(Next::Whole(head))
}

/// How far a step of receiving came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Got {
    Nothing,
    /// A part: there is more at once, or more will come.
    Part {
        more: bool,
    },
    All(Head),
}

impl Receiving {
    /// For messages that are pulled, of which the peer may send so many of so many bytes.
    pub(in super::super) fn pulled(messages: &MessageRing, credits: u32, room: u32) -> Receiving {
        let noted = Noted {
            number: 0,
            end: 0,
            watch: Watch::Message(0),
            // Somebody may have asked for one before there was a ring.
            wanted: true,
            room,
        };
        let mut receiving = Receiving {
            noted: Some(noted),
            ..Receiving::default()
        };
        for _ in 0..credits {
            receiving.post(messages, room);
        }
        receiving
    }

    #[inline]
    pub(in super::super) fn post(&mut self, messages: &MessageRing, room: u32) {
        messages.post(self.posted, room);
        self.posted += 1;
    }

    /// Takes all receives back: a message that begins to be sent from now on finds none.
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

    /// Returns what comes next.
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

    /// Returns the oldest message that was not pulled, if it is there whole.
    fn next(&self, messages: &MessageRing) -> Result<Option<Head>, Nonsense> {
        let Some(noted) = &self.noted else {
            return Ok(None);
        };
        match whole(messages, self.number, self.consumed, noted.room)? {
            Next::Whole(head) => Ok(Some(head)),
            Next::Missing(_) => Ok(None),
        }
    }

    /// Returns true if the message that was pulled last is the first that nobody who looks has
    /// seen. What they watch may never be found from then on: they must look once.
    pub(in super::super) fn has_overtaken(&self) -> bool {
        let noted = self.noted.as_ref();
        noted.is_some_and(|noted| self.number == noted.number + 1)
    }

    /// Returns true if there is a message to pull. If not, [`note`](Self::note) tells of the next
    /// one.
    pub(in super::super) fn ask(&mut self, messages: &MessageRing) -> bool {
        let has = self.has_more(messages);
        if let Some(noted) = &mut self.noted {
            // Not taken back: of two that ask, one may have been first, and sleep.
            noted.wanted |= !has;
        }
        has
    }

    /// Looks how many messages wait to be pulled. Returns whether one has come that somebody asked
    /// for.
    pub(in super::super) fn note(&mut self, messages: &MessageRing) -> Result<bool, Nonsense> {
        let Some(noted) = &mut self.noted else {
            return Ok(false);
        };
        if noted.number < self.number {
            (noted.number, noted.end) = (self.number, self.consumed);
        }
        // No more than there are credits.
        while noted.number < self.posted {
            match whole(messages, noted.number, noted.end, noted.room)? {
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
            // One more has no credit before one was pulled.
            if messages.has(noted.number) {
                return Err(Nonsense);
            }
            noted.watch = Watch::Message(noted.number);
        }
        let told = noted.wanted && noted.number > self.number;
        noted.wanted &= !told;
        Ok(told)
    }

    /// Takes the oldest message if it is there whole, and lends its credit anew. A message stays
    /// that is longer than `room`, or that says that the peer had a longer one.
    ///
    /// # Safety
    ///
    /// The memory of the Segments is valid and leased, and has `room` bytes.
    pub(in super::super) unsafe fn pull(
        &mut self,
        messages: &MessageRing,
        dst: &Segments,
        room: usize,
    ) -> Result<Option<Head>, Nonsense> {
        let Some(head) = self.next(messages)? else {
            return Ok(None);
        };
        let len = head.len as usize;
        match head.kind {
            Kind::TooLong => return Ok(Some(head)),
            Kind::Send | Kind::SendImm if len > room => return Ok(Some(head)),
            Kind::Send | Kind::SendImm if len <= INLINE => {
                let from = messages.incoming(self.number, len);
                // SAFETY: `len` bytes lie on both sides; the message ring's memory overlaps no
                // Job's.
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
        let lent = self.noted.as_ref().map_or(0, |noted| noted.room);
        self.post(messages, lent);
        Ok(Some(head))
    }

    /// Takes a message, or continues with it; what is copied in one go is bounded by `most`. `dst`
    /// and `room` are of the oldest receive, if one is posted.
    ///
    /// # Safety
    ///
    /// The memory of the Segments is valid and leased, and has `room` bytes.
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
        // It had to see the receive to send this.
        let (dst, room) = dst.ok_or(Nonsense)?;
        let len = head.len as usize;
        match head.kind {
            Kind::WriteImm | Kind::TooLong => {
                self.number += 1;
                return Ok(Got::All(head));
            }
            Kind::Send | Kind::SendImm if len > room => return Err(Nonsense),
            Kind::Send | Kind::SendImm => {}
        }
        if len <= INLINE {
            let from = messages.incoming(self.number, len);
            // SAFETY: `len` bytes lie on both sides; the message ring's memory overlaps no Job's.
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
