//! A shared receive queue: receives of many queue pairs, into memory of its own.
//!
//! Each receive has a number, and one of three states: it is posted; or its message has come, and a
//! connection holds the receive until it gives it back; or it is spare. The number of receives that
//! are posted or with connections never exceeds the sum of the connections' credits, plus one for
//! each queue pair that may have taken a receive with it. So a single connection has exactly its
//! credits. The watcher adds memory when few receives are left. An event of the adapter reports
//! this (`IBV_EVENT_SRQ_LIMIT_REACHED`), or completions show it.
//!
//! A queue that may have lost many receives, or half of its capacity, takes no new connections. So
//! even peers that fail on purpose leave receives to others.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::super::adapter::{Context, Mr, check, check_ptr, wake};
use super::super::ffi::*;
use super::cq::Cq;
use super::receives::{Chunk, Receives};
use super::wr::RecvChain;
use crate::device::{Receive, Segment, Segments, Token, volatile_copy};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{lock, log};

/// The bits that mark a receive's name in the lower half of its request's id: neither a Token nor a
/// probe has them.
const NAMES: u32 = 0xfff << 20;
/// The maximum number of receives of a queue. One more would have the name of a probe.
const NUMBERS: u32 = (1 << 20) - 1;
/// The most receives that are posted at once.
const POSTED: u32 = 1024;
/// The maximum number of receives that may be lost, in addition to one for each connection, whose
/// message may be on its way. At most half of the capacity may be lost in any case.
const LOST: usize = 64;
/// The size in bytes of a chunk, the memory that is added at once. `CHUNK` is the maximum number of
/// receives in a chunk.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK: usize = 64;

pub(in super::super) struct Srq {
    context: Arc<Context>,
    cq: Arc<Cq>,
    raw: NonNull<ibv_srq>,
    id: u32,
    capacity: usize,
    /// The most receives that are posted at once.
    most: u32,
    /// The number of receives in a chunk of memory.
    per_chunk: u32,
    state: Mutex<Receives>,
    /// The thread that adds memory holds this lock.
    growing: Mutex<()>,
    /// True if the watcher shall add memory.
    low: AtomicBool,
}

// SAFETY: libibverbs may be called from any thread on any object; it is destroyed once.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

/// Returns true if `wr_id` is the name of a receive of any shared queue.
#[inline(always)]
pub(in super::super) fn is_name(wr_id: u64) -> bool {
    wr_id as u32 >= NAMES && wr_id as u32 != u32::MAX
}

impl Srq {
    /// Creates a queue of receives of `capacity` bytes, which has no memory yet.
    pub(in super::super) fn create(cq: &Arc<Cq>, capacity: usize) -> Result<Srq> {
        let context = &cq.context;
        let Some(create_srq) = context.table.create_srq else {
            let text = "this libibverbs has no shared receive queues";
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        };
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, SeqCst);
        let most = context.traits.shared_receives().min(POSTED);
        cq.promise(most)?;
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::without_provenance_mut(id as usize),
            attr: ibv_srq_attr {
                max_wr: most,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain is the context's.
        let made = unsafe { create_srq(context.pd(), &mut init) };
        let raw = check_ptr("ibv_create_srq", made).inspect_err(|_| cq.release(most))?;
        let per_chunk = (CHUNK_BYTES / capacity.max(1)).clamp(4, CHUNK) as u32;
        Ok(Srq {
            context: Arc::clone(context),
            cq: Arc::clone(cq),
            raw,
            id,
            capacity,
            most,
            per_chunk,
            state: Mutex::default(),
            growing: Mutex::default(),
            low: AtomicBool::new(false),
        })
    }

