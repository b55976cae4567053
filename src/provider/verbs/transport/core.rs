//! The state that all queue pairs of one WorkQ and device share: the completion queue, completions
//! that do not come from it, and the signal.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::super::adapter::{Context, Mr};
use super::super::ffi::ibv_access_flags;
use super::cq::Cq;
use super::srq::Srq;
use crate::device::{Completion, Signal};
use crate::error::Result;
use crate::sync::{lock, log_later};

pub(in super::super) struct Core {
    pub(in super::super) context: Arc<Context>,
    pub(in super::super) cq: Arc<Cq>,
    pub(in super::super) answers: Answers,
    finished: Mutex<VecDeque<Completion>>,
    /// True if `finished` is not empty, or if the reaper shall check everything.
    attention: AtomicBool,
    armed: AtomicBool,
    /// The id that events of the copies' queue pair carry. `copies_failed` is the id of the queue
    /// pair for which such an event has come.
    copies: AtomicU64,
    copies_failed: AtomicU64,
    /// True if a queue pair could not be taken from the adapter.
    doubt: AtomicBool,
    answers_kept: AtomicBool,
    srqs: Mutex<Vec<Weak<Srq>>>,
    /// The number of Jobs that the adapter has finished. It is written under the lock under which
    /// completions are polled.
    jobs: AtomicU64,
    signal: Arc<Signal>,
}

impl Core {
    pub(in super::super) fn new(
        context: &Arc<Context>,
        cq: Cq,
        depth: u32,
        signal: &Arc<Signal>,
    ) -> Result<Core> {
        Ok(Core {
            context: Arc::clone(context),
            cq: Arc::new(cq),
            answers: Answers::new(context, depth)?,
            finished: Mutex::new(VecDeque::with_capacity(depth as usize)),
            attention: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            copies: AtomicU64::new(0),
            copies_failed: AtomicU64::new(0),
            doubt: AtomicBool::new(false),
            answers_kept: AtomicBool::new(false),
            srqs: Mutex::default(),
            jobs: AtomicU64::new(0),
            signal: Arc::clone(signal),
        })
    }

    /// Counts a Job that the adapter has finished. The caller holds the lock under which
    /// completions are polled.
    #[inline(always)]
    pub(in super::super) fn count(&self) {
        self.jobs.store(self.jobs() + 1, Relaxed);
    }

    pub(in super::super) fn jobs(&self) -> u64 {
        self.jobs.load(Relaxed)
    }

    /// Returns the completions that did not come from the adapter, or that were polled before a
    /// reap.
    pub(in super::super) fn finished(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        lock(&self.finished)
    }

    /// Completes a Job for which the adapter will report no completion.
    pub(in super::super) fn finish(&self, completion: Completion) {
        self.finished().push_back(completion);
        self.request_reap();
    }

    /// Stores a completion that a thread has polled while it armed. Sends no signal, since that
    /// thread polls again next.
    pub(in super::super) fn keep(&self, completion: Completion) {
        self.finished().push_back(completion);
        self.request_poll();
    }

    /// Makes the thread that armed poll next, without a signal. The armed state stays.
    pub(in super::super) fn request_poll(&self) {
        self.attention.store(true, SeqCst);
    }

    /// Sets the id of the copies' new queue pair.
    pub(in super::super) fn set_copies(&self, id: u64) {
        self.copies.store(id, SeqCst);
    }

    /// Notes that the queue pair with this id has failed, perhaps without a completion that shows
    /// it, and requests a reap. Does nothing unless that is the queue pair of the copies.
    pub(in super::super) fn fail_copies(&self, id: u64) {
        if self.copies.load(SeqCst) == id {
            self.copies_failed.store(id, SeqCst);
            self.request_reap();
        }
    }

    /// Returns true, once, if the present queue pair of the copies has failed. A failed queue pair
    /// that was replaced meanwhile does not count.
    pub(in super::super) fn take_copies_failed(&self) -> bool {
        let failed = self.copies_failed.swap(0, SeqCst);
        failed != 0 && failed == self.copies.load(SeqCst)
    }

    /// Requests that the reaper check more than the completion queue.
    pub(in super::super) fn request_reap(&self) {
        // The flag is set before the check whether a thread armed. `arm` does these in the opposite
        // order.
        self.attention.store(true, SeqCst);
        self.raise();
    }

    /// Signals if a thread armed.
    pub(in super::super) fn raise(&self) {
        if self.armed.swap(false, SeqCst) {
            self.signal.raise();
        }
    }

    /// Returns true, once, if there is more to check than the completion queue.
    #[inline(always)]
    pub(in super::super) fn take_attention(&self) -> bool {
        self.attention.load(SeqCst) && self.attention.swap(false, SeqCst)
    }

    pub(in super::super) fn needs_attention(&self) -> bool {
        self.attention.load(SeqCst)
    }

