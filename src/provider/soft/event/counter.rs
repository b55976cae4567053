//! One side of a sync event: the counter, who is woken when it changes, and how it ends.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64 as Number, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use super::super::bell;
use super::super::fabric::{self, EVENT, Ended, Process, Published};
use super::payload::EventInfo;
use super::port::Port;
use super::words::{NOBODY, Side, Words};
use crate::device::{Backing, EventCounter, EventJob, EventWait};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::process::Guarded;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::{Mutex, MutexGuard, lock, seq_cst_order};

pub(in super::super) struct SoftEvent {
    pub(super) words: Arc<Words>,
    pub(super) side: Side,
    /// What the counter must exceed for somebody of this side to be woken. Private: the peer says
    /// nothing about it.
    lowest: AtomicU64,
    stopped: AtomicBool,
    /// The process at the other end has ended, and did not leave before.
    pub(super) gone: AtomicBool,
    pub(super) port: OnceLock<Weak<Port>>,
    pub(super) peer: Mutex<Peer>,
    /// Of an owner's that can be exported.
    pub(super) export: Option<Export>,
    /// What a side writes into its `closed` word when it closes the event: a number of this import,
    /// which no importer before knows. Written under the lock of `peer`.
    number: Number,
    me: Weak<SoftEvent>,
}

/// What an importer is given.
pub(super) struct Export {
    pub(super) page: Arc<OwnedFd>,
    /// Memory of the application's, its length, and where the counter lies in it.
    pub(super) backing: Option<(Backing, usize, usize)>,
    /// The port of the device.
    pub(super) port: u8,
}

/// The other side.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) published: Option<Published>,
    pub(super) bell: Option<Bell>,
    pub(super) process: Option<Arc<Process>>,
    /// The end of the bell's socket: the process may continue without it (execve(2)).
    pub(super) line: Option<Arc<Process>>,
}

/// How it is woken.
pub(super) enum Bell {
    /// It is another process.
    Socket(Arc<Guarded>),
    /// It is of this process.
    Local(Weak<SoftEvent>),
}

impl Bell {
    /// Returns true if somebody is there.
    fn is_answered(&self) -> bool {
        match self {
            Bell::Socket(socket) => !bell::is_hung_up(socket),
            Bell::Local(peer) => peer.upgrade().is_some_and(|peer| !peer.is_stopped()),
        }
    }
}

impl SoftEvent {
    /// Returns the owner's side.
    pub(super) fn new(words: Words, export: Option<Export>) -> Arc<SoftEvent> {
        // Until there is an importer no other party has the words.
        SoftEvent::side(Arc::new(words), Side::Owner, export, Peer::default(), 1)
    }

    pub(super) fn side(
        words: Arc<Words>,
        side: Side,
        export: Option<Export>,
        peer: Peer,
        number: u64,
    ) -> Arc<SoftEvent> {
        Arc::new_cyclic(|me| SoftEvent {
            words,
            side,
            lowest: AtomicU64::new(NOBODY),
            stopped: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            port: OnceLock::new(),
            peer: Mutex::new(peer),
            export,
            number: Number::new(number),
            me: Weak::clone(me),
        })
    }

    pub(super) fn weak(&self) -> Weak<SoftEvent> {
        Weak::clone(&self.me)
    }

