//! What a queue shares with its engine: a ring of Jobs there, a ring of Completions back.
//!
//! ```text
//!   submit (any thread) --> jobs --> engine --> done --> reap (one thread at a time)
//! ```
//!
//! Neither ring can overflow: no more than `depth` Jobs are in flight. A position is used again
//! only after one of the `depth` Tokens was used twice since, and so after the older value was got:
//! Jobs and Completions are got in order, and a Token is used again only after its Completion was
//! reaped.
#![expect(
    unsafe_code,
    reason = "does Jobs whose memory was lent, and drives rings"
)]

use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use super::super::copy;
use super::super::fault::{Fault, Faults, Held};
use super::ring::Ring;
use crate::device::{
    Completion, CopyJob, CpuJob, CpuState, Job, KeepAlive, QueueConfig, Signal, Token,
};
use crate::error::JobError;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::{discard, lock};

/// A Job that was accepted, and what shall happen to it.
pub(in super::super) struct Work {
    pub(in super::super) token: Token,
    pub(in super::super) task: Task,
    pub(in super::super) fault: Fault,
}

/// What there is to be done.
pub(in super::super) enum Task {
    Copy(CopyJob),
    Cpu(CpuJob),
}

impl Task {
    /// `None` for what this device does not do.
    #[inline(always)]
    pub(in super::super) fn of(job: Job<'_>) -> Option<Task> {
        match job {
            Job::Copy(job) => Some(Task::Copy(*job)),
            job => CpuJob::of(job).map(Task::Cpu),
        }
    }
}

/// A value that threads of one side write, on lines of its own.
#[repr(align(128))]
struct Side<T>(T);

/// What a queue and its engine share.
pub(in super::super) struct Rings {
    jobs: Ring<Work>,
    done: Ring<Completion>,
    doorbell: Doorbell,
    /// The next position of `jobs` to be put: so many Jobs were accepted.
    accepted: Side<AtomicU64>,
    /// The next position of `done` to be got.
    reaped: Side<AtomicU64>,
    /// The script broke the queue: its Jobs fail, and none is accepted.
    broken: AtomicBool,
    /// Nothing is accepted any more.
    retired: AtomicBool,
    keep: Mutex<Option<KeepAlive>>,
}

/// Rings once per `arm`, and only then.
pub(in super::super) struct Doorbell {
    /// So many Completions must have been put before it rings; 0 if nobody armed.
    armed: AtomicU64,
    signal: Arc<Signal>,
}

impl Doorbell {
    pub(in super::super) fn new(signal: Arc<Signal>) -> Doorbell {
        Doorbell {
            armed: AtomicU64::new(0),
            signal,
        }
    }

