//! One WorkQ's half of a software device.
//!
//! Each Token's index has a node here, which carries the Job to the engine and the Completion back. `live` counts what
//! the engine may still touch: it goes down with each finished Job, as the engine's very last access; `retire` adds what
//! was accepted in all. Whoever brings it to zero drops what `retire` was given.
#![expect(unsafe_code, reason = "nodes travel between threads by address")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64 as StdAtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::copy;
use super::device::DeviceShared;
use super::engine::Engine;
use super::fault::Fault;
use super::inbox::{Inbox, Linked, List};
use crate::device::{Armed, Completion, Job, Keep, Queue, QueueConfig, Signal, Submitted, Token};
use crate::error::{ErrorKind, JobError};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use crate::sync::seq_cst_order;
use crate::sync::{UnsafeCell, discard};

const RETIRED: u64 = 1 << 62;

/// Carries one Job there and its Completion back.
#[repr(align(128))]
pub(super) struct Node {
    next: AtomicPtr<Node>,
    queue: NonNull<SoftQueue>,
    load: UnsafeCell<Load>,
}

enum Load {
    Empty,
    Job(Token, Job, Fault),
    Done(Completion),
}

// SAFETY: a node belongs to one party at a time: who submits, the engine, who reaps; the lists hand it over.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

// SAFETY: it is the field.
unsafe impl Linked for Node {
    fn next(&self) -> &AtomicPtr<Node> {
        &self.next
    }
}

pub(super) struct SoftQueue {
    device: Arc<DeviceShared>,
    engine: Arc<Engine>,
    nodes: Box<[Node]>,
    doorbell: Doorbell,
    done: Inbox<Node>,
    /// Taken from `done` and not yet reaped. Only the reaper, one at a time, reaches it.
    taken: UnsafeCell<List<Node>>,
    /// Whether `taken` has something.
    leftover: AtomicBool,
    reaped: StdAtomicU64,
    live: AtomicU64,
    keep: Mutex<Option<Keep>>,
}

// SAFETY: `taken` is reached by one thread at a time (`reap`'s contract); the rest is Send and Sync.
unsafe impl Send for SoftQueue {}
// SAFETY: as above.
unsafe impl Sync for SoftQueue {}

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

    /// SeqCst: the look that follows comes after it. Pairs with `completed`.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
        seq_cst_order();
    }

    /// A completion was published (SeqCst) before: whoever armed before that hears of it, whoever arms after sees it.
    pub(super) fn completed(&self) {
        seq_cst_order();
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            self.signal.ring();
        }
    }
}

impl SoftQueue {
    pub(super) fn open(
        config: QueueConfig,
        device: Arc<DeviceShared>,
        engine: Arc<Engine>,
    ) -> Arc<SoftQueue> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let queue = NonNull::new(weak.as_ptr().cast_mut()).expect("the Arc is allocated");
            let node = |_| Node {
                next: AtomicPtr::default(),
                queue,
                load: UnsafeCell::new(Load::Empty),
            };
            SoftQueue {
                device,
                engine,
                nodes: (0..config.depth).map(node).collect(),
                doorbell: Doorbell::new(config.signal),
                done: Inbox::new(),
                taken: UnsafeCell::new(List::new()),
                leftover: AtomicBool::new(false),
                reaped: StdAtomicU64::new(0),
                live: AtomicU64::new(0),
                keep: Mutex::new(None),
            }
        })
    }

    fn is_ready(&self) -> bool {
        self.leftover.load(Relaxed) || !self.done.is_empty()
    }
}

/// Jobs that the engine took from its inbox, in order.
pub(super) struct WorkList(List<Node>);

/// A Job that was accepted and is the engine's to finish.
pub(super) struct Work(NonNull<Node>);

// SAFETY: a Node is Send and Sync, and a Work owns its node.
unsafe impl Send for Work {}

impl WorkList {
    pub(super) fn new() -> WorkList {
        WorkList(List::new())
    }

