//! One WorkQ's half of a software device: a ring of Jobs to the engine, a ring of Completions back.
//!
//! ```text
//!   submit (any thread) --> jobs --> engine --> done --> reap (one thread at a time)
//! ```
//!
//! Neither ring can overflow: no more than `depth` Jobs are in flight. A position is used again only after one of the
//! `depth` Tokens was used twice since, and so after the older value was got: Jobs and Completions are got in order, and a
//! Token is used again only after its Completion was reaped.
#![expect(
    unsafe_code,
    reason = "executes Jobs whose memory was lent, and drives rings"
)]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use super::copy;
use super::device::DeviceShared;
use super::engine::Engine;
use super::fault::Fault;
use super::ring::Ring;
use crate::device::{Armed, Completion, Job, Keep, Queue, QueueConfig, Signal, Submitted, Token};
use crate::error::{ErrorKind, JobError};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::discard;

/// A Job that was accepted, and what shall happen to it.
#[derive(Clone, Copy)]
pub(super) struct Work {
    token: Token,
    job: Job,
    pub(super) fault: Fault,
}

/// A value that threads of one side write, on lines of its own.
#[repr(align(128))]
struct Side<T>(T);

/// What a queue and its engine share.
pub(super) struct Rings {
    jobs: Ring<Work>,
    done: Ring<Completion>,
    doorbell: Doorbell,
    /// The next position of `jobs` to be put: so many Jobs were accepted.
    accepted: Side<AtomicU64>,
    /// The next position of `done` to be got.
    reaped: Side<AtomicU64>,
    engine: Side<EngineSide>,
    /// Nothing is accepted any more.
    retired: AtomicBool,
    keep: Mutex<Option<Keep>>,
}

/// What the engine alone writes.
struct EngineSide {
    /// The next position of `jobs` to be got.
    begun: AtomicU64,
    /// The next position of `done` to be put.
    finished: AtomicU64,
    /// Jobs that are over: their memory is not touched any more.
    over: AtomicU64,
}

/// Rings once per `arm`, and only then.
pub(super) struct Doorbell {
    armed: AtomicBool,
    signal: Arc<Signal>,
}

impl Doorbell {
    pub(super) fn new(signal: Arc<Signal>) -> Doorbell {
        Doorbell {
            armed: AtomicBool::new(false),
            signal,
        }
    }

    /// The look that follows comes after it. Pairs with `ring_for_certain`.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Rings if it is seen that somebody armed.
    #[inline(always)]
    pub(super) fn ring(&self) {
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            self.signal.ring();
        }
    }

    /// Completions were published before: whoever armed before that is rung for, whoever arms after sees them.
    #[inline(always)]
    pub(super) fn ring_for_certain(&self) {
        fence(Ordering::SeqCst);
        self.ring();
    }
}

impl Rings {
    pub(super) fn new(config: &QueueConfig) -> Rings {
        let depth = config.depth as usize;
        Rings {
            jobs: Ring::new(depth),
            done: Ring::new(depth),
            doorbell: Doorbell::new(Arc::clone(&config.signal)),
            accepted: Side(AtomicU64::new(0)),
            reaped: Side(AtomicU64::new(0)),
            engine: Side(EngineSide {
                begun: AtomicU64::new(0),
                finished: AtomicU64::new(0),
                over: AtomicU64::new(0),
            }),
            retired: AtomicBool::new(false),
            keep: Mutex::new(None),
        }
    }

    /// Engine: whether there is a Job to begin.
    #[inline(always)]
    pub(super) fn has_work(&self) -> bool {
        self.jobs.holds(self.engine.0.begun.load(Relaxed))
    }

    /// Engine: the next Job, which is its to finish.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<Work> {
        let begun = self.engine.0.begun.load(Relaxed);
        // SAFETY: the engine is one thread, and goes on only after it got one.
        let work = unsafe { self.jobs.get(begun) }?;
        self.engine.0.begun.store(begun + 1, Relaxed);
        Some(work)
    }

    /// Engine: does the Job, unless it shall fail, and hands the Completion over.
    #[inline(always)]
    pub(super) fn finish(&self, work: &Work, failed: Option<JobError>) {
        // SAFETY: an accepted Job's memory is valid and leased until its completion.
        let result = failed.map_or_else(|| unsafe { execute(&work.job) }, Err);
        let engine = &self.engine.0;
        let finished = engine.finished.load(Relaxed);
        let completion = Completion {
            token: work.token,
            result,
        };
        // SAFETY: the engine is one thread and counts on; that the entry is empty says the module's documentation.
        unsafe { self.done.put(finished, completion) };
        engine.finished.store(finished + 1, Relaxed);
        engine.over.store(engine.over.load(Relaxed) + 1, Relaxed);
        self.doorbell.ring();
    }

    /// Engine: whoever armed is rung for. To be called before anything that takes long.
    #[inline]
    pub(super) fn ring_for_certain(&self) {
        self.doorbell.ring_for_certain();
    }

    /// Engine: true if the queue was retired and all its Jobs are over. What it kept is dropped then.
    pub(super) fn is_over(&self) -> bool {
        // Acquire: `retire` came after the last Job was accepted.
        if !self.retired.load(Ordering::Acquire)
            || self.engine.0.over.load(Relaxed) != self.accepted.0.load(Relaxed)
        {
            return false;
        }
        let keep = self.take_keep();
        discard(keep);
        true
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    fn keep(&self, keep: Keep) {
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep);
    }

    fn take_keep(&self) -> Option<Keep> {
        self.keep
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        // If others reap meanwhile this may be an old position: it holds a later value then, and that counts as well.
        self.done.holds(self.reaped.0.load(Relaxed))
    }
}

