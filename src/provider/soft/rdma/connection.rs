//! An endpoint's end of a message ring, and how the peer hears of what is done there.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::sync::Arc;

use super::doorbell::DoorbellPage;
use super::messages::{Head, Kind, MessageRing, Nonsense, Presence, Receiving, Sending, Sent};
use super::payload::Identity;
use super::remote::{self, Step};
use crate::device::{RdmaJob, Segments, Verb};
use crate::error::{JobError, Reason};
use crate::process::Guarded;
use crate::sync::atomic::{Ordering, fence};

pub(super) struct Connection {
    pub(super) messages: Arc<MessageRing>,
    pub(super) doorbell: Arc<DoorbellPage>,
    /// Of the message ring, in the doorbell page.
    pub(super) index: u32,
    pub(super) peer: Identity,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// The first Job waits for the peer, which was told so.
    pub(super) wants: bool,
    /// What the peer watches, where it has nothing better.
    pub(super) stays: Option<Guarded>,
}

impl Connection {
    pub(super) fn new(
        messages: MessageRing,
        doorbell: Arc<DoorbellPage>,
        index: u32,
        peer: Identity,
    ) -> Connection {
        Connection {
            messages: Arc::new(messages),
            doorbell,
            index,
            peer,
            sending: Sending::default(),
            receiving: Receiving::default(),
            wants: false,
            stays: None,
        }
    }

    /// Gives memory back that an idle connection has no use for.
    pub(super) fn give_back(&mut self, rested: bool) -> bool {
        self.sending.give_back(&self.messages, rested)
    }

    /// A receive is posted. The peer must be notified.
    pub(super) fn post(&mut self, room: usize) {
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        self.receiving.post(&self.messages, room);
    }

    /// Lends the peer so many credits, for messages that are pulled.
    pub(super) fn lend(&mut self, credits: u32, room: usize) {
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        self.receiving = Receiving::pulled(&self.messages, credits, room);
    }

    /// Returns true if there is a message to pull.
    pub(super) fn has_message(&mut self) -> bool {
        self.receiving.ask(&self.messages)
    }

    /// Takes the oldest message, as [`Receiving::pull`].
    ///
    /// # Errors
    ///
    /// The peer wrote what no peer writes.
    ///
    /// # Safety
    ///
    /// The memory of the Segments is valid and leased, and has `room` bytes.
    pub(super) unsafe fn pull(
        &mut self,
        dst: &Segments,
        room: usize,
    ) -> Result<Option<Head>, Nonsense> {
        // SAFETY: as the caller promises.
        let pulled = unsafe { self.receiving.pull(&self.messages, dst, room) }?;
        if pulled.is_some() {
            self.notify_room();
        }
        Ok(pulled)
    }

    /// Something was published: the peer hears of it, if it does not look by itself. Returns false
    /// if it was found to have died.
    #[inline]
    pub(super) fn notify_message(&self) -> bool {
        // Pairs with the fences of those who set `parked` or arm, and look then.
        fence(Ordering::SeqCst);
        if self.messages.peer_is_parked() {
            self.doorbell.hint_peer(self.index);
        }
        self.doorbell.wake_peer()
    }

    /// A receive was posted, or bytes were taken: the peer hears of it if it waits for that.
    #[inline]
    pub(super) fn notify_room(&self) {
        // Pairs with the fence of `want`.
        fence(Ordering::SeqCst);
        if self.messages.peer_wants() {
            self.doorbell.hint_peer(self.index);
            self.doorbell.wake_peer();
        }
    }

    /// Something that the peer must look at, whatever it waits for.
    pub(super) fn notify_all(&self) {
        fence(Ordering::SeqCst);
        self.doorbell.hint_peer(self.index);
        self.doorbell.wake_peer();
    }

    /// The first Job waits for the peer, or does so no more. Who waits looks once more.
    pub(super) fn want(&mut self, wants: bool) {
        self.wants = wants;
        self.messages.set_wants(wants);
        fence(Ordering::SeqCst);
    }

    /// Checks whether the peer is there, or may come yet.
    ///
    /// # Errors
    ///
    /// How it has left.
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

    /// Asks whether the peer is there: a Job that moves nothing.
    ///
    /// # Errors
    ///
    /// How it has left, once everything that it sent before was received.
    pub(super) fn ask(&self) -> Result<Step, JobError> {
        let there = match self.presence() {
            Ok(()) if self.doorbell.has_died() => Err(JobError::of(Reason::PeerGone)),
            there => there,
        };
        match there {
            Ok(()) => Ok(Step::Done(0)),
            // Messages that are pulled are no work of who looks: it is woken once they were.
            Err(_) if self.receiving.has_more(&self.messages) => match self.receiving.is_pulled() {
                true => Ok(Step::Waits),
                false => Ok(Step::More),
            },
            Err(left) => Err(left),
        }
    }

    /// This end is closed.
    pub(super) fn leave(self, presence: Presence, endpoint: u32) {
        // A child of fork(2) has nothing of it.
        if self.messages.is_ours() {
            self.messages.say(presence);
            self.receiving.withdraw(&self.messages);
            self.notify_all();
            self.doorbell.leave(self.index, endpoint);
        }
    }

    /// Returns true if a Job that the peer hears of could be done at once.
    #[inline]
    pub(super) fn has_room(&self, job: &RdmaJob) -> bool {
        let len = match job.verb {
            Verb::Send(_) => job.len,
            _ => 0,
        };
        !self.doorbell.is_gone() && self.sending.has_room(&self.messages, len)
    }

    /// Does a part of a Job, of which so many bytes were done.
    ///
    /// # Errors
    ///
    /// What the Job fails with.
    ///
    /// # Safety
    ///
    /// The Job's memory is valid and leased.
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
                self.sending.tell(&self.messages, head(job))
            }
            // SAFETY: as the caller promises.
            _ => return unsafe { remote::step(job, &self.peer, copied, most) },
        };
        match sent {
            Sent::All => Ok(Step::Done(job.len as u64)),
            Sent::Part => Ok(Step::More),
            Sent::NoReceive | Sent::NoRoom => Ok(Step::Waits),
            Sent::TooLong(room) => Err(JobError::new(
                Reason::MessageTooLong,
                job.len as u64,
                room.into(),
            )),
        }
    }
}

impl Verb {
    /// Returns true if the peer hears of it.
    #[inline(always)]
    pub(super) fn is_told(&self) -> bool {
        matches!(self, Verb::Send(_) | Verb::Write(Some(_)))
    }
}

/// Returns what a message says.
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
