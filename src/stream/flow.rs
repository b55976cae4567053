//! Frames and credits: the account of what each side may send, in plain numbers.
//!
//! A frame begins with [`HEAD`] bytes: its kind, an acknowledgement, and credits (docs/wire.md). A
//! frame of data takes a credit. A frame of credits takes none, but at most [`UNACKNOWLEDGED`] of
//! them may be unacknowledged by the peer. The single frame that ends the data takes none either.
//! So a side that posts `n` receives gives `n - reserved` credits ([`reserved`]), and no frame
//! meets an empty receive queue.
//!
//! Over a transport that does not acknowledge messages (iWARP), a side confirms the peer's end with
//! a frame of its own, which takes no credit either.
//!
//! A write that cannot be sent at once as a frame of its own begins a frame, and further writes
//! fill that frame until it is sent (ADR 0046).

use crate::error::{JobError, Reason};

/// The length of a frame's header, in bytes.
pub(super) const HEAD: usize = 4;

/// The maximum number of frames of credits that the peer has not acknowledged. With only one, a
/// reader that has woken a writer could not give the peer further credits until the writer runs.
const UNACKNOWLEDGED: u8 = 2;

/// Returns the number of posted receives that are not given as credits: they are for frames of
/// credits, for the end, and, if the sides confirm ends, for the confirmation.
pub(super) const fn reserved(confirms: bool) -> usize {
    UNACKNOWLEDGED as usize + 1 + confirms as usize
}

/// The maximum number of credits that a side may have. A peer that gives more breaks the protocol.
const MOST: u32 = 1 << 16;

/// The kinds of frames, by their numbers in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// At least one byte of the stream.
    Data = 0,
    /// The end of the stream.
    End = 1,
    /// At least one credit, and no data.
    Credits = 2,
    /// This side has received the peer's end, and so everything that the peer has sent.
    Confirmation = 3,
}

/// The account of one side: which frames it may send, and which its peer may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// The maximum number of bytes of data in a frame of this side.
    payload: usize,
    /// The number of bytes in the frame that was begun. It is the next frame with data that this
    /// side sends.
    begun: usize,
    /// The number of frames with data that this side may send now.
    credits: u32,
    /// The number of frames with data that the peer was allowed to send so far (`granted`), and the
    /// number that have arrived (`taken`).
    granted: u64,
    taken: u64,
    /// The maximum number of frames with data that the peer may send before the application reads.
    window: usize,
    /// The number of frames of credits that the peer has not acknowledged.
    unacknowledged: u8,
    /// The number of the peer's frames of credits that this side has not acknowledged.
    owes: u8,
    /// True if this side has sent its end (`closed`), and if the peer has sent its own (`ended`).
    closed: bool,
    ended: bool,
    /// True if the sides confirm ends; if this side has confirmed the peer's end (`answered`); and
    /// if the peer has confirmed this side's end (`confirmed`).
    confirms: bool,
    answered: bool,
    confirmed: bool,
}

fn nonsense() -> JobError {
    JobError::of(Reason::PeerNonsense)
}

impl Flow {
    /// Returns an account without credits. `frame` is the length of this side's longest frame, and
    /// `window` the maximum number of frames with data that the peer may send before the
    /// application reads. `confirms` is true if the sides confirm ends.
    pub(super) fn new(frame: usize, window: usize, confirms: bool) -> Flow {
        Flow {
            payload: frame - HEAD,
            begun: 0,
            credits: 0,
            granted: 0,
            taken: 0,
            window,
            unacknowledged: 0,
            owes: 0,
            closed: false,
            ended: false,
            confirms,
            answered: false,
            confirmed: false,
        }
    }

    /// Returns true if this side may send a frame with data now.
    pub(super) fn may_send(&self) -> bool {
        self.credits > 0
    }

    /// Limits this side's frames to the length that the peer takes.
    pub(super) fn limit(&mut self, frame: usize) {
        self.payload = self.payload.min(frame - HEAD);
    }

    /// Returns the maximum number of bytes of data in a frame.
    pub(super) fn payload(&self) -> usize {
        self.payload
    }

    /// Accounts for a write of `len` bytes into the frame that was begun, or for a small write that
    /// begins a frame. Returns how many bytes fit; 0 if the write must wait.
    pub(super) fn fill(&mut self, len: usize) -> usize {
        // A write that fills more than half of a frame is not copied, but sent directly from its
        // slices.
        if self.begun == 0 && len > self.payload / 2 {
            return 0;
        }
        let taken = len.min(self.payload - self.begun);
        self.begun += taken;
        taken
    }

