//! A shared receive queue: receives of many queue pairs, into memory of its own.
//!
//! Each receive is a number. It is posted; or its message has come, and a connection has it, until
//! it gives it back; or it is spare. No more are posted or had than the connections lend credits,
//! so that one connection alone has its credits to the letter. Memory is added when few receives
//! are left: the adapter says so (`IBV_EVENT_SRQ_LIMIT_REACHED`), or completions do, and the thread
//! of `watcher` adds it.
//!
//! A queue pair that fails, or is destroyed amid a message, may take a receive with it: the adapter
//! never says so. Receives are used up in order. So one that is older than one that has ended, and
//! has not, is *overtaken*: its message is on its way yet, or it is lost. It is never posted again
//! unless it ends, and does not count. Until those that were posted before a queue pair went have
//! ended or were overtaken, one more is posted for it. A queue that may have lost many takes no new
//! connections, so that peers who fail on purpose take no receives from those who stay.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::super::adapter::{Context, Mr, check_ptr, wake};
use super::super::ffi::*;
use super::cq::Cq;
use super::wr::RecvChain;
use crate::device::{Receive, Segment, Segments, Token, volatile_copy};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{lock, log};

/// What names a receive, in the lower half of its request's id: no Token, and no probe.
const NAMES: u32 = 0xfff << 20;
/// Numbers of receives; the last one would be a probe's name.
const NUMBERS: u32 = (1 << 20) - 1;
/// The most that are posted at once.
const POSTED: u32 = 1024;
/// So many may be lost beside those whose messages may be on their way.
const LOST: usize = 64;
/// Bytes of memory that is added at once, and how many receives that is.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK: usize = 64;

pub(in super::super) struct Srq {
    context: Arc<Context>,
    cq: Arc<Cq>,
    raw: NonNull<ibv_srq>,
    id: u32,
    room: usize,
    /// The most that are posted at once.
    most: u32,
    /// Receives of a chunk of memory.
    per_chunk: u32,
    state: Mutex<State>,
    /// Held by the caller that adds memory.
    growing: Mutex<()>,
    /// Memory is wanted.
    low: AtomicBool,
}

#[derive(Default)]
struct State {
    chunks: Vec<Chunk>,
    /// The oldest first.
    posted: VecDeque<u32>,
    overtaken: Vec<u32>,
    spare: Vec<u32>,
    /// Of each receive, whether the adapter has it: whether it is posted or overtaken.
    with_adapter: Vec<bool>,
    /// How many were ever posted.
    posted_in_all: u64,
    /// The same when queue pairs went, each of which may have lost one of those.
    gone: VecDeque<u64>,
    /// Connections, and their credits.
    connections: u32,
    credits: u32,
}

/// Receives side by side.
struct Chunk {
    /// Dropped before the words.
    mr: Mr,
    words: Box<[AtomicU64]>,
}

// SAFETY: libibverbs may be called from any thread on any object; it is destroyed once.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

/// Whether this names a receive of a shared queue.
#[inline(always)]
pub(in super::super) fn is_name(wr_id: u64) -> bool {
    wr_id as u32 >= NAMES && wr_id as u32 != u32::MAX
}

impl State {
    /// All but those that may be lost.
    fn usable(&self) -> usize {
        self.with_adapter.len() - self.overtaken.len()
    }

    /// Those whose messages connections have.
    fn had(&self) -> usize {
        self.usable() - self.posted.len() - self.spare.len()
    }

    fn part(&mut self, credits: u32) {
        self.connections -= 1;
        self.credits = self.credits.saturating_sub(credits);
    }

    /// How many shall be posted or had.
    fn wanted(&self) -> usize {
        self.credits as usize + self.gone.len()
    }

    /// How many of those there is no memory for.
    fn missing(&self) -> usize {
        self.wanted().saturating_sub(self.usable())
    }
}

