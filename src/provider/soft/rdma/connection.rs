//! An endpoint's end of a message ring, and how this end notifies the peer of changes.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::sync::Arc;

use super::doorbell::DoorbellPage;
use super::messages::{Head, Kind, MessageRing, Nonsense, Presence, Receiving, Sending, Sent};
use super::payload::Identity;
use super::remote::{self, Step};
use crate::device::{RdmaJob, Segments, Verb};
use crate::error::{JobError, Reason};
use crate::sync::atomic::{Ordering, fence};

/// A connection's message ring is kept for reuse only if its two streams have carried at most this
/// number of bytes.
const LITTLE: u64 = 64 << 10;
/// The maximum size of a message ring that is kept for reuse, in bytes.
const SMALL: usize = 2 << 20;

pub(super) struct Connection {
    pub(super) messages: Arc<MessageRing>,
    pub(super) doorbell: Arc<DoorbellPage>,
    /// The index of the message ring in the doorbell page, and its number there.
    pub(super) index: u32,
    pub(super) number: u32,
    pub(super) peer: Identity,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// True if the first job waits for the peer, and the peer can see that.
    pub(super) wants: bool,
}

impl Connection {
    pub(super) fn new(
        messages: MessageRing,
        doorbell: Arc<DoorbellPage>,
        (index, number): (u32, u32),
        peer: Identity,
    ) -> Connection {
        Connection {
            messages: Arc::new(messages),
            doorbell,
            index,
            number,
            peer,
            sending: Sending::default(),
            receiving: Receiving::default(),
            wants: false,
        }
    }

    /// Returns memory that an idle connection does not need. The result is true if there was any.
    pub(super) fn give_back(&mut self, rested: bool) -> bool {
        self.sending.give_back(&self.messages, rested)
    }

    /// Posts a receive. The caller notifies the peer.
    pub(super) fn post(&mut self, capacity: usize) {
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        self.receiving.post(&self.messages, capacity);
    }

    /// Gives the peer `credits` for messages that are pulled, of at most `capacity` bytes each.
    pub(super) fn lend(&mut self, credits: u32, capacity: usize) {
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        self.receiving = Receiving::pulled(&self.messages, credits, capacity);
    }

    /// Returns true if there is a message to pull.
    pub(super) fn has_message(&mut self) -> bool {
        self.receiving.ask(&self.messages)
    }

    /// Takes the oldest message, as [`Receiving::pull`].
    ///
    /// # Errors
    ///
    /// `Nonsense` if the peer has broken the protocol.
    ///
    /// # Safety
    ///
    /// The memory of `dst` is valid and leased, and has `capacity` bytes.
    pub(super) unsafe fn pull(
        &mut self,
        dst: &Segments,
        capacity: usize,
    ) -> Result<Option<Head>, Nonsense> {
        // SAFETY: as the caller promises.
        let pulled = unsafe { self.receiving.pull(&self.messages, dst, capacity) }?;
        if pulled.is_some() {
            self.notify_freed();
        }
        Ok(pulled)
    }

    /// Notifies the peer of a message, unless the peer polls by itself. Returns false if the peer's
    /// process has ended: its socket is closed, but it has not closed the connection properly.
    #[inline]
    pub(super) fn notify_message(&self) -> bool {
        // Pairs with the fence of a peer that parks or arms and then polls.
        fence(Ordering::SeqCst);
        if self.messages.peer_is_parked() {
            self.doorbell.hint_peer(self.index);
        }
        // A peer that has left may close its socket. The peer then has taken the message before, or
        // was leaving when it was sent.
        self.doorbell.wake_peer() || self.messages.peer() >= Presence::Closed
    }

    /// Notifies the peer that a receive was posted or that bytes were taken, if the peer waits for
    /// that.
    #[inline]
    pub(super) fn notify_freed(&self) {
        // Pairs with the fence of `want`.
        fence(Ordering::SeqCst);
        if self.messages.peer_wants() {
            self.doorbell.hint_peer(self.index);
            self.doorbell.wake_peer();
        }
    }

    /// Notifies the peer unconditionally.
    pub(super) fn notify_all(&self) {
        fence(Ordering::SeqCst);
        self.doorbell.hint_peer(self.index);
        self.doorbell.wake_peer();
    }

    /// Tells the peer whether this side's first job waits for it. A caller that waits must then
    /// poll once more.
    pub(super) fn want(&mut self, wants: bool) {
        self.wants = wants;
        self.messages.set_wants(wants);
        fence(Ordering::SeqCst);
    }

    /// Checks that the peer has not left.
    ///
    /// # Errors
    ///
    /// `PeerClosed`, `PeerFailed` or `PeerGone`.
    pub(super) fn presence(&self) -> Result<(), JobError> {
        let gone = match self.messages.peer() {
            Presence::Closed => Reason::PeerClosed,
            Presence::Failed => Reason::PeerFailed,
            Presence::Absent | Presence::Connected if self.doorbell.is_dead() => Reason::PeerGone,
            Presence::Absent | Presence::Connected => return Ok(()),
        };
        Err(JobError::of(gone))
    }

