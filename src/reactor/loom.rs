//! Loom models of the reactor, one file per subject. This file has what several of them use: jobs
//! in flight, and a WorkQ on a minimal device ([`Fake`]).
//!
//! Each model has mutants, which do one thing wrong and must fail. If the wrong thing would be
//! inside one of the crate's types, the mutant is a toy with the few lines that matter, and a
//! correct version of the toy must pass.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![expect(
    unsafe_code,
    reason = "a device in a few lines, and cells as a Slot has them"
)]

mod expected;
mod free_bitmap;
mod full;
mod gate;
mod mode;
mod own_loop;
mod posted;
mod receives;
mod run;
mod slot;
mod stream_slots;
mod timer;
mod toy;
mod watch;
mod workq;

use std::future::Future;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ::loom::thread::JoinHandle;

use super::gate::GateLeft;
use super::{Attachment, HasAttachment, JobFuture, Mode, Prepared, WorkQ};
use crate::device::{
    Adapter, Armed, Arrival, Caps, Completion, CopyJob, DevInfo, Device, Job, KeepAlive, PciAddr,
    PciFunction, Queue, QueueConfig, Region, Registrar, Registration, RegistrationUse, Segment,
    Segments, Submit, Submitted, Token,
};
use crate::error::{ErrorKind, JobError, Result};
use crate::mem::Leases;
use crate::reactor::events::Driven;
use crate::reactor::slots::{Completed, JobLeases, Leftovers, Notify, Outcome, Slot, Target};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::loom::{Task, block_on, check, spawn};
use crate::sync::{lock, seq_cst_order};

fn held() -> JobLeases {
    JobLeases::new(Leases::of(None, None), 0, |len| len as usize)
}

fn in_flight() -> (Arc<Slot>, u32) {
    let slot = Arc::new(Slot::new());
    let generation = slot.fill_alone(held(), None);
    (slot, generation)
}

/// Completes the job of a slot, and drops what this leaves to be dropped.
fn complete(slot: &Slot, generation: u32, outcome: Outcome) -> Completed {
    let mut rest = Leftovers::new();
    let completed = slot.complete(generation, outcome, &mut rest);
    for rest in rest {
        drop(rest.open(&GateLeft::of_a_test()));
    }
    completed
}

/// Completes the job of a slot as `complete` does. Returns true if the slot became free.
fn end(slot: &Slot, generation: u32) -> bool {
    match complete(slot, generation, Ok(7)) {
        Completed::Notify(Notify::Op(target)) => match target.open(&GateLeft::of_a_test()) {
            Target::Waker(waker) => waker.wake(),
            _ => panic!("it is an Op's"),
        },
        Completed::Nothing => {}
        Completed::Free(None) => return true,
        _ => panic!("a completion of a job in flight, which no run waits for"),
    }
    false
}

/// A minimal device, whose event must be cleared. The device's thread also runs the turn for a
/// signal, at once, unless the event was cleared by then.
struct Fake {
    /// For each slot, the Token of its submitted job plus one; 0 if there is no job.
    submitted: Box<[AtomicU64]>,
    done: Box<[AtomicU64]>,
    armed: AtomicBool,
    event: AtomicBool,
    engine: Task,
    stopped: AtomicBool,
    /// The device never signals, and sets the WorkQ to busy-polling before it completes a job.
    deaf: bool,
    /// The number of further jobs that the device refuses although it has capacity.
    refusals: AtomicU64,
    /// The maximum number of jobs in the device at once. `taken` is the present number.
    capacity: u64,
    taken: AtomicU64,
    /// True if the timer of the event handle expires.
    timed: bool,
    polls_in_reap: bool,
    /// True once a shutdown of the WorkQ has completed. (This is not an atomic of loom: it is only
    /// checked by an assertion, and orders nothing.)
    shut: std::sync::atomic::AtomicBool,
}

