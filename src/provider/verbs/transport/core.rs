//! What all queue pairs of one WorkQ and device share: the completion queue, what was finished
//! without it, and the bell.

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
    /// There is something in it, or who reaps shall look at everything.
    attention: AtomicBool,
    armed: AtomicBool,
    /// What events of the copies' queue pair come back with, and of which there was one.
    copies: AtomicU64,
    copies_failed: AtomicU64,
    /// Something of it could not be taken from the adapter.
    doubt: AtomicBool,
    answers_kept: AtomicBool,
    srqs: Mutex<Vec<Weak<Srq>>>,
    /// Jobs that the adapter has finished. Written under the lock under which completions are
    /// polled.
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

    /// Counts a Job that the adapter has finished. The caller polls completions.
    #[inline(always)]
    pub(in super::super) fn count(&self) {
        self.jobs.store(self.jobs() + 1, Relaxed);
    }

    pub(in super::super) fn jobs(&self) -> u64 {
        self.jobs.load(Relaxed)
    }

    /// Completions that did not come from the adapter, or were taken from it before somebody asked.
    pub(in super::super) fn finished(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        lock(&self.finished)
    }

    /// A Job has completed, and the adapter will not say so.
    pub(in super::super) fn finish(&self, completion: Completion) {
        self.finished().push_back(completion);
        self.request_reap();
    }

    /// The same, for one that nobody is waited for: who armed looks next.
    pub(in super::super) fn keep(&self, completion: Completion) {
        self.finished().push_back(completion);
        self.ask_to_look();
    }

    /// Who armed looks next, and stays armed.
    pub(in super::super) fn ask_to_look(&self) {
        self.attention.store(true, SeqCst);
    }

    /// The copies have another queue pair.
    pub(in super::super) fn set_copies(&self, id: u64) {
        self.copies.store(id, SeqCst);
    }

    /// A queue pair has failed, and no completion may tell of it: whoever reaps looks after it, if
    /// it is that of the copies.
    pub(in super::super) fn fail_copies(&self, id: u64) {
        if self.copies.load(SeqCst) == id {
            self.copies_failed.store(id, SeqCst);
            self.request_reap();
        }
    }

    /// Returns true if it was that of now: another one may have taken its place meanwhile.
    pub(in super::super) fn take_copies_failed(&self) -> bool {
        let failed = self.copies_failed.swap(0, SeqCst);
        failed != 0 && failed == self.copies.load(SeqCst)
    }

    /// Who reaps shall look at more than the completion queue.
    pub(in super::super) fn request_reap(&self) {
        // Before the look whether somebody sleeps; `arm` does it the other way round.
        self.attention.store(true, SeqCst);
        self.ring();
    }

    /// Rings if somebody armed.
    pub(in super::super) fn ring(&self) {
        if self.armed.swap(false, SeqCst) {
            self.signal.ring();
        }
    }

    /// Returns true if there is more to look at; it is the caller's then.
    #[inline(always)]
    pub(in super::super) fn take_attention(&self) -> bool {
        self.attention.load(SeqCst) && self.attention.swap(false, SeqCst)
    }

    pub(in super::super) fn needs_attention(&self) -> bool {
        self.attention.load(SeqCst)
    }

    /// A queue pair could not be taken from the adapter with so many requests: what it may write is
    /// kept for ever, the answers here, and whatever is given to `retire`.
    pub(in super::super) fn keep_for_ever(self: &Arc<Self>, requests: u32) {
        self.keep_jobs();
        // Their completions may come beside those of the Jobs that get their Slots.
        if let Err(error) = self.cq.promise(requests) {
            let (error, text) = (
                error.to_string(),
                "a queue pair that stays may overrun the queue",
            );
            log_later(move || tracing::error!(target: "tokio_doca::verbs", error, "{text}"));
        }
        std::mem::forget(Arc::clone(self));
    }

    /// The memory of jobs that have completed, or will complete, is kept although nobody may reap
    /// their end.
    pub(in super::super) fn keep_jobs(&self) {
        self.doubt.store(true, SeqCst);
    }

    /// One of an endpoint: it may still write the answers of its atomics.
    pub(in super::super) fn keep_answers(&self) {
        self.answers_kept.store(true, SeqCst);
    }

    pub(in super::super) fn answers_are_kept(&self) -> bool {
        self.answers_kept.load(SeqCst)
    }

    pub(in super::super) fn is_in_doubt(&self) -> bool {
        self.doubt.load(SeqCst)
    }

    /// Returns a shared receive queue whose receives have `room` bytes, joined by a connection with
    /// so many credits.
    pub(in super::super) fn srq(&self, room: usize, credits: u32) -> Result<Arc<Srq>> {
        // Dropped after the lock: the last handle may wait for the watcher, which takes the lock.
        let (open, srq): (Vec<_>, Arc<Srq>);
        let mut srqs = lock(&self.srqs);
        srqs.retain(|srq| srq.strong_count() > 0);
        open = srqs.iter().filter_map(Weak::upgrade).collect();
        srq = match open.iter().find(|srq| srq.suits(room)) {
            Some(srq) => Arc::clone(srq),
            None => Arc::new(Srq::create(&self.cq, room)?),
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

    /// A receive of a shared queue has ended, of a queue pair that is gone: it is posted again.
    pub(in super::super) fn stray(&self, wr_id: u64) {
        for srq in self.open_srqs() {
            srq.give_back(srq.ended(wr_id));
        }
    }

    /// Adds memory to the shared receive queues that want it; `told` is the number of one of which
    /// the adapter says that few receives are left. Returns whether one still wants some. The
    /// caller is the watcher.
    pub(in super::super) fn top_up(&self, told: Option<u32>) -> bool {
        let srqs = self.open_srqs().into_iter();
        let each = srqs.map(|srq| srq.top_up(told == Some(srq.id())));
        each.fold(false, |any, one| any | one)
    }

    /// Returns true if the queue pair of the copies may have failed.
    pub(in super::super) fn have_copies_failed(&self) -> bool {
        self.copies_failed.load(SeqCst) != 0
    }

    /// Whether somebody sleeps, or is about to.
    pub(in super::super) fn set_armed(&self, armed: bool) {
        self.armed.store(armed, SeqCst);
    }
}

impl Drop for Core {
    /// Its device continues counting.
    fn drop(&mut self) {
        self.context.jobs.fetch_add(self.jobs(), Relaxed);
    }
}

/// Where the answers of atomics go: a word for each Job.
pub(in super::super) struct Answers {
    /// Dropped before the words.
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

    /// Returns where they are, and the key.
    pub(in super::super) fn place(&self) -> (u64, u32) {
        let addr = self.words.as_ptr().addr() as u64;
        (addr, self.mr.as_ref().map_or(0, Mr::lkey))
    }

    /// Returns what the adapter wrote for a Job.
    pub(in super::super) fn get(&self, index: u32) -> u64 {
        // Its completion was seen, which is behind what it wrote.
        let word = self.words.get(index as usize);
        word.map_or(0, |word| word.load(Relaxed))
    }
}
