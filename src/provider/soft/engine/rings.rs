//! The two rings that a queue shares with its engine: jobs go there, completions come back.
//!
//! ```text
//!   submit (any thread) --> jobs --> engine --> done --> reap (one thread at a time)
//! ```
//!
//! Neither ring can overflow. At most `depth` jobs are in flight, and both sides take values in
//! order. A position of a ring is used again only after one of the `depth` tokens has been used
//! again, and a token is used again only after its completion was reaped. So the older value at
//! that position has been taken by then.
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

/// An accepted job, and the fault that the script has for it.
pub(in super::super) struct Work {
    pub(in super::super) token: Token,
    pub(in super::super) task: Task,
    pub(in super::super) fault: Fault,
}

/// The work of a job.
pub(in super::super) enum Task {
    Copy(CopyJob),
    Cpu(CpuJob),
}

impl Task {
    /// Returns `None` for a job that this device does not support.
    #[inline(always)]
    pub(in super::super) fn of(job: Job<'_>) -> Option<Task> {
        match job {
            Job::Copy(job) => Some(Task::Copy(*job)),
            job => CpuJob::of(job).map(Task::Cpu),
        }
    }
}

/// A value that the threads of one side write, on cache lines of its own.
#[repr(align(128))]
struct Side<T>(T);

/// The state that a queue shares with its engine.
pub(in super::super) struct Rings {
    jobs: Ring<Work>,
    done: Ring<Completion>,
    doorbell: Doorbell,
    /// The next position of `jobs`, which is also the number of jobs that were accepted.
    accepted: Side<AtomicU64>,
    /// The next position of `done` to be reaped.
    reaped: Side<AtomicU64>,
    /// The script of faults broke the queue: its jobs fail, and it accepts no more.
    broken: AtomicBool,
    /// The queue was retired, and accepts no more jobs.
    retired: AtomicBool,
    keep: Mutex<Option<KeepAlive>>,
}

/// Signals the queue's event handle, at most once for each `arm`.
pub(in super::super) struct Doorbell {
    /// The number of completions that must have been put before it signals; 0 if it is not armed.
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

    /// Requests a signal for the completion at `position`. The caller polls the ring only
    /// afterwards. Pairs with `signal_for_certain`.
    pub(in super::super) fn arm(&self, position: u64) {
        // Release, paired with `signal_once`: the thread that receives the signal sees what was
        // done before the arm.
        self.armed.store(position + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Signals if this thread sees a request for one of the first `put` completions.
    #[inline(always)]
    pub(in super::super) fn ring(&self, put: u64) {
        let armed = self.armed.load(Ordering::Relaxed);
        if armed != 0 && armed <= put {
            self.signal_once(armed, put);
        }
    }

    #[cold]
    fn signal_once(&self, mut armed: u64, put: u64) {
        while armed != 0 && armed <= put {
            match self
                .armed
                .compare_exchange(armed, 0, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return self.signal.raise(),
                Err(seen) => armed = seen,
            }
        }
    }

    /// Does as `ring`, but certainly sees each request that was made before this call. A thread
    /// that arms later needs no signal: when it polls, it finds the first `put` completions.
    #[inline(always)]
    pub(in super::super) fn signal_for_certain(&self, put: u64) {
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
            begun: 0,
            finished: 0,
            completed: 0,
        };
        (rings, consumer)
    }

    /// Puts a job into the ring, and returns its position.
    ///
    /// # Safety
    ///
    /// As for `Submit::submit`: at most `depth` jobs are in flight, and each has a token of its
    /// own. The queue was not retired.
    #[inline(always)]
    pub(in super::super) unsafe fn accept(&self, work: Work) -> u64 {
        // AcqRel: a submitter that uses an entry again comes after all submitters that took earlier
        // positions (see the module's documentation).
        let position = self.accepted.0.fetch_add(1, Ordering::AcqRel);
        // SAFETY: this call alone has the position. The entry is empty, as the module's
        // documentation proves.
        unsafe { self.jobs.put(position, work) };
        position
    }

    /// Takes completions from the ring into `out`, and returns their number.
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

    /// Requests a signal for the next completion, but not for completions that are already there.
    /// The caller polls the ring only afterwards.
    pub(in super::super) fn arm(&self) {
        let mut next = self.reaped.0.load(Relaxed);
        // Another thread may reap meanwhile. Then this position is old and full, so that the loop
        // skips it. It never goes past the completions that were put.
        while self.done.holds(next) {
            next += 1;
        }
        self.doorbell.arm(next);
    }

    /// Signals if a signal was requested, because the thread that reaps has jobs of its own to do.
    pub(in super::super) fn signal_anyway(&self) {
        fence(Ordering::SeqCst);
        self.doorbell.ring(u64::MAX);
    }

    /// Ends the acceptance of jobs. Returns false if it had ended before.
    pub(in super::super) fn retire(&self) -> bool {
        !self.retired.swap(true, Ordering::AcqRel)
    }

    /// Returns true if a job was put at this position or at a later one.
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
        // If another thread reaps meanwhile, this position may be old. Its entry then holds a later
        // value, which is a completion as well.
        self.done.holds(self.reaped.0.load(Relaxed))
    }
}