    /// Takes all there is. Only `submit` pushes to such an inbox.
    pub(super) fn take(&mut self, inbox: &Inbox<Node>) {
        if self.is_empty() && !inbox.is_empty() {
            self.0 = inbox.take();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Work> {
        self.0.pop().map(Work)
    }
}

impl Work {
    /// What shall happen to it.
    pub(super) fn fault(&self) -> Fault {
        // SAFETY: the node is this Work's, and in its queue, which stays until `live` was counted down.
        let node = unsafe { self.0.as_ref() };
        node.load.with(|load| {
            // SAFETY: the node is this Work's.
            match unsafe { &*load } {
                Load::Job(_, _, fault) => *fault,
                _ => Fault::Pass,
            }
        })
    }

    /// Does the Job, unless it shall fail, and hands the Completion over.
    pub(super) fn finish(self, failed: Option<JobError>) {
        // SAFETY: the node is this Work's, and in its queue, which stays until `live` was counted down.
        let node = unsafe { self.0.as_ref() };
        node.load.with_mut(|load| {
            // SAFETY: the node is this Work's.
            let load = unsafe { &mut *load };
            if let Load::Job(token, job, _) = load {
                // SAFETY: an accepted Job's memory is valid and leased until its completion.
                let result = failed.map_or_else(|| unsafe { execute(job) }, Err);
                *load = Load::Done(Completion {
                    token: *token,
                    result,
                });
            }
        });
        // SAFETY: the queue stays until `live` was counted down, below.
        let queue = unsafe { node.queue.as_ref() };
        // SAFETY: the node is in no list, and nobody touches it until it was reaped.
        unsafe { queue.done.push(self.0) };
        queue.doorbell.completed();
        // The last access. Who retires the queue adds what was accepted, so that zero is reached once.
        if queue.live.fetch_sub(1, Ordering::AcqRel) == RETIRED + 1 {
            discard(queue.take_keep());
        }
    }
}

/// # Safety
///
/// The Job's memory is valid and leased.
#[inline]
unsafe fn execute(job: &Job) -> Result<u64, JobError> {
    match job {
        Job::Copy { src, dst, len } => {
            // SAFETY: as the caller promises; the crate checked that the two do not overlap.
            unsafe { copy::copy(src, dst, *len) };
            Ok(*len as u64)
        }
    }
}

impl SoftQueue {
    /// What `retire` was given. The queue may go when it is dropped, so that is left to the caller, who has no reference.
    fn take_keep(&self) -> Option<Keep> {
        self.keep
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

// SAFETY: the duties of the module `device`:
// 1. A node is pushed once per accepted Job, finished once, and reaped once.
// 2. The engine does not touch a Job's memory after `done.push`.
// 3. A refused Job was not pushed. 4. `try_inline` copies, and keeps nothing.
// 5. `Doorbell`. 6. `live`. 7. No call blocks; nothing comes from outside.
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
        let mut accepted = 0;
        let mut refused = None;
        for (token, job) in jobs {
            let fault = self.device.faults.next();
            if fault == Fault::QueueFull {
                refused = Some(JobError::device(ErrorKind::Again, 0));
                break;
            }
            let node = &self.nodes[token.index() as usize];
            node.load.with_mut(|load| {
                // SAFETY: the Token is not in flight, so the node is in no list and the caller's.
                unsafe { *load = Load::Job(*token, *job, fault) };
            });
            // SAFETY: as above; the node stays while `live` counts it.
            unsafe { self.engine.inbox().push(NonNull::from(node)) };
            accepted += 1;
        }
        if accepted > 0 {
            self.engine.kick();
        }
        Submitted { accepted, refused }
    }

    #[inline]
    fn ready(&self) -> bool {
        self.is_ready()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        self.taken.with_mut(|taken| {
            // SAFETY: one thread reaps at a time.
            let taken = unsafe { &mut *taken };
            let mut reaped = 0;
            while reaped < out.len() {
                if taken.is_empty() {
                    if self.done.is_empty() {
                        break;
                    }
                    *taken = self.done.take();
                }
                let Some(node) = taken.pop() else { break };
                // SAFETY: a node of this queue, which the list handed to this thread.
                let node = unsafe { node.as_ref() };
                let load = node.load.with_mut(|load| {
                    // SAFETY: as above.
                    unsafe { std::ptr::replace(load, Load::Empty) }
                });
                if let Load::Done(completion) = load {
                    out[reaped] = completion;
                    reaped += 1;
                }
            }
            self.leftover.store(!taken.is_empty(), Relaxed);
            self.reaped
                .store(self.reaped.load(Relaxed) + reaped as u64, Relaxed);
            reaped
        })
    }

    fn arm(&self) -> Armed {
        self.doorbell.arm();
        if self.is_ready() {
            Armed::Ready
        } else {
            Armed::Armed
        }
    }

    unsafe fn retire(&self, keep: Keep, outstanding: usize) {
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep);
        let accepted = self.reaped.load(Relaxed) + outstanding as u64;
        let before = self.live.fetch_add(accepted + RETIRED, Ordering::AcqRel);
        if before.wrapping_add(accepted) == 0 {
            discard(self.take_keep());
        }
    }
}
