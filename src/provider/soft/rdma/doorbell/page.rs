//! A doorbell page, which joins two queues of software devices: hints in shared memory, and a bell
//! that wakes a sleeping side.
//!
//! ```text
//!   the side that publishes in a message ring      the side that polls the message ring
//!   ------------------------------------------------------------------------------------
//!   publish, fence                                arm: armed = 1, fence
//!   parked? hint: a bit of the message ring       poll: hints, and message rings not parked
//!   armed? armed = 0, wake                        sleep
//! ```
//!
//! Either the publishing side sees that the other side is armed, or the other side sees what was
//! published. The block of a side shows whether that side is armed, and which of its message rings
//! have hints. The peer can write the whole page. Hints that it removes or adds concern only its
//! own messages, and only make this side poll more or less often.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use super::super::super::bell;
use super::super::super::fabric::{Ended, Process};
use super::super::messages::{Memory, MessageRing, Shape, Side};
use super::members::Members;
use crate::device::Signal;
use crate::process::Guarded;
use crate::sync::atomic::{AtomicU64 as Word, fence};
use crate::sync::{lock, seq_cst_order};

/// The size of the page in bytes.
pub(in super::super) const PAGE: usize = 4096;

/// Every eighth read empties the doorbell's socket. The other reads may leave bytes in it, which
/// must not fill it: it holds at least 10.
const READS: u32 = 8;

const ARMED: usize = 0;
const SUMMARY: usize = 128;
const HINTS: usize = 256;

/// One side's end of a doorbell page.
pub(in super::super) struct DoorbellPage {
    /// The key of this end. It is unique in this process, even if the peer has numbered the page.
    /// Never `u64::MAX`.
    pub(in super::super) key: u64,
    memory: Arc<Memory>,
    side: Side,
    bell: Bell,
    /// The peer's process, if the peer is another process.
    pub(in super::super) process: Option<Arc<Process>>,
    /// Watches the bell's socket, which may close before the peer's process ends: execve(2) closes
    /// the peer's end of it.
    line: OnceLock<Arc<Process>>,
    /// True if the peer's process has ended, or has closed its end of the bell. A failed wake-up
    /// may set this before the thread that watches processes does.
    gone: AtomicBool,
    /// The number of message rings that are open at this end.
    rings: AtomicU32,
    members: Mutex<Members>,
    owner: Weak<dyn DoorbellOwner>,
    /// True while the queue checks this page at every poll (`pages.rs`).
    is_awake: AtomicBool,
    /// The number of times that the page was armed since its bell was read. The peer has sent at
    /// most one byte for each time.
    arms: AtomicU32,
    /// The number of times that the bell was read.
    reads: AtomicU32,
}

/// The queue that owns an end of a doorbell page.
pub(in super::super) trait DoorbellOwner: Send + Sync {
    /// Makes the queue poll this endpoint.
    fn mark_ready(&self, endpoint: u32);

    /// Notes that a doorbell page has no message ring any more.
    fn note_idle(&self);
}

/// The keys of a queue's pages for which a peer in this process has signalled.
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

    /// Moves the keys into `into`, if there are any.
    #[inline]
    pub(super) fn take(&self, into: &mut Vec<u64>) {
        // A peer that adds a key meanwhile sets the flag again.
        if self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Acquire) {
            into.append(&mut lock(&self.keys));
        }
    }
}

/// How this side wakes the peer's queue.
pub(in super::super) enum Bell {
    /// The peer is in this process. These are the event handle of the peer's queue, the list in
    /// which that queue finds signalled pages, and the key of the page there.
    Signal(Arc<Signal>, Arc<Signalled>, u64),
    /// The peer is another process, which is woken by a byte on a socket. Empty until the peer has
    /// its end.
    Socket(OnceLock<Arc<Guarded>>),
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