impl Srq {
    /// A queue of receives of `room` bytes, without memory yet.
    pub(in super::super) fn create(cq: &Arc<Cq>, room: usize) -> Result<Srq> {
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
        let per_chunk = (CHUNK_BYTES / room.max(1)).clamp(4, CHUNK) as u32;
        Ok(Srq {
            context: Arc::clone(context),
            cq: Arc::clone(cq),
            raw,
            id,
            room,
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

    /// What comes back with its events.
    pub(in super::super) fn id(&self) -> u32 {
        self.id
    }

    /// Bytes of a receive.
    pub(in super::super) fn room(&self) -> usize {
        self.room
    }

    /// Whether a connection with receives of this length may join.
    pub(in super::super) fn suits(&self, room: usize) -> bool {
        let state = lock(&self.state);
        let lost = state.overtaken.len() + state.gone.len();
        room == self.room && lost <= state.connections as usize + LOST
    }

    /// Whether this names one of its receives.
    #[inline(always)]
    pub(in super::super) fn has(&self, wr_id: u64) -> bool {
        is_name(wr_id) && (wr_id >> 32) as u32 == self.id
    }

    /// A connection lends its peer so many credits, and there is memory for them, or for the first
    /// of all credits.
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
        self.fill();
        self.ask_for_limit();
        Ok(())
    }

    /// A connection's queue pair is gone.
    pub(in super::super) fn leave(&self, credits: u32) {
        let mut state = lock(&self.state);
        state.part(credits);
        let posted = state.posted_in_all;
        state.gone.push_back(posted);
    }

    /// Adds memory. The caller has `growing`.
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

    /// Words of a receive.
    fn stride(&self) -> usize {
        self.room.div_ceil(64).max(1) * 8
    }

    /// Where a receive lies, and its key.
    fn place(&self, state: &State, number: u32) -> (NonNull<u8>, u32) {
        let chunk = &state.chunks[(number / self.per_chunk) as usize];
        let first = (number % self.per_chunk) as usize * self.stride();
        let words = &chunk.words[first..first + self.stride()];
        (NonNull::from(words).cast(), chunk.mr.lkey())
    }

    /// Posts spare receives, as many as there are credits for.
    fn fill(&self) {
        let state = &mut *lock(&self.state);
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
                if !chain.has_room() {
                    break;
                }
                let (addr, lkey) = self.place(state, number);
                // SAFETY: the key is that of the region of these words, which go after the queue.
                // Nobody else uses them until the receive has ended.
                let dst = Segments::one(unsafe { Segment::new(addr, self.room, lkey.into()) });
                let name = u64::from(self.id) << 32 | u64::from(NAMES | number);
                chain.push(&Receive {
                    token: Token::from_raw(name),
                    dst,
                    room: self.room,
                });
            }
            if chain.len() == 0 {
                return;
            }
            if !self.post(state, &mut chain) {
                // The watcher tries again.
                return self.low.store(true, SeqCst);
            }
        }
    }

    /// Posts the last spare receives, of which this is the list; false if not all.
    fn post(&self, state: &mut State, chain: &mut RecvChain) -> bool {
        let (all, mut bad) = (chain.len(), ptr::null_mut());
        let first = chain.link();
        // SAFETY: the queue is alive, the list is in `chain`, and its memory goes after the queue.
        let answer = unsafe { self.context.ops.post_srq_recv(self.raw(), first, &mut bad) };
        let posted = match answer {
            0 => all,
            // If it does not say which it took, it may have any: those that it has not never end,
            // and are overtaken.
            _ => chain.position(bad).unwrap_or(all),
        };
        for _ in 0..posted {
            if let Some(number) = state.spare.pop() {
                state.with_adapter[number as usize] = true;
                state.posted.push_back(number);
                state.posted_in_all += 1;
            }
        }
        answer == 0
    }