// SAFETY: the device keeps the duties of `device::contract`: each job completes once, and no memory
// is touched.
unsafe impl Submit for Fake {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        assert!(!self.shut.load(SeqCst), "a Job after the shutdown");
        let full = self.taken.load(SeqCst) >= self.capacity;
        if full || self.refusals.load(SeqCst) > 0 {
            if !full {
                self.refusals.fetch_sub(1, SeqCst);
            }
            let refused = Some(JobError::device(ErrorKind::Again, 0));
            return Submitted {
                accepted: 0,
                refused,
            };
        }
        self.taken.fetch_add(1, SeqCst);
        let token = jobs[0].0;
        let before = self.submitted[token.index() as usize].swap(token.as_raw() + 1, SeqCst);
        assert_eq!(before, 0, "one Job a Slot");
        self.engine.waker().wake();
        Submitted {
            accepted: 1,
            refused: None,
        }
    }
}

// SAFETY: as for Submit: the device keeps the duties, and touches no memory.
unsafe impl Queue for Fake {
    fn ready(&self) -> bool {
        seq_cst_order();
        self.done.iter().any(|done| done.load(SeqCst) != 0)
    }

    fn polls_in_reap(&self) -> bool {
        self.polls_in_reap
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        seq_cst_order();
        let mut reaped = 0;
        for done in &self.done {
            let token = done.load(SeqCst);
            if token != 0 {
                done.store(0, SeqCst);
                let token = Token::from_raw(token - 1);
                out[reaped] = match token.table() {
                    0 => Completion::new(token, Ok(7)),
                    _ => Completion::received(token, Arrival::Send, 7),
                };
                reaped += 1;
            }
        }
        reaped
    }

    fn clear(&self) {
        if self.event.load(SeqCst) {
            self.event.swap(false, SeqCst);
        }
    }

    fn arm(&self) -> Armed {
        self.armed.store(true, SeqCst);
        match self.ready() {
            true => Armed::Ready,
            false => Armed::Armed,
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        assert_eq!(outstanding, 0, "every model waits for its Jobs");
        drop(keep);
    }
}

impl Fake {
    /// Completes jobs, and runs the turns for the signals, until the device is stopped and has no
    /// jobs.
    fn run(&self, workq: &WorkQ) {
        loop {
            // Read before the jobs: no job comes after the device was stopped.
            let stopped = self.stopped.load(SeqCst);
            let mut found = false;
            for (submitted, done) in self.submitted.iter().zip(&self.done) {
                let token = submitted.swap(0, SeqCst);
                if token != 0 {
                    found = true;
                    self.taken.fetch_sub(1, SeqCst);
                    self.finish(workq, done, token);
                }
            }
            // This thread also handles the events of the event handle.
            let signalled = workq.0.signalled.load(SeqCst);
            if self.timed && workq.0.timer.clock().raise() || signalled {
                found = true;
                workq.0.event_turn();
            }
            if !found {
                if stopped {
                    return;
                }
                self.engine.sleep();
            }
        }
    }

    fn finish(&self, workq: &WorkQ, done: &AtomicU64, token: u64) {
        if self.deaf {
            workq.set_mode(Mode::BusyPoll).unwrap();
        }
        assert_eq!(done.swap(token, SeqCst), 0);
        seq_cst_order();
        if !self.deaf && self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            self.event.store(true, SeqCst);
        }
        if self.event.load(SeqCst) {
            workq.0.event_turn();
        }
    }
}

struct FakeAdapter {
    info: DevInfo,
    queue: Arc<Fake>,
}

// SAFETY: each Bed has one device, with one queue, for one WorkQ.
unsafe impl Adapter for FakeAdapter {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, _: QueueConfig) -> Result<Arc<dyn Queue>> {
        let queue = Arc::clone(&self.queue);
        Ok(queue)
    }
}

// SAFETY: no queue uses the keys, and nothing is exported or imported.
unsafe impl Registrar for FakeAdapter {
    fn register(&self, _: &Region, _: RegistrationUse) -> Result<Registration> {
        Ok(Registration::new(0, None))
    }
}

/// A test bed: an event-driven WorkQ on a [`Fake`] device.
struct Bed {
    workq: WorkQ,
    attachment: Arc<Attachment>,
    queue: Arc<Fake>,
}

impl Bed {
    fn new() -> Bed {
        Bed::on(1, false)
    }

