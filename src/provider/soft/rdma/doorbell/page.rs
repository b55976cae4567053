//! What joins two queues of software devices: a page of hints, and a bell for who sleeps.
//!
//! ```text
//!   who publishes something in a message ring     whose message ring it is
//!   --------------------------------------------------------------------
//!   publish, fence                                arm: armed = 1, fence
//!   parked? hint: a bit of the message ring       look: hints, and message rings that are not parked
//!   armed? armed = 0, ring                        sleep
//! ```
//!
//! Either the one sees that the other is armed, or that one sees what was published. The block of a
//! side says whether it is armed, and which message rings it was hinted at. The peer can write all
//! of it: what it takes away or adds concerns its own messages alone, and nothing but looks come of
//! it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use super::super::super::bell;
use super::super::super::fabric::{Ended, Process};
use super::super::messages::{Memory, Side};
use crate::device::Signal;
use crate::process::Guarded;
use crate::sync::atomic::{AtomicU64 as Word, fence};
use crate::sync::{lock, seq_cst_order};

/// Bytes of the page.
pub(in super::super) const PAGE: usize = 4096;
/// Message rings that a doorbell page joins.
pub(in super::super) const RINGS: u32 = 64 * 64;

/// How often a bell is read until it is read to its end: a socket holds 10 rings or more.
const READS: u32 = 8;

const ARMED: usize = 0;
const SUMMARY: usize = 128;
const HINTS: usize = 256;

/// One side's end of it.
pub(in super::super) struct DoorbellPage {
    /// What this process knows it by: no two have the same, whoever gave the other number. Never
    /// `u64::MAX`.
    pub(in super::super) key: u64,
    memory: Arc<Memory>,
    side: Side,
    bell: Bell,
    /// The peer's process, if it is another one.
    pub(in super::super) process: Option<Arc<Process>>,
    /// The end of the bell's socket: the peer's process may continue without it (execve(2)).
    line: OnceLock<Arc<Process>>,
    /// The peer's process has ended, or a ring found nobody there: that may be before the thread
    /// that watches does.
    gone: AtomicBool,
    /// Message rings that are open at this end.
    rings: AtomicU32,
    members: Mutex<Members>,
    owner: Weak<dyn DoorbellOwner>,
    /// It is in the list of those that are looked at each time (`pages.rs`).
    is_awake: AtomicBool,
    /// How often it was armed since its bell was read: the peer has rung no more often.
    arms: AtomicU32,
    /// How often its bell was read.
    reads: AtomicU32,
}

/// The queue whose end of a doorbell page it is.
pub(in super::super) trait DoorbellOwner: Send + Sync {
    /// An endpoint has something to do.
    fn mark_ready(&self, endpoint: u32);

    /// A doorbell page has no message ring any more.
    fn note_idle(&self);
}

/// Pages of a queue that peers of this process rang for.
#[derive(Default)]
pub(in super::super) struct Signalled {
    any: AtomicBool,
    keys: Mutex<Vec<u64>>,
}

impl Signalled {
    fn add(&self, key: u64) {
        lock(&self.keys).push(key);
        self.any.store(true, Ordering::Release);
    }

    /// Takes their keys, if there are any.
    #[inline]
    pub(super) fn take(&self, into: &mut Vec<u64>) {
        // What is added meanwhile sets it again.
        if self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Acquire) {
            into.append(&mut lock(&self.keys));
        }
    }
}

/// How the peer is woken.
pub(in super::super) enum Bell {
    /// It is of this process: the bell of its queue, and where that finds which page rang.
    Signal(Arc<Signal>, Arc<Signalled>, u64),
    /// A byte on a socket. Empty until the peer has its end.
    Socket(OnceLock<Arc<Guarded>>),
}

/// Which endpoint of this side's queue has which message ring.
#[derive(Default)]
struct Members {
    endpoints: Vec<Option<u32>>,
    free: Vec<u32>,
}

impl DoorbellPage {
    pub(in super::super) fn new(
        key: u64,
        memory: Arc<Memory>,
        side: Side,
        bell: Bell,
        process: Option<Arc<Process>>,
        owner: Weak<dyn DoorbellOwner>,
    ) -> DoorbellPage {
        DoorbellPage {
            key,
            memory,
            side,
            bell,
            process,
            line: OnceLock::new(),
            gone: AtomicBool::new(false),
            rings: AtomicU32::new(0),
            members: Mutex::default(),
            owner,
            is_awake: AtomicBool::new(false),
            arms: AtomicU32::new(0),
            reads: AtomicU32::new(0),
        }
    }