    /// Returns true if messages wait to be pulled.
    pub(super) fn has_to_be_pulled(&self) -> bool {
        self.receiving.is_pulled() && self.receiving.has_more(&self.messages)
    }

    /// Checks that the peer is connected, for a job that moves no bytes.
    ///
    /// # Errors
    ///
    /// `PeerClosed`, `PeerFailed` or `PeerGone`, once everything that the peer had sent was
    /// received.
    pub(super) fn ask(&self) -> Result<Step, JobError> {
        let there = match self.presence() {
            Ok(()) if self.doorbell.has_died() => Err(JobError::of(Reason::PeerGone)),
            there => there,
        };
        match there {
            Ok(()) => Ok(Step::Done(0)),
            // The reaper does not take messages that are pulled: this endpoint is polled again once
            // the caller has pulled them.
            Err(_) if self.receiving.has_more(&self.messages) => match self.receiving.is_pulled() {
                true => Ok(Step::Waits),
                false => Ok(Step::More),
            },
            Err(left) => Err(left),
        }
    }

    /// Closes this end of the connection.
    pub(super) fn leave(self, presence: Presence, endpoint: u32) {
        // A child of fork(2) has no mapping of the message ring.
        if !self.messages.is_ours() {
            return;
        }
        self.messages.say(presence);
        self.receiving.withdraw(&self.messages);
        // A peer that has left does not poll any more.
        if matches!(self.messages.peer(), Presence::Absent | Presence::Connected) {
            self.notify_all();
        }
        let kept = self.is_worth_keeping(presence).then_some(self.messages);
        self.doorbell
            .leave((self.index, self.number), endpoint, kept);
    }

    /// Returns true if the next connection to the peer's process may reuse this message ring: one
    /// side has closed the connection in good order, whether or not the other has noticed. Only
    /// rings that are small and have carried few bytes are kept, since the bytes stay in memory.
    fn is_worth_keeping(&self, presence: Presence) -> bool {
        let carried = self.sending.produced() + self.receiving.consumed();
        let is_in_order = match self.messages.peer() {
            Presence::Closed => true,
            Presence::Connected | Presence::Failed => presence == Presence::Closed,
            Presence::Absent => false,
        };
        is_in_order && carried <= LITTLE && self.messages.len() <= SMALL
    }

    /// Returns true if a job that notifies the peer could be completed at once.
    #[inline]
    pub(super) fn has_capacity(&self, job: &RdmaJob) -> bool {
        let len = match job.verb {
            Verb::Send(_) => job.len,
            _ => 0,
        };
        !self.doorbell.is_gone() && self.sending.has_capacity(&self.messages, len)
    }

    /// Does a part of `job`, of which `*copied` bytes are done. Copies at most `most` bytes.
    ///
    /// # Errors
    ///
    /// The error with which the job fails.
    ///
    /// # Safety
    ///
    /// The job's memory is valid and leased.
    pub(super) unsafe fn step(
        &mut self,
        job: &RdmaJob,
        copied: &mut usize,
        most: usize,
    ) -> Result<Step, JobError> {
        let sent = match job.verb {
            Verb::Write(None) | Verb::Read if job.remote.is_none() => return self.ask(),
            Verb::Send(_) => {
                // SAFETY: as the caller promises: the source has `len` bytes.
                let sent = unsafe {
                    self.sending
                        .send(&self.messages, head(job), &job.local, most)
                };
                *copied = self.sending.part();
                sent.map_err(|_| JobError::of(Reason::PeerNonsense))?
            }
            Verb::Write(immediate) => {
                if *copied < job.len || job.len == 0 {
                    // SAFETY: as the caller promises.
                    let step = unsafe { remote::step(job, &self.peer, copied, most) }?;
                    if immediate.is_none() || step == Step::More {
                        return Ok(step);
                    }
                }
                self.sending.notify_peer(&self.messages, head(job))
            }
            // SAFETY: as the caller promises.
            _ => return unsafe { remote::step(job, &self.peer, copied, most) },
        };
        match sent {
            Sent::All => Ok(Step::Done(job.len as u64)),
            Sent::Part => Ok(Step::More),
            Sent::NoReceive | Sent::IsFull => Ok(Step::Waits),
            Sent::TooLong(capacity) => Err(JobError::new(
                Reason::MessageTooLong,
                job.len as u64,
                capacity.into(),
            )),
        }
    }
}

impl Verb {
    /// Returns true if the peer is notified of the operation.
    #[inline(always)]
    pub(super) fn is_told(&self) -> bool {
        matches!(self, Verb::Send(_) | Verb::Write(Some(_)))
    }
}

/// Returns the header of the message for a job.
fn head(job: &RdmaJob) -> Head {
    let (kind, immediate) = match job.verb {
        Verb::Send(None) => (Kind::Send, 0),
        Verb::Send(Some(immediate)) => (Kind::SendImm, immediate),
        Verb::Write(immediate) => (Kind::WriteImm, immediate.unwrap_or(0)),
        Verb::Read | Verb::CompareSwap { .. } | Verb::FetchAdd(_) => (Kind::Send, 0),
    };
    Head {
        kind,
        len: u32::try_from(job.len).unwrap_or(u32::MAX),
        immediate,
    }
}
