//! One side of a sync event: the counter, the waiters that a change wakes, and how the event ends.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64 as Number, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use super::super::bell;
use super::super::fabric::{self, EVENT, Ended, Process, Published};
use super::payload::EventInfo;
use super::port::Port;
use super::words::{NO_SLEEPER, Side, Words};
use crate::device::{Backing, EventCounter, EventJob, EventWait};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::process::Guarded;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::{Mutex, MutexGuard, lock, seq_cst_order};

pub(in super::super) struct SoftEvent {
    pub(super) words: Arc<Words>,
    pub(super) side: Side,
    /// The value that the counter must exceed before a waiter of this side is woken. It is in
    /// private memory, so that the peer cannot change it.
    lowest: AtomicU64,
    stopped: AtomicBool,
    /// Set once the other side's process or connection has ended, unless the other side had closed
    /// the event before. The importer's side sets it even then if the owner's process has ended.
    pub(super) gone: AtomicBool,
    pub(super) port: OnceLock<Weak<Port>>,
    pub(super) peer: Mutex<Peer>,
    /// Set for the owner's side of an event that can be exported.
    pub(super) export: Option<Export>,
    /// The number of the import. A side writes it into its `closed` word when it closes the event.
    /// Each import has its own number, which no former importer knows. Written under the lock of
    /// `peer`.
    number: Number,
    me: Weak<SoftEvent>,
}

/// What an event's owner needs for an export.
pub(super) struct Export {
    pub(super) page: Arc<OwnedFd>,
    /// The application's memory, its length, and the offset of the counter in it, in bytes.
    pub(super) backing: Option<(Backing, usize, usize)>,
    /// The port of the device.
    pub(super) port: u8,
}

/// The other side of the event.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) published: Option<Published>,
    pub(super) bell: Option<Bell>,
    pub(super) process: Option<Arc<Process>>,
    /// The watched connection of `bell`. It may end before the peer's process does (execve(2)).
    pub(super) line: Option<Arc<Process>>,
}

/// How the other side is woken.
pub(super) enum Bell {
    /// The other side is another process.
    Socket(Arc<Guarded>),
    /// The other side is in this process.
    Local(Weak<SoftEvent>),
}

impl Bell {
    /// Returns true if the other side still uses the event.
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
        // Until there is an importer, no other process has the words.
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
            lowest: AtomicU64::new(NO_SLEEPER),
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

    /// Returns true if `side` has closed this import in an orderly way.
    fn has_closed(&self, side: Side) -> bool {
        self.words.closed(side).load(SeqCst) == self.number.load(Relaxed)
    }

    /// Stores the number of the next importer. The caller holds the lock.
    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Relaxed);
    }

    /// Returns true if the current importer is the one with this number. The caller holds the lock.
    pub(super) fn is_import(&self, number: u64) -> bool {
        self.number.load(Relaxed) == number
    }

    pub(super) fn value(&self) -> u64 {
        self.words.counter().load(SeqCst)
    }

    /// Returns the error with which every job fails, if the event has ended.
    #[inline]
    fn check(&self) -> Result<(), JobError> {
        if self.stopped.load(SeqCst) {
            return Err(JobError::event_stopped());
        }
        if self.side == Side::Importer {
            // This comes first, so that the error names an owner that was killed: its page may say
            // anything.
            if self.gone.load(SeqCst) {
                return Err(JobError::event_peer_gone());
            }
            if self.has_closed(Side::Owner) {
                return Err(JobError::event_revoked());
            }
        }
        Ok(())
    }

    /// Returns the error with which every wait fails, if there is one.
    #[inline]
    pub(super) fn check_waits(&self) -> Result<(), JobError> {
        self.check()?;
        match self.gone.load(SeqCst) {
            true => Err(JobError::event_peer_gone()),
            false => Ok(()),
        }
    }

    /// Does a job, and wakes the waiters that it concerns.
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

    /// Wakes the waiters for which the counter has reached `value`.
    #[inline]
    fn publish(&self, value: u64) {
        // Pairs with `say`.
        seq_cst_order();
        if self.is_waited_for(value) {
            self.wake(value);
        }
    }

    /// Returns true if a waiter must be woken for `value`.
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
            self.signal_peer();
        }
    }

    /// Publishes the value that the counter must exceed for this side to be woken. The caller then
    /// polls the counter, and everything else that ends a wait.
    pub(super) fn say(&self, lowest: u64) {
        self.lowest.store(lowest, SeqCst);
        self.words.wanted(self.side).store(lowest, SeqCst);
        seq_cst_order();
    }

    /// Returns true if polling the waits would end one.
    pub(super) fn is_due(&self) -> bool {
        self.value() > self.lowest.load(SeqCst) || self.check_waits().is_err()
    }

    /// Makes the waiters of this side poll.
    pub(super) fn raise(&self) {
        if let Some(port) = self.port.get().and_then(Weak::upgrade) {
            port.mark_ready();
        }
    }

    /// Wakes the other side, if it sleeps.
    pub(super) fn signal_peer(&self) {
        let peer = self.peer();
        let wanted = self.words.wanted(self.side.peer());
        let local = match &peer.bell {
            // The word stays as it is: `hang_bell` wakes the other side later.
            None => return,
            Some(Bell::Socket(socket)) => {
                if wanted.swap(NO_SLEEPER, SeqCst) != NO_SLEEPER {
                    bell::ring(socket);
                }
                return;
            }
            Some(Bell::Local(local)) => local.upgrade(),
        };
        drop(peer);
        if let Some(local) = local {
            wanted.store(NO_SLEEPER, SeqCst);
            local.raise();
        }
    }

    /// Returns true if the event has no importer, so that a new one may come. The caller holds the
    /// lock.
    ///
    /// This asks the kernel about the former importer's process, because a child of that process
    /// may hold its end of the connection.
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
    fn ask(&self, wait: &EventWait) -> Result<Option<u64>, JobError> {
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
        // A child of fork(2) has no mapping of the words.
        if !self.words.are_ours() || self.stopped.swap(true, SeqCst) {
            return;
        }
        // A thread that admits an importer overwrites this word. It does so under the lock, and
        // checks first whether the event was stopped.
        let peer = self.peer();
        let number = self.number.load(Relaxed);
        self.words.closed(self.side).store(number, SeqCst);
        drop(peer);
        seq_cst_order();
        self.raise();
        if self.side == Side::Owner {
            self.signal_peer();
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
        // The process or connection that ended may be that of a former importer.
        let is_dead = |process: &Arc<Process>| process.is_dead();
        let dead = peer.process.as_ref().is_some_and(is_dead);
        let hung_up = peer.line.as_ref().is_some_and(is_dead);
        let left = self.has_closed(self.side.peer());
        let gone = match self.side {
            Side::Owner => (dead || hung_up) && !left,
            // The error names an owner that was killed, even if its page says that it has closed
            // the event: the page may say anything.
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