    /// The adapter has ended this receive, and has a message in it or not. It is the caller's until
    /// it gives it back. `None` of a name that the adapter does not have.
    pub(in super::super) fn ended(&self, wr_id: u64) -> Option<u32> {
        if !self.has(wr_id) {
            return None;
        }
        let number = wr_id as u32 & NUMBERS;
        let state = &mut *lock(&self.state);
        // A driver that names none of them, or one twice, is not believed.
        let with_adapter = state.with_adapter.get_mut(number as usize)?;
        if !std::mem::take(with_adapter) {
            return None;
        }
        if let Some(at) = state.overtaken.iter().position(|&it| it == number) {
            state.overtaken.swap_remove(at);
            return Some(number);
        }
        while let Some(oldest) = state.posted.pop_front().filter(|&it| it != number) {
            state.overtaken.push(oldest);
        }
        let oldest = state.posted_in_all - state.posted.len() as u64;
        let past = state.gone.partition_point(|&posted| posted <= oldest);
        state.gone.drain(..past);
        if self.is_low(state) && !self.low.swap(true, SeqCst) {
            wake();
        }
        Some(number)
    }

    fn is_low(&self, state: &State) -> bool {
        state.posted.len() < self.limit() as usize && state.missing() > 0
    }

    /// Receives that are left when memory is added.
    fn limit(&self) -> u32 {
        (self.per_chunk / 2).min(self.most / 2).max(1)
    }

    /// Copies the first `len` bytes of a message.
    ///
    /// # Safety
    ///
    /// The caller has the receive, and `dst` is valid, leased, and has so many bytes.
    pub(in super::super) unsafe fn copy(&self, number: u32, len: usize, dst: &Segments) {
        let (from, _) = self.place(&lock(&self.state), number);
        let (mut from, mut left) = (from.as_ptr().cast_const(), len.min(self.room));
        for segment in dst.as_slice() {
            let part = left.min(segment.len());
            // SAFETY: `part` bytes are left of the receive, which nobody else touches, and of the
            // piece, as the caller promises.
            unsafe { volatile_copy(from, segment.addr().as_ptr(), part) };
            from = from.wrapping_add(part);
            left -= part;
        }
    }

    /// Receives that the caller had are posted again.
    pub(in super::super) fn give_back(&self, numbers: impl IntoIterator<Item = u32>) {
        lock(&self.state).spare.extend(numbers);
        self.fill();
    }

    /// Whether no receive is left for anybody's message.
    pub(in super::super) fn is_drained(&self) -> bool {
        lock(&self.state).posted.is_empty()
    }

    /// Adds memory if it is wanted, or if the adapter has `told` that few receives are left. The
    /// caller is the watcher.
    pub(in super::super) fn top_up(&self, told: bool) {
        // Before the look: who sets it again wakes the watcher again.
        if !self.low.swap(false, SeqCst) && !told {
            return;
        }
        let growing = lock(&self.growing);
        self.fill();
        let mut told = told;
        while {
            let state = lock(&self.state);
            state.missing() > 0 && (std::mem::take(&mut told) || self.is_low(&state))
        } {
            if let Err(error) = self.grow() {
                // It is wanted still: the watcher's next turn asks again.
                self.low.store(true, SeqCst);
                drop(growing);
                let text = "no more memory for a shared receive queue";
                log(|| tracing::debug!(target: "tokio_doca::verbs", %error, "{text}"));
                return;
            }
            self.fill();
        }
        drop(growing);
        self.ask_for_limit();
    }

    /// Has the adapter tell when few are left, if more could be added then.
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
        // SAFETY: the queue is alive; the attributes are this function's. If it is refused,
        // completions tell all the same.
        let _ = unsafe { modify_srq(self.raw(), &mut attr, mask) };
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let raw = self.raw();
        let destroyed = self.context.table.destroy_srq.is_some_and(|destroy_srq| {
            // SAFETY: its queue pairs held this, and have gone.
            let destroy = || unsafe { destroy_srq(raw) };
            self.context.destroy("ibv_destroy_srq", destroy)
        });
        if !destroyed {
            // The adapter may write there.
            let state = std::mem::take(&mut *lock(&self.state));
            std::mem::forget(state.chunks);
            return;
        }
        self.cq.release(self.most);
    }
}