    /// Rings for the Completion at this position. The look that follows comes after it. Pairs with
    /// `ring_for_certain`.
    pub(in super::super) fn arm(&self, position: u64) {
        // Release, paired with `ring_once`: whoever hears the ring sees what was done before the
        // arm.
        self.armed.store(position + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// So many Completions were put: rings if it is seen that somebody armed for one of them.
    #[inline(always)]
    pub(in super::super) fn ring(&self, put: u64) {
        let armed = self.armed.load(Ordering::Relaxed);
        if armed != 0 && armed <= put {
            self.ring_once(armed, put);
        }
    }

    #[cold]
    fn ring_once(&self, mut armed: u64, put: u64) {
        while armed != 0 && armed <= put {
            match self
                .armed
                .compare_exchange(armed, 0, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return self.signal.ring(),
                Err(seen) => armed = seen,
            }
        }
    }

    /// So many Completions were put before: whoever armed before that is rung for, whoever arms
    /// after sees them.
    #[inline(always)]
    pub(in super::super) fn ring_for_certain(&self, put: u64) {
        fence(Ordering::SeqCst);
        self.ring(put);
    }
}

impl Rings {
    pub(in super::super) fn open(config: &QueueConfig) -> (Arc<Rings>, Consumer) {
        let depth = config.depth as usize;
        let rings = Arc::new(Rings {
            jobs: Ring::new(depth),
            done: Ring::new(depth),
            doorbell: Doorbell::new(Arc::clone(&config.signal)),
            accepted: Side(AtomicU64::new(0)),
            reaped: Side(AtomicU64::new(0)),
            broken: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            keep: Mutex::new(None),
        });
        let consumer = Consumer {
            rings: Arc::clone(&rings),
            depth,
            begun: 0,
            finished: 0,
            completed: 0,
        };
        (rings, consumer)
    }

    /// Puts a Job, and says at which position.
    ///
    /// # Safety
    ///
    /// What `Submit::submit` is promised: `depth` Jobs in flight, each with a Token of its own.
    /// Nothing was retired.
    #[inline(always)]
    pub(in super::super) unsafe fn accept(&self, work: Work) -> u64 {
        // AcqRel: whoever uses an entry again comes after all who took positions before, see the
        // module.
        let position = self.accepted.0.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the position is this call's alone; that the entry is empty says the module's
        // documentation.
        unsafe { self.jobs.put(position, work) };
        position
    }

    /// Hands Completions out.
    ///
    /// # Safety
    ///
    /// One caller at a time.
    pub(in super::super) unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let position = self.reaped.0.load(Relaxed);
        let mut reaped = 0;
        for place in out {
            // SAFETY: one thread reaps at a time, as the caller promises, and each continues where
            // the last one stopped.
            let Some(completion) = (unsafe { self.done.get(position + reaped) }) else {
                break;
            };
            *place = completion;
            reaped += 1;
        }
        self.reaped.0.store(position + reaped, Relaxed);
        reaped as usize
    }

    /// The next Completion rings, and not one that is there already. The look that follows comes
    /// after it.
    pub(in super::super) fn arm(&self) {
        let mut next = self.reaped.0.load(Relaxed);
        // Others may reap meanwhile: an old position is found to be full, and none is later than
        // what was put.
        while self.done.holds(next) {
            next += 1;
        }
        self.doorbell.arm(next);
    }

    /// Rings if somebody armed: whoever looks has something to do.
    pub(in super::super) fn ring_anyway(&self) {
        fence(Ordering::SeqCst);
        self.doorbell.ring(u64::MAX);
    }

    /// Nothing is accepted any more. False if that was so already.
    pub(in super::super) fn retire(&self) -> bool {
        !self.retired.swap(true, Ordering::AcqRel)
    }

    /// Returns true if a Job that was put at this position, or later, is there to be done.
    #[inline(always)]
    pub(in super::super) fn has_work(&self, position: u64) -> bool {
        self.jobs.holds(position)
    }

    #[inline(always)]
    pub(in super::super) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    pub(in super::super) fn keep(&self, keep: KeepAlive) {
        *lock(&self.keep) = Some(keep);
    }

    #[inline(always)]
    pub(in super::super) fn is_ready(&self) -> bool {
        // If others reap meanwhile this may be an old position: it holds a later value then, and
        // that counts as well.
        self.done.holds(self.reaped.0.load(Relaxed))
    }
}

impl Work {
    /// Returns how many bytes it moves, or hashes.
    #[inline(always)]
    pub(in super::super) fn len(&self) -> usize {
        match &self.task {
            Task::Copy(job) => job.len,
            Task::Cpu(job) => job.len(),
        }
    }

    /// Returns how many bytes are copied in the time that it takes.
    #[inline(always)]
    pub(super) fn cost(&self) -> usize {
        match &self.task {
            Task::Copy(job) => job.len,
            Task::Cpu(job) => job.cost(),
        }
    }

    /// Returns how it ends, once its last part was done: by this state, if the CPU computed it.
    #[inline(always)]
    pub(in super::super) fn outcome(&self, cpu: &CpuState) -> Result<u64, JobError> {
        match &self.task {
            Task::Copy(job) => Ok(job.len as u64),
            Task::Cpu(job) => cpu.outcome(job),
        }
    }

    /// Has the CPU compute a part, after the first `from` bytes, for as long as a copy of `time`
    /// bytes takes, and returns how many bytes it was; `None` if it is a copy. All parts of a job
    /// are done by the same state.
    #[inline(always)]
    pub(in super::super) fn compute(
        &self,
        cpu: &mut CpuState,
        from: usize,
        time: usize,
    ) -> Option<usize> {
        match &self.task {
            Task::Copy(_) => None,
            // SAFETY: an accepted job's memory and session are valid and leased until its
            // completion.
            Task::Cpu(job) => Some(unsafe { cpu.work(job, from, time) }),
        }
    }

