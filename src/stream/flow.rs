//! Frames and credits: what each side may send, as plain numbers.
//!
//! A frame begins with [`HEAD`] bytes: its kind, an acknowledgement, and credits (docs/wire.md).
//! A frame of data takes a credit. A frame of credits alone takes none, but there is at most one of
//! them that the peer has not acknowledged; nor does the end of the data, of which there is one. So
//! a side that lends room for `n` frames gives `n - RESERVED` credits, and no frame meets an empty
//! receive queue.

use crate::error::{JobError, Reason};

/// Bytes of a frame before its payload.
pub(super) const HEAD: usize = 4;

/// Room that is lent and not given as credits: for a frame of credits, and for the end.
pub(super) const RESERVED: usize = 2;

/// The most credits that a side may have. A peer that gives more breaks the protocol.
const MOST: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of the stream, of at least one byte.
    Data,
    /// The end of the stream.
    End,
    /// Credits alone, at least one.
    Credits,
}

/// One side's account of both directions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Frames with data that this side may send now.
    credits: u32,
    /// Frames with data that the peer may send in all, and how many of them were taken.
    granted: u64,
    taken: u64,
    /// The most frames with data that the peer may send before the application reads.
    window: usize,
    /// The peer has not acknowledged the last frame of credits.
    unacknowledged: bool,
    /// This side has taken a frame of credits, and not acknowledged it.
    owes: bool,
    ended: bool,
}

fn nonsense() -> JobError {
    JobError::of(Reason::PeerNonsense)
}

impl Flow {
    pub(super) fn new(window: usize) -> Flow {
        Flow {
            credits: 0,
            granted: 0,
            taken: 0,
            window,
            unacknowledged: false,
            owes: false,
            ended: false,
        }
    }

    /// Returns whether a frame with data may be sent now.
    pub(super) fn may_send(&self) -> bool {
        self.credits > 0
    }