    /// Keeps for ever all memory to which a queue pair may still write because it could not be
    /// taken from the adapter: the answers of atomics, and the memory that `Queue::retire` gets in
    /// `keep`. The queue pair has at most `requests` requests.
    pub(in super::super) fn keep_for_ever(self: &Arc<Self>, requests: u32) {
        self.keep_jobs();
        // These requests may still complete, in addition to the Jobs that get their Slots next.
        if let Err(error) = self.cq.promise(requests) {
            let (error, text) = (
                error.to_string(),
                "a queue pair that stays may overrun the completion queue",
            );
            log_later(move || tracing::error!(target: "tokio_doca::verbs", error, "{text}"));
        }
        std::mem::forget(Arc::clone(self));
    }

    /// Makes `Queue::retire` keep the memory that it gets for ever, since the adapter may still use
    /// it.
    pub(in super::super) fn keep_jobs(&self) {
        self.doubt.store(true, SeqCst);
    }

    /// Records that an endpoint's queue pair may still write the answers of its atomics.
    pub(in super::super) fn keep_answers(&self) {
        self.answers_kept.store(true, SeqCst);
    }

    pub(in super::super) fn answers_are_kept(&self) -> bool {
        self.answers_kept.load(SeqCst)
    }

    pub(in super::super) fn is_in_doubt(&self) -> bool {
        self.doubt.load(SeqCst)
    }

    /// Joins a shared receive queue whose receives have `capacity` bytes, for a connection with
    /// these `credits`, and returns the queue.
    pub(in super::super) fn srq(&self, capacity: usize, credits: u32) -> Result<Arc<Srq>> {
        // These are dropped after the lock was released: dropping the last handle may wait for the
        // watcher, which takes the lock.
        let (open, srq): (Vec<_>, Arc<Srq>);
        let mut srqs = lock(&self.srqs);
        srqs.retain(|srq| srq.strong_count() > 0);
        open = srqs.iter().filter_map(Weak::upgrade).collect();
        srq = match open.iter().find(|srq| srq.suits(capacity)) {
            Some(srq) => Arc::clone(srq),
            None => Arc::new(Srq::create(&self.cq, capacity)?),
        };
        srq.join(credits)?;
        if !srqs.iter().any(|it| it.as_ptr() == Arc::as_ptr(&srq)) {
            srqs.push(Arc::downgrade(&srq));
        }
        drop(srqs);
        Ok(srq)
    }

    fn open_srqs(&self) -> Vec<Arc<Srq>> {
        let srqs = lock(&self.srqs);
        srqs.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes back a receive of a shared queue that has ended for a queue pair that is gone, and
    /// posts it again.
    pub(in super::super) fn stray(&self, wr_id: u64) {
        for srq in self.open_srqs() {
            srq.give_back(srq.ended(wr_id));
        }
    }

    /// Adds memory to the shared receive queues that need it. `told` is the id of a queue if the
    /// adapter has reported that few of its receives are left. Returns true if a queue still needs
    /// memory. The caller is the watcher.
    pub(in super::super) fn top_up(&self, told: Option<u32>) -> bool {
        let srqs = self.open_srqs().into_iter();
        let each = srqs.map(|srq| srq.top_up(told == Some(srq.id())));
        each.fold(false, |any, one| any | one)
    }

    /// Returns true if the queue pair of the copies may have failed.
    pub(in super::super) fn have_copies_failed(&self) -> bool {
        self.copies_failed.load(SeqCst) != 0
    }

    /// Sets whether a thread sleeps, or is about to.
    pub(in super::super) fn set_armed(&self, armed: bool) {
        self.armed.store(armed, SeqCst);
    }
}

impl Drop for Core {
    /// Adds the count of Jobs to that of the device.
    fn drop(&mut self) {
        self.context.jobs.fetch_add(self.jobs(), Relaxed);
    }
}

/// The words to which adapters write the answers of atomics, one for each Job.
pub(in super::super) struct Answers {
    /// The region is dropped before the words.
    mr: Option<Mr>,
    words: Box<[AtomicU64]>,
}

impl Answers {
    fn new(context: &Arc<Context>, depth: u32) -> Result<Answers> {
        let atomics = context.traits.caps().rdma.is_some_and(|rdma| rdma.atomics);
        let count = if atomics { depth } else { 0 };
        let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let mr = match words.is_empty() {
            true => None,
            false => Some(Mr::of_words(
                context,
                &words,
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            )?),
        };
        Ok(Answers { mr, words })
    }

    /// Returns the address of the words for answers, and the key of their region.
    pub(in super::super) fn addr_and_key(&self) -> (u64, u32) {
        let addr = self.words.as_ptr().addr() as u64;
        (addr, self.mr.as_ref().map_or(0, Mr::lkey))
    }

    /// Returns the answer that the adapter wrote for the Job with this index.
    pub(in super::super) fn get(&self, index: u32) -> u64 {
        // The adapter wrote the word before the completion, which the caller has seen.
        let word = self.words.get(index as usize);
        word.map_or(0, |word| word.load(Relaxed))
    }
}