    /// Checks whether what it reaches is still exported, if another process has it.
    #[inline(always)]
    pub(in super::super) fn check(&self) -> Result<(), JobError> {
        let Task::Copy(CopyJob { src, dst, .. }) = &self.task else {
            return Ok(());
        };
        // SAFETY: an accepted Job's keys are this device's, and what they stand for is kept until
        // its completion.
        unsafe { copy::check(src, dst) }
    }

    /// Copies so many bytes, after the first `from`.
    #[inline(always)]
    pub(in super::super) fn copy(&self, from: usize, len: usize) {
        let Task::Copy(CopyJob { src, dst, len: all }) = &self.task else {
            return;
        };
        let len = len.min(all - from);
        // SAFETY: an accepted Job's memory is valid and leased until its completion; the crate
        // checked the lengths, and that the two do not overlap.
        unsafe { copy::copy(src, dst, from, len, copy::streams(*all)) };
    }
}

/// The other side of the rings, which one owner has: it does the Jobs.
pub(in super::super) struct Consumer {
    rings: Arc<Rings>,
    depth: usize,
    /// The next position of `jobs` to be got.
    begun: u64,
    /// The next position of `done` to be put.
    finished: u64,
    /// Jobs that has passed: their memory is not touched any more.
    completed: u64,
}

impl Deref for Consumer {
    type Target = Rings;

    #[inline(always)]
    fn deref(&self) -> &Rings {
        &self.rings
    }
}

impl Consumer {
    /// Returns where the next Job will be.
    #[inline(always)]
    pub(in super::super) fn position(&self) -> u64 {
        self.begun
    }

    /// Returns the next Job, which is the caller's to finish.
    #[inline(always)]
    pub(in super::super) fn next(&mut self) -> Option<Work> {
        // SAFETY: there is one Consumer, and it continues only after it got one.
        let work = unsafe { self.rings.jobs.get(self.begun) }?;
        self.begun += 1;
        Some(work)
    }

    /// A Job has completed: hands its Completion over.
    #[inline(always)]
    pub(in super::super) fn finish(&mut self, work: Work, result: Result<u64, JobError>) {
        let completion = Completion::new(work.token, result);
        // SAFETY: there is one Consumer, and it counts on; it has one Completion for each Job that
        // was got, so that the entry is empty, as the module's documentation says.
        unsafe { self.rings.done.put(self.finished, completion) };
        self.finished += 1;
        self.completed += 1;
        self.rings.doorbell.ring(self.finished);
    }

    /// Whoever armed before the last Completion is rung for, and who arms from now on sees it. To
    /// be called before anything that takes long.
    #[inline]
    pub(in super::super) fn ring_for_certain(&self) {
        self.rings.doorbell.ring_for_certain(self.finished);
    }

    /// A Job has completed, and nobody will hear of it.
    pub(super) fn lose(&mut self, _: Work) {
        self.completed += 1;
    }

    /// Returns the most Jobs that can be in flight.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns how many Jobs have completed.
    pub(in super::super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Breaks the queue.
    pub(super) fn break_down(&mut self, faults: &Faults) {
        self.rings.broken.store(true, Relaxed);
        faults.stop_inline();
    }

    /// Returns true if nothing is accepted any more.
    pub(super) fn is_retired(&self) -> bool {
        // Acquire: it was retired after the last Job was accepted.
        self.rings.retired.load(Ordering::Acquire)
    }

    /// True if the queue was retired and all its Jobs have completed. What it kept is dropped then.
    pub(in super::super) fn is_over(&self, faults: &Faults) -> bool {
        if !self.is_retired() || self.completed != self.rings.accepted.0.load(Relaxed) {
            return false;
        }
        if self.is_broken() {
            faults.resume_inline();
        }
        let mut keep = lock(&self.rings.keep);
        let kept = keep.take();
        drop(keep);
        discard(kept);
        true
    }
}

impl Held for Rings {
    /// Who waits for the queue looks again.
    fn go_on(&self) {
        self.doorbell.signal.ring();
    }
}