    /// Returns how many frames with data may be sent now, and how many of the peer's were taken.
    pub(super) fn credits(&self) -> u32 {
        self.credits
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns whether the peer waits for an acknowledgement that must not be given yet, because
    /// there is room for `lent` frames alone.
    pub(super) fn shall_lend(&self, lent: usize) -> bool {
        self.owes && !self.has_reserve(lent)
    }

    /// Whether there is room for all data that was granted, for a frame of credits and for the end.
    fn has_reserve(&self, lent: usize) -> bool {
        self.taken + lent as u64 >= self.granted + RESERVED as u64
    }

    /// Returns whether the peer's stream has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Adds credits that the peer gives.
    ///
    /// # Errors
    ///
    /// `PeerNonsense` for more than a side may have.
    pub(super) fn add(&mut self, credits: u16) -> Result<(), JobError> {
        self.credits += u32::from(credits);
        match self.credits <= MOST {
            true => Ok(()),
            false => Err(nonsense()),
        }
    }

    /// Takes a frame of the peer's.
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
            // The first one over a network is as long as a packet.
            (2, _) if credits > 0 && !self.owes => Kind::Credits,
            _ => return Err(nonsense()),
        };
        match acknowledges {
            0 => {}
            1 if self.unacknowledged => self.unacknowledged = false,
            _ => return Err(nonsense()),
        }
        match kind {
            Kind::Credits => self.owes = true,
            Kind::Data if self.taken < self.granted && !self.ended => self.taken += 1,
            Kind::End if !self.ended => self.ended = true,
            _ => return Err(nonsense()),
        }
        self.add(credits)?;
        Ok(kind)
    }

    /// Gives the peer all credits that there is room for, if there is room for `lent` frames.
    pub(super) fn grant(&mut self, lent: usize) -> u16 {
        let credits = self.grantable(lent).try_into().unwrap_or(u16::MAX);
        self.granted += u64::from(credits);
        credits
    }

    fn grantable(&self, lent: usize) -> u64 {
        let all = self.taken + lent.saturating_sub(RESERVED) as u64;
        all.saturating_sub(self.granted)
    }

    /// Returns whether a frame of credits is to be sent now, if there is room for `lent` frames: if
    /// the peer has no credit left, or would get half of a window at once.
    pub(super) fn shall_grant(&self, lent: usize) -> bool {
        let credits = self.grantable(lent);
        credits > 0
            && !self.unacknowledged
            && !self.ended
            && (self.granted == self.taken || 2 * credits >= self.window as u64)
    }

    /// Returns the head of the next frame, and accounts for it. For data there is a credit. It
    /// acknowledges the peer's frame of credits once there is room for another one.
    pub(super) fn head(&mut self, kind: Kind, lent: usize) -> [u8; HEAD] {
        let [high, low] = self.grant(lent).to_be_bytes();
        let acknowledges = self.owes && self.has_reserve(lent);
        self.owes &= !acknowledges;
        let number = match kind {
            Kind::Data => 0,
            Kind::End => 1,
            Kind::Credits => 2,
        };
        match kind {
            Kind::Data => self.credits -= 1,
            Kind::End => {}
            Kind::Credits => self.unacknowledged = true,
        }
        [number, acknowledges.into(), high, low]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A side with its receive queue: what has come, and room that the application has not given
    /// back. What was taken is posted again later.
    struct Side {
        flow: Flow,
        room: usize,
        posted: usize,
        came: VecDeque<Vec<u8>>,
        unread: usize,
        closed: bool,
    }

    impl Side {
        fn lend(&mut self) {
            self.posted = self.room - self.unread;
        }

        /// Puts a frame into the other side's queue, which has room for it.
        fn send(&mut self, kind: Kind, other: &mut Side) {
            let mut frame = self.flow.head(kind, self.posted).to_vec();
            frame.extend((kind == Kind::Data).then_some(7));
            self.closed |= kind == Kind::End;
            assert!(other.came.len() < other.posted, "an empty receive queue");
            other.came.push_back(frame);
        }

        fn grant(&mut self, other: &mut Side) {
            if self.flow.shall_grant(self.room - self.unread) {
                self.lend();
                self.send(Kind::Credits, other);
            }
        }
    }

    fn pair(windows: [usize; 2]) -> [Side; 2] {
        let mut sides = windows.map(|window| Side {
            flow: Flow::new(window),
            room: window + RESERVED,
            posted: window + RESERVED,
            came: VecDeque::new(),
            unread: 0,
            closed: false,
        });
        let credits = [0, 1].map(|side: usize| sides[side].flow.grant(windows[side] + RESERVED));
        sides[0].flow.add(credits[1]).unwrap();
        sides[1].flow.add(credits[0]).unwrap();
        sides
    }

    proptest! {
        /// Whatever both sides do, a frame finds room; and when both have read everything, both may
        /// send.
        #[test]
        fn no_frame_meets_an_empty_receive_queue_and_nobody_waits_for_ever(
            windows in [1usize..9, 1usize..9],
            steps in prop::collection::vec((0usize..2, 0u8..60), 0..400),
        ) {
            let mut sides = pair(windows);
            let act = |side: usize, act: u8, sides: &mut [Side; 2]| {
                let (left, right) = sides.split_at_mut(1);
                let (this, other) = match side {
                    0 => (&mut left[0], &mut right[0]),
                    _ => (&mut right[0], &mut left[0]),
                };
                match act {
                    59 if !this.closed => this.send(Kind::End, other),
                    40.. if this.flow.may_send() && !this.closed => {
                        // The pool may have nothing at first.
                        if act.is_multiple_of(2) {
                            this.lend();
                        }
                        if !this.flow.shall_lend(this.posted) {
                            this.send(Kind::Data, other);
                        }
                    }
                    20..40 => if let Some(frame) = this.came.pop_front() {
                        let kind = this.flow.take(&frame).unwrap();
                        this.unread += usize::from(kind == Kind::Data);
                        this.posted -= 1;
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
                for step in [20, 0] {
                    act(0, step, &mut sides);
                    act(1, step, &mut sides);
                }
            }
            prop_assert!(sides.iter().all(|side| side.flow.may_send() || side.closed));
        }

        /// Whatever comes is taken or refused, and never gives a peer more than it was granted.
        #[test]
        fn garbage_is_refused_or_counted(
            frames in prop::collection::vec(prop::collection::vec(0u8..4, 0..6), 0..40),
        ) {
            let mut flow = Flow::new(4);
            flow.grant(6);
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
        let mut flow = Flow::new(3);
        assert_eq!(flow.grant(4), 2);
        assert_eq!(flow.take(&data), Ok(Kind::Data));
        assert_eq!(flow.take(&data), Ok(Kind::Data));
        assert_eq!(flow.take(&data), Err(nonsense()));
        // Two frames of credits of which none was acknowledged, or that nobody waits for.
        let mut flow = Flow::new(3);
        assert_eq!(flow.take(&[2, 0, 0, 1]), Ok(Kind::Credits));
        assert_eq!(flow.take(&[2, 0, 0, 1]), Err(nonsense()));
        assert_eq!(Flow::new(3).take(&[2, 1, 0, 1]), Err(nonsense()));
        // More after the end.
        let mut flow = Flow::new(9);
        flow.grant(9);
        assert_eq!(flow.take(&[1, 0, 0, 0]), Ok(Kind::End));
        assert_eq!(flow.take(&data), Err(nonsense()));
    }
}