    fn on(depth: u32, deaf: bool) -> Bed {
        Bed::with(depth, |queue| queue.deaf = deaf)
    }

    fn with(depth: u32, set: impl FnOnce(&mut Fake)) -> Bed {
        let zeroes = || (0..depth).map(|_| AtomicU64::new(0)).collect();
        let mut queue = Fake {
            submitted: zeroes(),
            done: zeroes(),
            armed: AtomicBool::new(false),
            event: AtomicBool::new(false),
            engine: Task::new(),
            stopped: AtomicBool::new(false),
            deaf: false,
            refusals: AtomicU64::new(0),
            capacity: u64::from(depth),
            taken: AtomicU64::new(0),
            timed: true,
            polls_in_reap: false,
            shut: false.into(),
        };
        set(&mut queue);
        let queue = Arc::new(queue);
        let (addr, caps) = (PciAddr::new(0, 0, 0), Caps::for_dma(1, 1, depth));
        let adapter = FakeAdapter {
            info: DevInfo::new("fake", "fake", addr, PciFunction::Pf, caps),
            queue: Arc::clone(&queue),
        };
        let workq = WorkQ::builder().depth(depth).build().unwrap();
        *lock(&workq.0.events.driver) = Some(queue.engine.waker());
        let device = Device::from_adapter(Arc::new(adapter));
        let attachment = Arc::new(workq.attach(&device, true).unwrap());
        Bed {
            workq,
            attachment,
            queue,
        }
    }

    /// Runs the device's thread, and waits until all `threads` have ended.
    fn run<const N: usize>(&self, threads: [JoinHandle<()>; N]) {
        self.run_beside((), threads);
    }

    /// Runs the threads as `run` does, and drops `left` at the end.
    fn run_beside<T, const N: usize>(&self, left: T, threads: [JoinHandle<()>; N]) {
        let (workq, queue) = (self.workq.clone(), Arc::clone(&self.queue));
        let engine = spawn(move || queue.run(&workq));
        for thread in threads {
            thread.join().unwrap();
        }
        self.queue.stopped.store(true, SeqCst);
        self.queue.engine.waker().wake();
        engine.join().unwrap();
        drop(left);
        assert_eq!(self.workq.in_flight(), 0);
    }

    fn spawn_op(&self) -> JoinHandle<()> {
        let attachment = Arc::clone(&self.attachment);
        spawn(move || {
            let op = pin!(Op(JobFuture::new(attachment)));
            assert_eq!(block_on(op), Ok(7));
        })
    }

    /// Spawns a thread that polls an operation once, and then drops the operation.
    fn spawn_dropped_op(&self) -> JoinHandle<()> {
        let attachment = Arc::clone(&self.attachment);
        spawn(move || {
            if attachment.check_open().is_err() {
                return;
            }
            let op = pin!(Op(JobFuture::new(attachment)));
            let _ = op.poll(&mut Context::from_waker(Waker::noop()));
        })
    }
}

struct Op(JobFuture<Arc<Attachment>>);

impl HasAttachment for Arc<Attachment> {
    fn attachment(&self) -> &Attachment {
        self
    }
}

fn prepared() -> Prepared<CopyJob> {
    // SAFETY: the device accesses no memory.
    let segments = Segments::one(unsafe { Segment::new(NonNull::dangling(), 1, 0) });
    let job = CopyJob {
        src: segments,
        dst: segments,
        len: 1,
    };
    Prepared::modelled(job)
}

impl Future for Op {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        // SAFETY: the JobFuture is pinned with its Op.
        let mut flight = unsafe { self.map_unchecked_mut(|op| &mut op.0) };
        match flight.is_idle() {
            true => flight
                .as_mut()
                .start(cx, &mut prepared(), |_| Ok(prepared())),
            false => flight.as_mut().resume(cx, |_| Ok(prepared())),
        }
    }
}

/// Checks a model that uses the real WorkQ, on a runtime that registers the WorkQ's event handle.
fn on_a_workq(preemptions: usize, model: impl Fn(&Bed) + Send + Sync + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    check(preemptions, move || {
        model(&Bed::new());
    });
}