impl Work {
    /// Returns how many bytes the job copies or hashes.
    #[inline(always)]
    pub(in super::super) fn len(&self) -> usize {
        match &self.task {
            Task::Copy(job) => job.len,
            Task::Cpu(job) => job.len(),
        }
    }

    /// Returns the number of bytes whose copy takes as long as this job.
    #[inline(always)]
    pub(super) fn cost(&self) -> usize {
        match &self.task {
            Task::Copy(job) => job.len,
            Task::Cpu(job) => job.cost(),
        }
    }

    /// Returns the result of the job once its last part is done. For a job other than a copy, `cpu`
    /// has computed it.
    #[inline(always)]
    pub(in super::super) fn outcome(&self, cpu: &CpuState) -> Result<u64, JobError> {
        match &self.task {
            Task::Copy(job) => Ok(job.len as u64),
            Task::Cpu(job) => cpu.outcome(job),
        }
    }

    /// Computes a part of a job that is not a copy, after its first `from` bytes, for as long as a
    /// copy of `time` bytes takes. Returns the length of the part in bytes, and `None` for a copy.
    /// The caller passes the same `cpu` for all parts of a job.
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

    /// Checks that another process whose memory is copied still exports that memory.
    #[inline(always)]
    pub(in super::super) fn check(&self) -> Result<(), JobError> {
        let Task::Copy(CopyJob { src, dst, .. }) = &self.task else {
            return Ok(());
        };
        // SAFETY: an accepted job's keys are this device's, and the imports that they name are kept
        // until its completion.
        unsafe { copy::check(src, dst) }
    }

    /// Copies at most `len` bytes, starting at byte `from`.
    #[inline(always)]
    pub(in super::super) fn copy(&self, from: usize, len: usize) {
        let Task::Copy(CopyJob { src, dst, len: all }) = &self.task else {
            return;
        };
        let len = len.min(all - from);
        // SAFETY: an accepted job's memory is valid and leased until its completion. The crate
        // checked the lengths, and that source and destination do not overlap.
        unsafe { copy::copy(src, dst, from, len, copy::streams(*all)) };
    }
}

/// The engine's side of the rings. It has one owner, which does the jobs.
pub(in super::super) struct Consumer {
    rings: Arc<Rings>,
    /// The next position of `jobs` to be taken.
    begun: u64,
    /// The next position of `done` to be filled.
    finished: u64,
    /// The number of jobs that have completed or were lost. Their memory is not touched any more.
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
    /// Returns the position of the next job.
    #[inline(always)]
    pub(in super::super) fn position(&self) -> u64 {
        self.begun
    }

    /// Takes the next job, which the caller must finish.
    #[inline(always)]
    pub(in super::super) fn next(&mut self) -> Option<Work> {
        // SAFETY: there is one Consumer, and it moves to the next position only after it took the
        // value.
        let work = unsafe { self.rings.jobs.get(self.begun) }?;
        self.begun += 1;
        Some(work)
    }

    /// Completes a job: puts its completion into the ring.
    #[inline(always)]
    pub(in super::super) fn finish(&mut self, work: Work, result: Result<u64, JobError>) {
        let completion = Completion::new(work.token, result);
        // SAFETY: there is one Consumer, and it never uses a position twice. It puts one completion
        // for each job that it took, so the entry is empty, as the module's documentation proves.
        unsafe { self.rings.done.put(self.finished, completion) };
        self.finished += 1;
        self.completed += 1;
        self.rings.doorbell.ring(self.finished);
    }

    /// Signals for a thread that armed before the last completion; a thread that arms later sees
    /// that completion by itself. The engine calls this before anything that takes long.
    #[inline]
    pub(in super::super) fn signal_for_certain(&self) {
        self.rings.doorbell.signal_for_certain(self.finished);
    }

    /// Counts a job that the script of faults loses: it is never done, and never gets a completion.
    pub(super) fn lose(&mut self, _: Work) {
        self.completed += 1;
    }

    /// Returns how many jobs have completed or were lost.
    pub(in super::super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Breaks the queue: its jobs fail from now on.
    pub(super) fn break_down(&mut self, faults: &Faults) {
        self.rings.broken.store(true, Relaxed);
        faults.stop_inline();
    }

    /// Returns true if the queue accepts no more jobs.
    pub(super) fn is_retired(&self) -> bool {
        // Acquire: the queue was retired after its last job was accepted.
        self.rings.retired.load(Ordering::Acquire)
    }

    /// Returns true if the queue was retired and all its jobs have completed. Drops what the queue
    /// kept alive.
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
    /// Signals the thread that waits for the queue, so that it polls again.
    fn resume(&self) {
        self.doorbell.signal.raise();
    }
}