    pub(super) fn peer(&self) -> MutexGuard<'_, Peer> {
        lock(&self.peer)
    }

    pub(super) fn is_owner(&self) -> bool {
        self.side == Side::Owner
    }

    /// Returns true if another process may change the counter.
    pub(super) fn is_shared(&self) -> bool {
        self.export.is_some() || !self.is_owner()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// Returns true if this side, of this import, has closed the event in an orderly way.
    fn has_closed(&self, side: Side) -> bool {
        self.words.closed(side).load(SeqCst) == self.number.load(Relaxed)
    }

    /// Another importer comes. The caller has the lock.
    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Relaxed);
    }

    /// Returns true if the importer is still the one of this number. The caller has the lock.
    pub(super) fn is_import(&self, number: u64) -> bool {
        self.number.load(Relaxed) == number
    }

    pub(super) fn value(&self) -> u64 {
        self.words.counter().load(SeqCst)
    }

    /// Why nothing is done any more.
    #[inline]
    fn check(&self) -> Result<(), JobError> {
        if self.stopped.load(SeqCst) {
            return Err(JobError::event_stopped());
        }
        if self.side == Side::Importer {
            // First, so that an owner that was killed is called so: its page may say anything.
            if self.gone.load(SeqCst) {
                return Err(JobError::event_peer_gone());
            }
            if self.has_closed(Side::Owner) {
                return Err(JobError::event_revoked());
            }
        }
        Ok(())
    }

    /// Why nobody waits any more.
    #[inline]
    pub(super) fn check_waits(&self) -> Result<(), JobError> {
        self.check()?;
        match self.gone.load(SeqCst) {
            true => Err(JobError::event_peer_gone()),
            false => Ok(()),
        }
    }

    /// Does a Job, and wakes whom it concerns.
    #[inline]
    pub(super) fn operate(&self, job: &EventJob) -> Result<u64, JobError> {
        self.check()?;
        let counter = self.words.counter();
        Ok(match *job {
            EventJob::Get => counter.load(SeqCst),
            EventJob::Set(value) => {
                counter.store(value, SeqCst);
                self.publish(value);
                value
            }
            EventJob::Add(add) => {
                let before = counter.fetch_add(add, SeqCst);
                self.publish(before.wrapping_add(add));
                before
            }
        })
    }

    /// The counter has become this.
    #[inline]
    fn publish(&self, value: u64) {
        // Pairs with `say`.
        seq_cst_order();
        if self.is_waited_for(value) {
            self.wake(value);
        }
    }

    /// Returns true if somebody is to be woken.
    #[inline]
    pub(super) fn is_waited_for(&self, value: u64) -> bool {
        let wanted = self.words.wanted(self.side.peer());
        value > self.lowest.load(SeqCst) || value > wanted.load(SeqCst)
    }

    #[cold]
    fn wake(&self, value: u64) {
        if value > self.lowest.load(SeqCst) {
            self.raise();
        }
        if value > self.words.wanted(self.side.peer()).load(SeqCst) {
            self.ring_peer();
        }
    }

    /// Says what the counter must exceed for this side to be woken. Look at the counter afterwards,
    /// and at what else ends a wait.
    pub(super) fn say(&self, lowest: u64) {
        self.lowest.store(lowest, SeqCst);
        self.words.wanted(self.side).store(lowest, SeqCst);
        seq_cst_order();
    }

    /// Returns true if a look would find something.
    pub(super) fn is_due(&self) -> bool {
        self.value() > self.lowest.load(SeqCst) || self.check_waits().is_err()
    }

    /// The party that waits at this side looks.
    pub(super) fn raise(&self) {
        if let Some(port) = self.port.get().and_then(Weak::upgrade) {
            port.mark_ready();
        }
    }

    /// Wakes the other side, if it sleeps.
    pub(super) fn ring_peer(&self) {
        let peer = self.peer();
        let wanted = self.words.wanted(self.side.peer());
        let local = match &peer.bell {
            // It stays said: whoever hangs the bell rings.
            None => return,
            Some(Bell::Socket(socket)) => {
                if wanted.swap(NOBODY, SeqCst) != NOBODY {
                    bell::ring(socket);
                }
                return;
            }
            Some(Bell::Local(local)) => local.upgrade(),
        };
        drop(peer);
        if let Some(local) = local {
            wanted.store(NOBODY, SeqCst);
            local.raise();
        }
    }

    /// An importer may come: whether there is no other. The caller has the lock.
    ///
    /// The process of one that has ended may have a child that holds its end of the connection.
    pub(super) fn is_free(&self, peer: &Peer) -> bool {
        let ended = |process: &Arc<Process>| process.has_ended();
        peer.process.as_ref().is_some_and(ended)
            || !peer.bell.as_ref().is_some_and(Bell::is_answered)
    }
}

impl EventCounter for SoftEvent {
    fn perform(&self, job: EventJob) -> Result<u64, JobError> {
        self.operate(&job)
    }

    #[inline]
    fn look(&self, wait: &EventWait) -> Result<Option<u64>, JobError> {
        self.check()?;
        let value = self.value();
        if wait.is_met(value) {
            return Ok(Some(value));
        }
        self.check_waits().map(|()| None)
    }

    fn export(&self) -> Result<Vec<u8>> {
        let refuse = |kind, text: &'static str| Err(Error::new(kind, None, text));
        if self.side == Side::Importer {
            let text = "it was imported: its owner exports it";
            return refuse(ErrorKind::NotPermitted, text);
        }
        let Some(export) = &self.export else {
            let text = "both its locations are the CPU's, so that it lies in memory of this process: build it with Location::Dpu as its \
                        publisher or its subscriber";
            return refuse(ErrorKind::NotSupported, text);
        };
        let mut peer = self.peer();
        if self.is_stopped() {
            return refuse(ErrorKind::BadState, "it was stopped");
        }
        if let Some(published) = &peer.published {
            return Ok(published.blob().to_vec());
        }
        if let Some((backing, len, _)) = &export.backing {
            fabric::share(backing, *len)?;
        }
        let info = fabric::payload(&EventInfo { port: export.port });
        let service = self.weak() as Weak<dyn fabric::Service>;
        let published = fabric::publish(&EVENT, info, service)?;
        let blob = published.blob().to_vec();
        peer.published = Some(published);
        Ok(blob)
    }

    fn stop(&self) {
        // A child of fork(2) has nothing of it.
        if !self.words.are_ours() || self.stopped.swap(true, SeqCst) {
            return;
        }
        // Who admits an importer writes over it, under the lock, and looks first whether it was
        // stopped.
        let peer = self.peer();
        let number = self.number.load(Relaxed);
        self.words.closed(self.side).store(number, SeqCst);
        drop(peer);
        seq_cst_order();
        self.raise();
        if self.side == Side::Owner {
            self.ring_peer();
        }
        let mut peer = self.peer();
        let (published, bell, line) = (peer.published.take(), peer.bell.take(), peer.line.take());
        drop(peer);
        drop((published, bell, line));
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Ended for SoftEvent {
    fn ended(&self) {
        let peer = self.peer();
        // It may be one that had it before.
        let is_dead = |process: &Arc<Process>| process.is_dead();
        let dead = peer.process.as_ref().is_some_and(is_dead);
        let hung_up = peer.line.as_ref().is_some_and(is_dead);
        let left = self.has_closed(self.side.peer());
        let gone = match self.side {
            Side::Owner => (dead || hung_up) && !left,
            // An owner that was killed is called so: its page may say anything.
            Side::Importer => dead || hung_up && !left,
        };
        if gone {
            self.gone.store(true, SeqCst);
            seq_cst_order();
        }
        drop(peer);
        self.raise();
    }
}

impl Drop for SoftEvent {
    fn drop(&mut self) {
        self.stop();
    }
}
