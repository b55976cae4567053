//! Hashes: by the CPU, a part at each look of whoever reaps.
#![expect(unsafe_code, reason = "hashes memory that was lent")]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::device::{Completion, HASH_COST, Hasher, ShaJob, Token};
use crate::sync::lock;

/// Bytes of one look: about 50 us.
const PIECE: usize = (256 << 10) / HASH_COST;
/// Up to here it is not worth a Slot.
const INLINE: usize = (64 << 10) / HASH_COST;

pub(super) struct Hashes {
    pending: AtomicUsize,
    line: Mutex<Line>,
}

struct Line {
    jobs: VecDeque<(Token, ShaJob)>,
    hasher: Hasher,
    /// How much of the oldest is hashed.
    done: usize,
}

impl Hashes {
    pub(in super::super) fn new(depth: u32) -> Hashes {
        Hashes {
            pending: AtomicUsize::new(0),
            line: Mutex::new(Line {
                jobs: VecDeque::with_capacity(depth as usize),
                hasher: Hasher::default(),
                done: 0,
            }),
        }
    }

    pub(super) fn pending(&self) -> bool {
        self.pending.load(SeqCst) > 0
    }

    /// # Safety
    ///
    /// As for `Queue::try_inline_sha`.
    pub(in super::super) unsafe fn now(&self, job: &ShaJob) -> Option<u64> {
        if job.len() > INLINE {
            return None;
        }
        // SAFETY: memory and session are valid, and leased, during the call.
        unsafe { Hasher::default().work(job, 0, usize::MAX) };
        Some(job.answer())
    }

    /// # Safety
    ///
    /// As for `Queue::submit_sha`.
    pub(in super::super) unsafe fn submit(&self, jobs: &[(Token, ShaJob)]) {
        lock(&self.line).jobs.extend(jobs.iter().copied());
        self.pending.fetch_add(jobs.len(), SeqCst);
    }

    /// Does a part of the oldest.
    pub(in super::super) fn work(&self) -> Option<Completion> {
        let Line { jobs, hasher, done } = &mut *lock(&self.line);
        let (token, job) = *jobs.front()?;
        // SAFETY: it was submitted, and is not over: memory and session are valid, and leased.
        *done += unsafe { hasher.work(&job, *done, PIECE) };
        if *done < job.len() {
            return None;
        }
        *done = 0;
        jobs.pop_front();
        self.pending.fetch_sub(1, SeqCst);
        Some(Completion::new(token, Ok(job.answer())))
    }

    /// Nothing is touched any more.
    pub(in super::super) fn end(&self) {
        let mut line = lock(&self.line);
        self.pending.fetch_sub(line.jobs.len(), SeqCst);
        line.jobs.clear();
    }
}