    /// Returns a key that no page of this process has.
    pub(in super::super) fn new_key() -> u64 {
        static KEY: AtomicU64 = AtomicU64::new(0);
        KEY.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes whether it is looked at each time, and returns whether it was. The reaper's lock is
    /// held.
    pub(super) fn set_awake(&self, awake: bool) -> bool {
        let before = self.is_awake.load(Ordering::Relaxed);
        self.is_awake.store(awake, Ordering::Relaxed);
        before
    }

    fn word(&self, side: Side, at: usize) -> &Word {
        let block = match side {
            Side::Host => 0,
            Side::Guest => PAGE / 2,
        };
        self.memory.word(block + at)
    }

    /// Returns whether this side has made it (`Host`), or joined it.
    pub(super) fn side(&self) -> Side {
        self.side
    }

    pub(in super::super) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Returns true if the peer is this process.
    pub(in super::super) fn is_of(&self, process: &Arc<Process>) -> bool {
        self.process
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, process))
    }

    /// Returns true if the peer's process has ended, or has let go of its end of the bell's socket.
    pub(in super::super) fn is_dead(&self) -> bool {
        let dead = |process: &Arc<Process>| process.is_dead();
        let process = self.process.as_ref();
        process.is_some_and(|it| dead(it) || self.is_gone() || self.line.get().is_some_and(dead))
    }

    /// The same, as far as it was noticed here.
    #[inline(always)]
    pub(in super::super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// The same, and the kernel is asked whether the process has ended.
    pub(in super::super) fn has_died(&self) -> bool {
        let ended = |process: &Arc<Process>| process.has_ended();
        self.is_dead() || self.process.as_ref().is_some_and(ended)
    }

    /// Reads all that rang for this side. A socket that was left full would hide the next ring.
    pub(in super::super) fn read_bell(&self) {
        let Bell::Socket(socket) = &self.bell else {
            return;
        };
        let Some(socket) = socket.get() else {
            return;
        };
        // Another thread of the peer's may still ring for the time before.
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        match self.arms.swap(0, Ordering::Relaxed) {
            1 if !reads.is_multiple_of(READS) => bell::hear(socket),
            _ => bell::drain(socket),
        }
    }

    /// Has the endpoints of this doorbell page hear of the end of the peer's process.
    pub(in super::super) fn watch_process(self: &Arc<Self>) {
        if let Some(process) = &self.process {
            process.on_end(Arc::downgrade(self) as _);
        }
    }

    /// Has them hear of the end of the bell's socket too.
    pub(in super::super) fn watch_bell(self: &Arc<Self>) -> nix::Result<()> {
        let (Some(process), Bell::Socket(socket)) = (&self.process, &self.bell) else {
            return Ok(());
        };
        let Some(socket) = socket.get() else {
            return Ok(());
        };
        let line = process.at_the_end_of(socket)?;
        // First: who is told looks at it.
        let line = self.line.get_or_init(|| line);
        line.on_end(Arc::downgrade(self) as _);
        Ok(())
    }

    /// For the host: a message ring for this endpoint; `None` if there are as many as can be.
    pub(in super::super) fn admit(&self, endpoint: u32) -> Option<u32> {
        let mut members = self.lock();
        let index = match members.free.pop() {
            Some(index) => index,
            None if members.endpoints.len() as u32 == RINGS => return None,
            None => {
                members.endpoints.push(None);
                members.endpoints.len() as u32 - 1
            }
        };
        members.endpoints[index as usize] = Some(endpoint);
        self.rings.fetch_add(1, Ordering::Relaxed);
        Some(index)
    }

    /// For the guest: the host gave this endpoint a message ring, of a number below [`RINGS`].
    pub(in super::super) fn join(&self, index: u32, endpoint: u32) {
        let mut members = self.lock();
        let len = members.endpoints.len().max(index as usize + 1);
        members.endpoints.resize(len, None);
        let before = members.endpoints[index as usize].replace(endpoint);
        self.rings.fetch_add(1, Ordering::Relaxed);
        drop(members);
        // The host is done with that one's message ring, and the hint that said so will go to this
        // one.
        if let (Some(before), Some(owner)) = (before, self.owner.upgrade()) {
            owner.mark_ready(before);
        }
    }

    /// A message ring is closed at this end.
    pub(in super::super) fn leave(&self, index: u32, endpoint: u32) {
        let mut members = self.lock();
        if members.endpoints[index as usize] == Some(endpoint) {
            members.endpoints[index as usize] = None;
            if self.side == Side::Host {
                members.free.push(index);
            }
        }
        drop(members);
        if self.rings.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(owner) = self.owner.upgrade()
        {
            owner.note_idle();
        }
    }

    /// Returns true if no message ring is open at this end.
    pub(super) fn is_idle(&self) -> bool {
        self.rings.load(Ordering::Relaxed) == 0
    }

    /// Returns the endpoint of a message ring.
    pub(super) fn member(&self, index: u32) -> Option<u32> {
        let members = self.lock();
        members.endpoints.get(index as usize).copied().flatten()
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    /// This side is about to sleep, and will look after a fence.
    pub(in super::super) fn arm(&self) {
        // First: the peer rings for this one at once.
        self.arms.fetch_add(1, Ordering::Relaxed);
        self.word(self.side, ARMED).store(1, Ordering::SeqCst);
    }

    /// Returns whether the peer will ring for its next hint.
    pub(super) fn is_armed(&self) -> bool {
        self.word(self.side, ARMED).load(Ordering::SeqCst) != 0
    }

    /// Wakes the peer if it sleeps. After what was published, and a fence. Returns false if it was
    /// found to have died.
    #[inline(always)]
    pub(in super::super) fn wake_peer(&self) -> bool {
        let armed = self.word(self.side.peer(), ARMED);
        armed.load(Ordering::SeqCst) == 0 || self.ring_peer(armed)
    }

    #[cold]
    fn ring_peer(&self, armed: &Word) -> bool {
        let socket = match &self.bell {
            Bell::Signal(..) => None,
            Bell::Socket(socket) => match socket.get() {
                Some(socket) => Some(socket),
                // It stays armed: `hang_bell` rings.
                None => return true,
            },
        };
        if armed.swap(0, Ordering::SeqCst) == 0 {
            return true;
        }
        match (&self.bell, socket) {
            (Bell::Signal(signal, signalled, key), _) => {
                signalled.add(*key);
                signal.ring();
            }
            (_, Some(socket)) if !bell::ring(socket) => {
                self.gone.store(true, Ordering::Relaxed);
                return false;
            }
            _ => {}
        }
        true
    }

    /// The peer has its end of the socket. It may sleep already, and have been notified of
    /// something before there was a bell.
    pub(in super::super) fn hang_bell(&self, socket: Guarded) {
        if let Bell::Socket(bell) = &self.bell {
            let _ = bell.set(Arc::new(socket));
        }
        fence(Ordering::SeqCst);
        self.wake_peer();
    }

    /// Has the peer look at a message ring. After what was published, and a fence.
    #[inline]
    pub(in super::super) fn hint_peer(&self, index: u32) {
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        let peer = self.side.peer();
        let hints = self.word(peer, HINTS + 8 * word);
        // A hint that the peer has not taken yet serves for this too: pairs with `take_hints`.
        if hints.load(Ordering::SeqCst) & bit != 0 {
            return;
        }
        hints.fetch_or(bit, Ordering::SeqCst);
        self.word(peer, SUMMARY)
            .fetch_or(1 << word, Ordering::SeqCst);
        // Before the look whether it is armed.
        seq_cst_order();
    }

    /// Returns true if there are hints for this side.
    #[inline]
    pub(in super::super) fn is_hinted(&self) -> bool {
        self.word(self.side, SUMMARY).load(Ordering::SeqCst) != 0
    }

    /// Takes the hints for this side: calls `each` with the endpoints.
    pub(in super::super) fn take_hints(&self, mut each: impl FnMut(u32)) {
        let mut words = self.word(self.side, SUMMARY).swap(0, Ordering::SeqCst);
        while words != 0 {
            let word = words.trailing_zeros();
            words &= words - 1;
            let mut bits = self
                .word(self.side, HINTS + 8 * word as usize)
                .swap(0, Ordering::SeqCst);
            // A sender that still saw its hint published its message before this fence. The caller
            // looks after it.
            fence(Ordering::SeqCst);
            while bits != 0 {
                if let Some(endpoint) = self.member(word * 64 + bits.trailing_zeros()) {
                    each(endpoint);
                }
                bits &= bits - 1;
            }
        }
    }
}

impl Ended for DoorbellPage {
    /// The party that has a message ring to that process looks at it.
    fn ended(&self) {
        self.gone.store(true, Ordering::Relaxed);
        let Some(owner) = self.owner.upgrade() else {
            return;
        };
        let members = self.lock().endpoints.clone();
        for endpoint in members.into_iter().flatten() {
            owner.mark_ready(endpoint);
        }
    }
}