    pub(in super::super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// Returns the id that events of the queue carry.
    pub(in super::super) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the size of a receive in bytes.
    pub(in super::super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns true if a connection with receives of this size may join.
    pub(in super::super) fn suits(&self, capacity: usize) -> bool {
        let state = lock(&self.state);
        let bound = (state.connections as usize + LOST).min(self.most as usize / 2);
        capacity == self.capacity && state.lost() <= bound
    }

    /// Returns true if `wr_id` is the name of a receive of this queue.
    #[inline(always)]
    pub(in super::super) fn has(&self, wr_id: u64) -> bool {
        is_name(wr_id) && (wr_id >> 32) as u32 == self.id
    }

    /// Adds a connection that lends its peer `credits`. When this returns, there is memory for
    /// `credits` receives, or for a chunk if that is more, but never for more than all credits
    /// together.
    pub(in super::super) fn join(&self, credits: u32) -> Result<()> {
        let mut state = lock(&self.state);
        state.connections += 1;
        state.credits = state.credits.saturating_add(credits);
        let first = state.credits.min(credits.max(self.per_chunk)) as usize;
        drop(state);
        let growing = lock(&self.growing);
        while lock(&self.state).usable() < first {
            if let Err(error) = self.grow() {
                lock(&self.state).part(credits);
                return Err(error);
            }
        }
        drop(growing);
        self.give_back([]);
        self.ask_for_limit();
        Ok(())
    }

    /// Removes a connection, whose queue pair is gone, and posts its receives again.
    pub(in super::super) fn leave(&self, credits: u32, numbers: impl Iterator<Item = u32>) {
        // This comes before any lock, since a child of fork may have inherited a locked one.
        if self.context.is_forked() {
            return;
        }
        let mut state = lock(&self.state);
        state.part(credits);
        let posted = state.posted_in_all;
        state.gone.push_back(posted);
        drop(state);
        self.give_back(numbers);
        if self.is_low(&lock(&self.state)) {
            self.want_memory();
        }
    }

    /// Adds memory. The caller has locked `growing`.
    fn grow(&self) -> Result<()> {
        let stride = self.stride();
        let words = (0..stride * self.per_chunk as usize).map(|_| AtomicU64::new(0));
        let words: Box<[AtomicU64]> = words.collect();
        let flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let mr = Mr::of_words(&self.context, &words, flags)?;
        let mut state = lock(&self.state);
        let first = state.with_adapter.len() as u32;
        if first + self.per_chunk > NUMBERS {
            let text = "a million receives of one shared queue";
            return Err(Error::new(ErrorKind::NoMemory, None, text));
        }
        state.chunks.push(Chunk { mr, words });
        state.spare.extend(first..first + self.per_chunk);
        let numbers = state.spare.len() + state.posted.len();
        state.posted.reserve(numbers);
        let all = (first + self.per_chunk) as usize;
        state.with_adapter.resize(all, false);
        Ok(())
    }

    /// Returns the number of words of a receive.
    fn stride(&self) -> usize {
        self.capacity.div_ceil(64).max(1) * 8
    }

    /// Returns the address of a receive, and its key.
    fn addr_and_key(&self, state: &Receives, number: u32) -> (NonNull<u8>, u32) {
        let chunk = &state.chunks[(number / self.per_chunk) as usize];
        let first = (number % self.per_chunk) as usize * self.stride();
        let words = &chunk.words[first..first + self.stride()];
        (NonNull::from(words).cast(), chunk.mr.lkey())
    }

    /// Posts spare receives up to the wanted number ([`Receives::wanted`]). Returns the number that
    /// was posted.
    fn fill(&self) -> Result<usize> {
        let state = &mut *lock(&self.state);
        let mut posted = 0;
        loop {
            let mut chain = RecvChain::new();
            let with_adapter = state.posted.len() + state.overtaken.len();
            let wanted = (state.wanted()).saturating_sub(state.posted.len() + state.had());
            let count = (self.most as usize)
                .saturating_sub(with_adapter)
                .min(wanted);
            let count = count.min(state.spare.len());
            let first = state.spare.len() - count;
            for &number in state.spare[first..].iter().rev() {
                if !chain.has_capacity() {
                    break;
                }
                let (addr, lkey) = self.addr_and_key(state, number);
                // SAFETY: the key is that of the region of these words, which are freed after the
                // queue. No other thread uses them until the receive has ended.
                let dst = Segments::one(unsafe { Segment::new(addr, self.capacity, lkey.into()) });
                let name = u64::from(self.id) << 32 | u64::from(NAMES | number);
                let (token, len) = (Token::from_raw(name), self.capacity);
                chain.push(&Receive { token, dst, len }, false);
            }
            if chain.len() == 0 {
                return Ok(posted);
            }
            self.post(state, &mut chain)?;
            posted += chain.len();
        }
    }

    /// Posts the receives in `chain`: the last ones of `state.spare`.
    fn post(&self, state: &mut Receives, chain: &mut RecvChain) -> Result<()> {
        let (all, mut bad) = (chain.len(), ptr::null_mut());
        let first = chain.link();
        // SAFETY: the queue is alive, the list is in `chain`, and the memory is freed after the
        // queue.
        let answer = unsafe { self.context.ops.post_srq_recv(self.raw(), first, &mut bad) };
        let posted = match answer {
            0 => all,
            // If the adapter does not report which receives it has taken, it may have any of them.
            // Those that it does not have never end, and are overtaken.
            _ => chain.position(bad).unwrap_or(all),
        };
        for _ in 0..posted {
            if let Some(number) = state.spare.pop() {
                state.with_adapter[number as usize] = true;
                state.posted.push_back(number);
                state.posted_in_all += 1;
            }
        }
        check("ibv_post_srq_recv", answer)
    }

    /// Takes a receive that the adapter has ended, with or without a message. The caller has the
    /// receive until it calls `give_back`. Returns `None` for a name that the adapter does not
    /// have.
    pub(in super::super) fn ended(&self, wr_id: u64) -> Option<u32> {
        if !self.has(wr_id) {
            return None;
        }
        let number = wr_id as u32 & NUMBERS;
        let state = &mut *lock(&self.state);
        if !state.end(number) {
            return None;
        }
        if self.is_low(state) {
            self.want_memory();
        }
        Some(number)
    }

    /// Returns true if few receives are left, and more could be posted if there were memory. Each
    /// queue pair that is gone counts as one lost receive.
    fn is_low(&self, state: &Receives) -> bool {
        let with_adapter = state.posted.len() + state.overtaken.len();
        let few = state.left() < self.limit() as usize;
        few && with_adapter < self.most as usize && state.missing() > 0
    }

    /// Requests memory from the watcher.
    fn want_memory(&self) {
        if !self.low.swap(true, SeqCst) {
            wake();
        }
    }

    /// Returns the number of posted receives below which memory is added.
    fn limit(&self) -> u32 {
        (self.per_chunk / 2).min(self.most / 2).max(1)
    }

    /// Copies the first `len` bytes of a message.
    ///
    /// # Safety
    ///
    /// The caller has the receive, and `dst` is valid, leased, and has `len` bytes.
    pub(in super::super) unsafe fn copy(&self, number: u32, len: usize, dst: &Segments) {
        let (from, _) = self.addr_and_key(&lock(&self.state), number);
        let (mut from, mut left) = (from.as_ptr().cast_const(), len.min(self.capacity));
        for segment in dst.as_slice() {
            let part = left.min(segment.len());
            // SAFETY: `part` bytes are left of the receive, which only the caller uses. The piece
            // has `part` bytes, as the caller promises.
            unsafe { volatile_copy(from, segment.addr().as_ptr(), part) };
            from = from.wrapping_add(part);
            left -= part;
        }
    }

    /// Takes receives back that the caller had, and posts them again.
    pub(in super::super) fn give_back(&self, numbers: impl IntoIterator<Item = u32>) {
        lock(&self.state).spare.extend(numbers);
        if self.fill().is_err() {
            // The watcher tries again.
            self.want_memory();
        }
    }

    /// Returns true if no receive is left for any connection's message.
    pub(in super::super) fn is_drained(&self) -> bool {
        lock(&self.state).posted.is_empty()
    }

    /// Adds memory if it is needed, or if the adapter has reported (`told`) that few receives are
    /// left. Returns true if memory is still needed. The caller is the watcher.
    pub(in super::super) fn top_up(&self, told: bool) -> bool {
        // This comes before the check, so that a thread which sets the flag again wakes the watcher
        // again.
        if !self.low.swap(false, SeqCst) && !told {
            return false;
        }
        if let Err(error) = self.add_memory(told) {
            // The watcher is not woken now, but tries again after a while.
            self.low.store(true, SeqCst);
            let text = "no more receives for a shared receive queue";
            log(|| tracing::debug!(target: "tokio_doca::verbs", %error, "{text}"));
            return true;
        }
        self.ask_for_limit();
        false
    }

    fn add_memory(&self, mut told: bool) -> Result<()> {
        let _growing = lock(&self.growing);
        self.fill()?;
        loop {
            let state = lock(&self.state);
            let wanted = std::mem::take(&mut told) || self.is_low(&state);
            if !wanted || state.missing() == 0 {
                return Ok(());
            }
            drop(state);
            self.grow()?;
            if self.fill()? == 0 {
                return Ok(());
            }
        }
    }

    /// Requests an event for when few receives are left, if memory could be added then.
    fn ask_for_limit(&self) {
        let Some(modify_srq) = self.context.table.modify_srq else {
            return;
        };
        if lock(&self.state).missing() == 0 {
            return;
        }
        let mut attr = ibv_srq_attr {
            srq_limit: self.limit(),
            ..ibv_srq_attr::default()
        };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        // SAFETY: the queue is alive, and the attributes are this function's. If the adapter
        // refuses, completions still show it.
        let _ = unsafe { modify_srq(self.raw(), &mut attr, mask) };
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let raw = self.raw();
        let destroyed = self.context.table.destroy_srq.is_some_and(|destroy_srq| {
            // SAFETY: the queue pairs of the queue held it, and are gone.
            let destroy = || unsafe { destroy_srq(raw) };
            self.context.destroy("ibv_destroy_srq", destroy)
        });
        if !destroyed {
            // The adapter may still write to the memory.
            let state = std::mem::take(&mut *lock(&self.state));
            std::mem::forget(state.chunks);
            return;
        }
        self.cq.release(self.most);
    }
}