    /// Returns how many frames with data this side may send now.
    pub(super) fn credits(&self) -> u32 {
        self.credits
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns true if the peer waits for an acknowledgement, and `lent` posted receives do not
    /// allow one.
    pub(super) fn shall_lend(&self, lent: usize) -> bool {
        self.owes > 0 && self.acknowledgeable(lent) == 0
    }

    /// Returns how many frames of credits may be acknowledged while `lent` receives are posted.
    /// Each acknowledgement lets the peer send another frame of credits, which needs a receive in
    /// addition to those for all data that was granted and for the end.
    fn acknowledgeable(&self, lent: usize) -> u8 {
        let taken_up = self.granted + reserved(self.confirms) as u64 - u64::from(self.owes);
        let capacity = (self.taken + lent as u64).saturating_sub(taken_up);
        self.owes.min(capacity.try_into().unwrap_or(u8::MAX))
    }

    /// Returns true if the sides confirm ends.
    pub(super) fn confirms(&self) -> bool {
        self.confirms
    }

    /// Returns true if this side needs no confirmation of its end, or has it.
    pub(super) fn is_confirmed(&self) -> bool {
        !self.confirms || self.confirmed
    }

    /// Returns true if the peer has ended its direction of the stream.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Adds credits that the peer gives.
    ///
    /// # Errors
    ///
    /// `PeerNonsense` if this side would have more than `MOST` credits.
    pub(super) fn add(&mut self, credits: u16) -> Result<(), JobError> {
        self.credits += u32::from(credits);
        match self.credits <= MOST {
            true => Ok(()),
            false => Err(nonsense()),
        }
    }

    /// Accounts for a frame of the peer, and returns its kind.
    ///
    /// # Errors
    ///
    /// `PeerNonsense` if the peer may not send such a frame now.
    pub(super) fn take(&mut self, frame: &[u8]) -> Result<Kind, JobError> {
        let (&[kind, acknowledges, high, low], payload) =
            frame.split_first_chunk::<HEAD>().ok_or_else(nonsense)?;
        let credits = u16::from_be_bytes([high, low]);
        let kind = match (kind, payload.is_empty()) {
            (0, false) => Kind::Data,
            (1, true) => Kind::End,
            // The first frame of credits over a network is padded to the length of a packet.
            (2, _) if credits > 0 && self.owes < UNACKNOWLEDGED => Kind::Credits,
            (3, true) if self.confirms && self.closed && !self.confirmed => Kind::Confirmation,
            _ => return Err(nonsense()),
        };
        let left = self.unacknowledged.checked_sub(acknowledges);
        self.unacknowledged = left.ok_or_else(nonsense)?;
        match kind {
            Kind::Credits => self.owes += 1,
            Kind::Data if self.taken < self.granted && !self.ended => self.taken += 1,
            Kind::End if !self.ended => self.ended = true,
            Kind::Confirmation => self.confirmed = true,
            _ => return Err(nonsense()),
        }
        self.add(credits)?;
        Ok(kind)
    }

    /// Grants the peer all credits that `lent` posted receives allow, and returns how many.
    pub(super) fn grant(&mut self, lent: usize) -> u16 {
        let credits = self.grantable(lent).try_into().unwrap_or(u16::MAX);
        self.granted += u64::from(credits);
        credits
    }

    fn grantable(&self, lent: usize) -> u64 {
        let all = self.taken + (lent as u64).saturating_sub(reserved(self.confirms) as u64);
        all.saturating_sub(self.granted)
    }

    /// Returns the kind of the frame that is due while `lent` receives are posted, and is not
    /// caused by a write. A frame of credits is due if the peer has no credit left, or would get at
    /// least half of a window at once.
    pub(super) fn due(&self, lent: usize) -> Option<Kind> {
        if self.ended {
            let due = self.confirms && !self.answered;
            return due.then_some(Kind::Confirmation);
        }
        let credits = self.grantable(lent);
        let due = credits > 0
            && self.unacknowledged < UNACKNOWLEDGED
            && (self.granted == self.taken || 2 * credits >= self.window as u64);
        due.then_some(Kind::Credits)
    }

    /// Returns the header of the next frame, and accounts for that frame. For data the caller has
    /// checked that there is a credit; if a frame was begun, it is the next frame. The header
    /// acknowledges as many of the peer's frames of credits as `lent` posted receives allow.
    pub(super) fn head(&mut self, kind: Kind, lent: usize) -> [u8; HEAD] {
        let [high, low] = self.grant(lent).to_be_bytes();
        let acknowledges = self.acknowledgeable(lent);
        self.owes -= acknowledges;
        match kind {
            Kind::Data => (self.credits, self.begun) = (self.credits - 1, 0),
            Kind::End => self.closed = true,
            Kind::Credits => self.unacknowledged += 1,
            Kind::Confirmation => self.answered = true,
        }
        [kind as u8, acknowledges, high, low]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A side with its receive queue: the frames in it, and the receives that the application still
    /// holds. A receive whose frame was taken is posted again once the application has read the
    /// frame.
    struct Side {
        flow: Flow,
        capacity: usize,
        posted: usize,
        came: VecDeque<Vec<u8>>,
        unread: usize,
        closed: bool,
        /// The bytes of the frame that was begun, and the number of bytes written and read in all.
        begun: Vec<u8>,
        written: usize,
        read: usize,
    }

    /// The longest frame of these tests.
    const FRAME: usize = HEAD + 8;

    impl Side {
        fn lend(&mut self) {
            self.posted = self.capacity - self.unread;
        }

        /// Puts a frame into the receive queue of `other`, which must have a posted receive.
        fn send(&mut self, kind: Kind, data: &[u8], other: &mut Side) {
            let mut frame = self.flow.head(kind, self.posted).to_vec();
            frame.extend(data);
            self.closed |= kind == Kind::End;
            assert!(other.came.len() < other.posted, "an empty receive queue");
            other.came.push_back(frame);
        }

        /// Returns bytes that count up, so that each value shows its position.
        fn bytes(&mut self, len: usize) -> Vec<u8> {
            let from = self.written;
            self.written += len;
            (from..self.written).map(|at| at as u8).collect()
        }

        /// Sends the frame that was begun, if it may be sent.
        fn send_begun(&mut self, other: &mut Side) {
            if self.flow.begun > 0 && self.flow.may_send() && !self.flow.shall_lend(self.posted) {
                let data = std::mem::take(&mut self.begun);
                assert!(!data.is_empty() && data.len() <= self.flow.payload());
                self.send(Kind::Data, &data, other);
                assert_eq!(self.flow.begun, 0);
            }
        }

        /// Writes `len` bytes, as a frame of their own or into the frame that was begun. `full`
        /// says that too many frames are in flight.
        fn write(&mut self, len: usize, full: bool, other: &mut Side) {
            if !full {
                self.send_begun(other);
            }
            let waits = self.flow.shall_lend(self.posted) || !self.flow.may_send() || full;
            if self.flow.begun > 0 || waits {
                let taken = self.flow.fill(len);
                assert!(taken <= len);
                let bytes = self.bytes(taken);
                self.begun.extend(bytes);
            } else {
                let bytes = self.bytes(len.min(self.flow.payload()));
                self.send(Kind::Data, &bytes, other);
            }
        }

        fn grant(&mut self, other: &mut Side) {
            if let Some(kind) = self.flow.due(self.capacity - self.unread) {
                self.lend();
                self.send(kind, &[], other);
            }
        }
    }

    fn pair(windows: [usize; 2], confirms: bool) -> [Side; 2] {
        let receives = windows.map(|window| window + reserved(confirms));
        let mut sides = [0, 1].map(|side: usize| Side {
            flow: Flow::new(FRAME, windows[side], confirms),
            capacity: receives[side],
            posted: receives[side],
            came: VecDeque::new(),
            unread: 0,
            closed: false,
            begun: Vec::new(),
            written: 0,
            read: 0,
        });
        let credits = [0, 1].map(|side: usize| sides[side].flow.grant(receives[side]));
        sides[0].flow.add(credits[1]).unwrap();
        sides[1].flow.add(credits[0]).unwrap();
        sides
    }

    proptest! {
        #![proptest_config(crate::stream::cases(4_000))]

        /// Whatever both sides do, each frame finds a receive, and bytes arrive in the order in
        /// which they were written. When both sides have read everything, both may send, and the
        /// frame that was begun has arrived without another write. If the sides confirm ends, each
        /// end is confirmed. Some 3,000,000 steps.
        #[test]
        fn no_frame_meets_an_empty_receive_queue_and_no_side_waits_for_ever(
            windows in [1usize..9, 1usize..9],
            confirms: bool,
            steps in prop::collection::vec((0usize..2, 0u8..60), 0..1_500),
        ) {
            let mut sides = pair(windows, confirms);
            let act = |side: usize, act: u8, sides: &mut [Side; 2]| {
                let (left, right) = sides.split_at_mut(1);
                let (this, other) = match side {
                    0 => (&mut left[0], &mut right[0]),
                    _ => (&mut right[0], &mut left[0]),
                };
                match act {
                    59 if !this.closed && this.flow.begun == 0 => this.send(Kind::End, &[], other),
                    58 => {
                        this.lend();
                        this.send_begun(other);
                    }
                    40.. if !this.closed => {
                        // The pool may have no free Buf at first.
                        if act.is_multiple_of(2) {
                            this.lend();
                        }
                        this.write(usize::from(act - 39), act.is_multiple_of(5), other);
                    }
                    20..40 => if let Some(frame) = this.came.pop_front() {
                        let kind = this.flow.take(&frame).unwrap();
                        this.unread += usize::from(kind == Kind::Data);
                        this.posted -= 1;
                        for &byte in &frame[HEAD..] {
                            assert_eq!(byte, this.read as u8);
                            this.read += 1;
                        }
                    },
                    ..20 if this.unread > 0 => this.unread -= 1,
                    _ => {}
                }
                if act < 40 && act.is_multiple_of(2) {
                    this.grant(other);
                }
            };
            for (side, step) in steps {
                act(side, step, &mut sides);
            }
            for _ in 0..40 {
                for step in [20, 0, 58] {
                    act(0, step, &mut sides);
                    act(1, step, &mut sides);
                }
            }
            prop_assert!(sides.iter().all(|side| side.flow.may_send() || side.closed));
            for [side, peer] in [[0, 1], [1, 0]].map(|pair| pair.map(|side: usize| &sides[side])) {
                prop_assert_eq!(peer.flow.is_ended(), side.closed);
                prop_assert_eq!(side.flow.confirmed, side.closed && confirms);
            }
            prop_assert_eq!(sides[0].written, sides[1].read);
            prop_assert_eq!(sides[1].written, sides[0].read);
        }

        /// Each frame is taken or refused, and the peer never gets more than it was granted.
        #[test]
        fn garbage_is_refused_or_counted(
            frames in prop::collection::vec(prop::collection::vec(0u8..4, 0..6), 0..40),
        ) {
            let mut flow = Flow::new(FRAME, 4, false);
            flow.grant(4 + reserved(false));
            for frame in frames {
                if flow.take(&frame).is_err() {
                    break;
                }
                prop_assert!(flow.taken <= flow.granted && flow.credits <= MOST);
            }
        }
    }

    #[test]
    fn a_peer_that_sends_more_than_it_may_is_refused() {
        let data = [0, 0, 0, 0, 7];
        let mut flow = Flow::new(FRAME, 3, false);
        assert_eq!(flow.grant(2 + reserved(false)), 2);
        assert_eq!(flow.take(&data), Ok(Kind::Data));
        assert_eq!(flow.take(&data), Ok(Kind::Data));
        assert_eq!(flow.take(&data), Err(nonsense()));
        // A third frame of credits while none is acknowledged, and an acknowledgement that is not
        // due.
        let mut flow = Flow::new(FRAME, 3, false);
        assert_eq!(flow.take(&[2, 0, 0, 1]), Ok(Kind::Credits));
        assert_eq!(flow.take(&[2, 0, 0, 1]), Ok(Kind::Credits));
        assert_eq!(flow.take(&[2, 0, 0, 1]), Err(nonsense()));
        assert_eq!(
            Flow::new(FRAME, 3, false).take(&[2, 1, 0, 1]),
            Err(nonsense())
        );
        // Data after the end.
        let mut flow = Flow::new(FRAME, 9, false);
        flow.grant(9);
        assert_eq!(flow.take(&[1, 0, 0, 0]), Ok(Kind::End));
        assert_eq!(flow.take(&data), Err(nonsense()));
        // A confirmation where ends are not confirmed, before the end, and a second one.
        let confirmation = [3, 0, 0, 0];
        let mut flow = Flow::new(FRAME, 3, false);
        flow.head(Kind::End, 0);
        assert_eq!(flow.take(&confirmation), Err(nonsense()));
        let mut flow = Flow::new(FRAME, 3, true);
        assert_eq!(flow.take(&confirmation), Err(nonsense()));
        flow.head(Kind::End, 0);
        assert_eq!(flow.take(&confirmation), Ok(Kind::Confirmation));
        assert_eq!(flow.take(&confirmation), Err(nonsense()));
    }
}