    /// Returns a key that no other page of this process has.
    pub(in super::super) fn new_key() -> u64 {
        static KEY: AtomicU64 = AtomicU64::new(0);
        KEY.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores whether the queue checks the page at every poll, and returns the former value. The
    /// caller holds the reaper's lock.
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

    /// Returns `Host` if this side has made the page, and `Guest` if it has joined it.
    pub(super) fn side(&self) -> Side {
        self.side
    }

    pub(in super::super) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Returns true if the peer is the process `process`.
    pub(in super::super) fn is_of(&self, process: &Arc<Process>) -> bool {
        self.process
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, process))
    }

    /// Returns true if the peer's process has ended, or has closed its end of the bell's socket.
    pub(in super::super) fn is_dead(&self) -> bool {
        let dead = |process: &Arc<Process>| process.is_dead();
        let process = self.process.as_ref();
        process.is_some_and(|it| dead(it) || self.is_gone() || self.line.get().is_some_and(dead))
    }

    /// Returns true if this side has noticed already that the peer has ended.
    #[inline(always)]
    pub(in super::super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// As `is_dead`, but also asks the kernel whether the process has ended.
    pub(in super::super) fn has_died(&self) -> bool {
        let ended = |process: &Arc<Process>| process.has_ended();
        self.is_dead() || self.process.as_ref().is_some_and(ended)
    }

    /// Reads all wake-ups for this side. A full socket would lose the next wake-up.
    pub(in super::super) fn read_bell(&self) {
        let Bell::Socket(socket) = &self.bell else {
            return;
        };
        let Some(socket) = socket.get() else {
            return;
        };
        // More than one byte may have come: another thread of the peer may have sent one for an
        // earlier arm.
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        match self.arms.swap(0, Ordering::Relaxed) {
            1 if !reads.is_multiple_of(READS) => bell::read_byte(socket),
            _ => bell::drain(socket),
        }
    }

    /// Registers this page, so that its endpoints are polled once the peer's process ends.
    pub(in super::super) fn watch_process(self: &Arc<Self>) {
        if let Some(process) = &self.process {
            process.on_end(Arc::downgrade(self) as _);
        }
    }

    /// Registers this page for the end of the bell's socket as well.
    pub(in super::super) fn watch_bell(self: &Arc<Self>) -> nix::Result<()> {
        let (Some(process), Bell::Socket(socket)) = (&self.process, &self.bell) else {
            return Ok(());
        };
        let Some(socket) = socket.get() else {
            return Ok(());
        };
        let line = process.at_the_end_of(socket)?;
        // The line is stored first: notified endpoints call `is_dead`, which reads it.
        let line = self.line.get_or_init(|| line);
        line.on_end(Arc::downgrade(self) as _);
        Ok(())
    }

    /// Assigns, on the host, an index and a number for a new message ring of this endpoint. Returns
    /// `None` if the page is full.
    pub(in super::super) fn admit(&self, endpoint: u32) -> Option<(u32, u32)> {
        // The ring that is not kept any longer is dropped without the lock.
        let (index, number, _oldest) = self.lock().admit(endpoint)?;
        self.rings.fetch_add(1, Ordering::Relaxed);
        Some((index, number))
    }

    /// Gives this endpoint, on the side of the host, a kept message ring of this number and shape
    /// to use again. Returns the ring and its index, or `None` if there is no such ring.
    pub(in super::super) fn admit_again(
        &self,
        endpoint: u32,
        number: u32,
        shape: Shape,
    ) -> Option<(u32, MessageRing)> {
        let admitted = self.lock().admit_again(endpoint, number, shape)?;
        self.rings.fetch_add(1, Ordering::Relaxed);
        Some(admitted)
    }

    /// Takes, on the guest, a message ring of this shape that was kept, to offer it to the host by
    /// its number.
    pub(in super::super) fn offer(&self, shape: Shape) -> Option<(u32, MessageRing)> {
        self.lock().offer(shape)
    }

    /// Stores, on the guest, the message ring that the host gave this endpoint. The caller has
    /// checked that the index is below `RINGS`.
    pub(in super::super) fn join(&self, place: (u32, u32), endpoint: u32) {
        let before = self.lock().join(place, endpoint);
        self.rings.fetch_add(1, Ordering::Relaxed);
        // The host has closed the message ring of the endpoint that had this index before. The hint
        // for that end may now reach only the newer endpoint, so the former endpoint is made ready
        // here.
        if let (Some(before), Some(owner)) = (before, self.owner.upgrade()) {
            owner.mark_ready(before);
        }
    }

    /// Notes that this end has closed the message ring with this index and number. Keeps the ring
    /// `kept` for the next connection to the other process.
    pub(in super::super) fn leave(
        &self,
        place: (u32, u32),
        endpoint: u32,
        kept: Option<Arc<MessageRing>>,
    ) {
        let kept = kept.filter(|_| self.process.is_some());
        let oldest = self.lock().leave(place, endpoint, kept, self.side);
        // The ring that is not kept any longer is dropped without the lock.
        drop(oldest);
        if self.rings.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(owner) = self.owner.upgrade()
        {
            owner.note_idle();
        }
    }

    /// Returns true if this end has no open message ring.
    pub(super) fn is_idle(&self) -> bool {
        self.rings.load(Ordering::Relaxed) == 0
    }

    /// Returns the endpoint of a message ring.
    pub(super) fn member(&self, index: u32) -> Option<u32> {
        self.lock().endpoint(index)
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    /// Asks the peer to wake this side, which is about to sleep. The caller polls after a fence.
    pub(in super::super) fn arm(&self) {
        // The counter comes first: the peer may send the wake-up for this arm at once.
        self.arms.fetch_add(1, Ordering::Relaxed);
        self.word(self.side, ARMED).store(1, Ordering::SeqCst);
    }

    /// Returns true if the peer will wake this side for its next hint.
    pub(in super::super) fn is_armed(&self) -> bool {
        self.word(self.side, ARMED).load(Ordering::SeqCst) != 0
    }

    /// Wakes the peer if it is armed. The caller has published something, and then made a fence.
    /// Returns false if this side finds that the peer has ended.
    #[inline(always)]
    pub(in super::super) fn wake_peer(&self) -> bool {
        let armed = self.word(self.side.peer(), ARMED);
        armed.load(Ordering::SeqCst) == 0 || self.signal_peer(armed)
    }

    #[cold]
    fn signal_peer(&self, armed: &Word) -> bool {
        let socket = match &self.bell {
            Bell::Signal(..) => None,
            Bell::Socket(socket) => match socket.get() {
                Some(socket) => Some(socket),
                // The peer stays armed: `hang_bell` wakes it later.
                None => return true,
            },
        };
        if armed.swap(0, Ordering::SeqCst) == 0 {
            return true;
        }
        match (&self.bell, socket) {
            (Bell::Signal(signal, signalled, key), _) => {
                signalled.add(*key);
                signal.raise();
            }
            (_, Some(socket)) if !bell::ring(socket) => {
                self.gone.store(true, Ordering::Relaxed);
                return false;
            }
            _ => {}
        }
        true
    }

    /// Stores the socket whose other end the peer has. The peer may sleep already, after hints that
    /// came before the bell, so this wakes it.
    pub(in super::super) fn hang_bell(&self, socket: Guarded) {
        if let Bell::Socket(bell) = &self.bell {
            let _ = bell.set(Arc::new(socket));
        }
        fence(Ordering::SeqCst);
        self.wake_peer();
    }

    /// Makes the peer poll a message ring. The caller has published something, and then made a
    /// fence.
    #[inline]
    pub(in super::super) fn hint_peer(&self, index: u32) {
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        let peer = self.side.peer();
        let hints = self.word(peer, HINTS + 8 * word);
        // A hint that the peer has not taken yet covers this message too: pairs with `take_hints`.
        if hints.load(Ordering::SeqCst) & bit != 0 {
            return;
        }
        hints.fetch_or(bit, Ordering::SeqCst);
        self.word(peer, SUMMARY)
            .fetch_or(1 << word, Ordering::SeqCst);
        // The hint is stored before the caller checks whether the peer is armed.
        seq_cst_order();
    }

    /// Returns true if there are hints for this side.
    #[inline]
    pub(in super::super) fn is_hinted(&self) -> bool {
        self.word(self.side, SUMMARY).load(Ordering::SeqCst) != 0
    }

    /// Takes the hints for this side, and calls `each` with the endpoint of each hint.
    pub(in super::super) fn take_hints(&self, mut each: impl FnMut(u32)) {
        let mut words = self.word(self.side, SUMMARY).swap(0, Ordering::SeqCst);
        while words != 0 {
            let word = words.trailing_zeros();
            words &= words - 1;
            let mut bits = self
                .word(self.side, HINTS + 8 * word as usize)
                .swap(0, Ordering::SeqCst);
            // A sender that still saw its own earlier hint, and so gave no other, has published its
            // message before this fence. The caller polls after the fence, and finds the message.
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
    /// Makes the queue poll every endpoint with a message ring to that process.
    fn ended(&self) {
        self.gone.store(true, Ordering::Relaxed);
        let Some(owner) = self.owner.upgrade() else {
            return;
        };
        let members = self.lock().endpoints();
        for endpoint in members.into_iter().flatten() {
            owner.mark_ready(endpoint);
        }
    }
}