impl Work {
    /// Whether it takes so long that others should hear of their Jobs before.
    #[inline(always)]
    pub(super) fn is_long(&self) -> bool {
        let Job::Copy { len, .. } = self.job;
        len > LONG
    }
}

/// Bytes that take longer to copy than a fence.
const LONG: usize = 8 << 10;

/// # Safety
///
/// The Job's memory is valid and leased.
#[inline(always)]
unsafe fn execute(job: &Job) -> Result<u64, JobError> {
    match job {
        Job::Copy { src, dst, len } => {
            // SAFETY: as the caller promises; the crate checked that the two do not overlap.
            unsafe { copy::copy(src, dst, *len) };
            Ok(*len as u64)
        }
    }
}

pub(super) struct SoftQueue {
    device: Arc<DeviceShared>,
    engine: Arc<Engine>,
    rings: Arc<Rings>,
}

impl SoftQueue {
    pub(super) fn open(
        rings: Arc<Rings>,
        device: Arc<DeviceShared>,
        engine: Arc<Engine>,
    ) -> SoftQueue {
        engine.serve(&rings);
        SoftQueue {
            device,
            engine,
            rings,
        }
    }
}

// SAFETY: the duties of the module `device`:
// 1. A Job is put once, got once, and its Completion is put once and got once.
// 2. The engine does not touch a Job's memory after it put the Completion.
// 3. A refused Job was not put. 4. `try_inline` copies, and keeps nothing.
// 5. `Doorbell`. 6. `Rings::is_over`. 7. No call blocks; nothing comes from outside.
unsafe impl Queue for SoftQueue {
    #[inline]
    unsafe fn try_inline(&self, job: &Job) -> Option<Result<u64, JobError>> {
        let Job::Copy { len, .. } = job;
        if *len > self.device.faults.inline_limit() {
            return None;
        }
        self.device.inline_jobs.add_one();
        // SAFETY: the memory is valid and leased during the call, as the caller promises.
        Some(unsafe { execute(job) })
    }

    unsafe fn submit(&self, jobs: &[(Token, Job)]) -> Submitted {
        let (mut accepted, mut accepted_at) = (0, 0);
        let mut refused = None;
        for &(token, job) in jobs {
            let fault = self.device.faults.next();
            if fault == Fault::QueueFull {
                refused = Some(JobError::device(ErrorKind::Again, 0));
                break;
            }
            // AcqRel: whoever uses an entry again comes after all who took positions before, see the module.
            let position = self.rings.accepted.0.fetch_add(1, Ordering::AcqRel);
            accepted_at = position;
            // SAFETY: the position is this call's alone; that the entry is empty says the module's documentation.
            unsafe { self.rings.jobs.put(position, Work { token, job, fault }) };
            accepted += 1;
        }
        if accepted > 0 {
            self.engine.kick(accepted_at);
        }
        Submitted { accepted, refused }
    }

    #[inline]
    fn ready(&self) -> bool {
        self.rings.is_ready()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let rings = &*self.rings;
        let position = rings.reaped.0.load(Relaxed);
        let mut reaped = 0;
        for place in out {
            // SAFETY: one thread reaps at a time, as the caller promises, and each goes on where the last one stopped.
            let Some(completion) = (unsafe { rings.done.get(position + reaped) }) else {
                break;
            };
            *place = completion;
            reaped += 1;
        }
        rings.reaped.0.store(position + reaped, Relaxed);
        reaped as usize
    }

    fn arm(&self) -> Armed {
        self.rings.doorbell.arm();
        if self.rings.is_ready() {
            Armed::Ready
        } else {
            Armed::Armed
        }
    }

    unsafe fn retire(&self, keep: Keep, outstanding: usize) {
        if outstanding == 0 {
            // All were reaped, so that the engine touches no memory of theirs.
            discard(keep);
        } else {
            self.rings.keep(keep);
        }
        self.end();
    }
}

impl Drop for SoftQueue {
    /// Without a WorkQ nobody retires it.
    fn drop(&mut self) {
        self.end();
    }
}

impl SoftQueue {
    /// Nothing is accepted any more.
    fn end(&self) {
        if !self.rings.retired.swap(true, Ordering::AcqRel) {
            self.engine.call();
        }
    }
}
