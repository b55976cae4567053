//! The half of a software device that belongs to one WorkQ: its side of the [rings](super::engine)
//! and, without an engine, the other side too.
#![expect(
    unsafe_code,
    reason = "does Jobs whose memory was lent, and drives rings"
)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use super::copy;
use super::counter::Counter;
use super::engine::{Driver, Engine, QueueWorker, Rings, Task, Work};
use super::event::{SoftEvent, SoftPort};
use super::fault::{Fault, Stuck};
use super::ports::Ports;
use super::rdma::SoftEndpoint;
use super::shared::DeviceShared;
use crate::device::{
    Armed, Completion, CopyJob, CpuJob, CpuState, Endpoint, EndpointConfig, EventCounter,
    EventPort, Job, KeepAlive, Queue, QueueConfig, Signal, Submit, Submitted, Token,
};
use crate::error::{Error, ErrorKind, JobError, Result as SetUp};
use crate::sync::UnsafeCell;
use crate::sync::atomic::AtomicU64;
use crate::sync::discard;

pub(super) struct SoftQueue {
    device: Arc<DeviceShared>,
    inline_jobs: Arc<Counter>,
    engine: Option<Arc<Engine>>,
    rings: Arc<Rings>,
    own: Option<Own>,
    /// The endpoints and sync events, once there is one.
    ports: OnceLock<Arc<Ports>>,
    signal: Arc<Signal>,
}

/// The additional state of a queue without an engine, whose jobs the reaping thread does.
struct Own {
    /// Only the thread that reaps accesses the worker.
    worker: UnsafeCell<QueueWorker>,
    /// Twice the position of the next job, plus one if a job before that position has work left.
    /// Both values are in one word: if they were two words, a thread that reads between the two
    /// writes would see no work, and sleep.
    next: AtomicU64,
    stuck: Arc<Stuck>,
}

// SAFETY: one thread at a time accesses `worker` (`reap`'s contract); the other fields are Sync.
unsafe impl Sync for Own {}

impl SoftQueue {
    /// Returns a queue that this engine serves. Without an engine, the thread that reaps does the
    /// jobs.
    pub(super) fn open(
        config: &QueueConfig,
        device: Arc<DeviceShared>,
        engine: Option<Arc<Engine>>,
    ) -> SoftQueue {
        let (rings, consumer) = Rings::open(config);
        let stuck = device.faults.stuck(config);
        let worker = QueueWorker::new(consumer, device.faults.clone(), Arc::clone(&stuck));
        let own = match &engine {
            Some(engine) => {
                engine.serve(worker);
                None
            }
            None => {
                device.faults.held().add(Arc::downgrade(&rings) as _);
                Some(Own {
                    worker: UnsafeCell::new(worker),
                    next: AtomicU64::new(0),
                    stuck,
                })
            }
        };
        SoftQueue {
            inline_jobs: device.inline_jobs.open(),
            device,
            engine,
            rings,
            own,
            ports: OnceLock::new(),
            signal: Arc::clone(&config.signal),
        }
    }

    /// Returns a queue whose jobs a loom model carries out.
    #[cfg(all(test, tokio_doca_loom))]
    pub(super) fn modelled(
        rings: Arc<Rings>,
        device: Arc<DeviceShared>,
        engine: Arc<Engine>,
    ) -> SoftQueue {
        SoftQueue {
            inline_jobs: device.inline_jobs.open(),
            device,
            engine: Some(engine),
            rings,
            own: None,
            ports: OnceLock::new(),
            signal: Arc::new(Signal::new().expect("an eventfd")),
        }
    }

    /// Returns true if the thread that reaps has jobs to do.
    #[inline]
    fn has_own_work(&self) -> bool {
        self.own.as_ref().is_some_and(|own| {
            let next = own.next.load(Relaxed);
            (next & 1 != 0 || self.rings.has_work(next / 2) || own.stuck.is_full())
                && !self.device.faults.is_held()
        })
    }
}

impl Own {
    /// Does a part of the jobs, at most `PIECE` bytes of copies.
    ///
    /// # Safety
    ///
    /// Only one caller at a time.
    #[cold]
    unsafe fn work(&self, device: &DeviceShared) {
        self.worker.with_mut(|worker| {
            // SAFETY: as the caller promises.
            let worker = unsafe { &mut *worker };
            let mut reaper = Reaper {
                device,
                left: PIECE,
            };
            worker.drive(&mut reaper);
            let next = worker.consumer().position() * 2 + u64::from(worker.is_busy());
            self.next.store(next, Relaxed);
        });
    }
}

/// The driver of a queue without an engine: the thread that reaps.
struct Reaper<'a> {
    device: &'a DeviceShared,
    /// The number of bytes that the thread may still copy in this turn.
    left: usize,
}

impl Driver for Reaper<'_> {
    const KEEPS_TIME: bool = false;
    const PIECE: usize = PIECE;

    fn copy(&mut self, work: &Work, from: usize) -> usize {
        let len = self.left.min(work.len() - from);
        work.copy(from, len);
        self.left -= len;
        len
    }

    fn count(&mut self) {
        self.device.own_jobs.fetch_add(1, Relaxed);
    }
}

/// The number of bytes that the thread of a task copies in one go, in some tens of microseconds.
pub(super) const PIECE: usize = if cfg!(tokio_doca_loom) { 1 } else { 256 << 10 };

// SAFETY: the duties of `device::contract`:
// 1. A job is put once and taken once, and so is its completion.
// 2. The engine does not touch a job's memory after it has put the completion.
// 3. A refused job was not put. 4. `try_inline` copies, and keeps nothing.
// 5. `Doorbell`. 6. `Rings::is_over`. 7. No call blocks; no data comes from other processes.
unsafe impl Submit for SoftQueue {
    #[inline]
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let Job::Copy(CopyJob { src, dst, len }) = job else {
            // SAFETY: as the caller promises.
            return unsafe { self.compute_inline(job) };
        };
        if *len >= self.device.faults.inline_below() {
            return None;
        }
        self.inline_jobs.add_one();
        // SAFETY: the memory is valid and leased during the call, and keys are of this device,
        // whose imports are kept, as the caller promises. The crate checked the lengths, and that
        // source and destination do not overlap.
        let copied = unsafe { copy::check_and_copy(src, dst, *len) };
        Some(copied.map(|()| *len as u64))
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // SAFETY: as the caller promises.
        unsafe { self.accept(jobs) }
    }
}

// SAFETY: as above.
unsafe impl Queue for SoftQueue {
    fn inline_jobs(&self) -> u64 {
        self.inline_jobs.sum()
    }

    fn open_endpoint(&self, config: EndpointConfig) -> SetUp<Arc<dyn Endpoint>> {
        Ok(Arc::new(SoftEndpoint::open(self.ports()?, config)?))
    }

    fn open_event_port(
        &self,
        event: &Arc<dyn EventCounter>,
        waits: u32,
    ) -> SetUp<Arc<dyn EventPort>> {
        let Ok(event) = Arc::clone(event).as_any().downcast::<SoftEvent>() else {
            let text = "the sync event is of another provider's";
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        };
        Ok(Arc::new(SoftPort::open(self.ports()?, event, waits)?))
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ports.get().map(|ports| ports.as_fd())
    }

    fn clear(&self) {
        if let Some(ports) = self.ports.get() {
            ports.clear();
        }
    }

    #[inline]
    fn ready(&self) -> bool {
        self.rings.is_ready()
            || self.has_own_work()
            || self.ports.get().is_some_and(|ports| ports.ready())
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        if let Some(own) = &self.own {
            // SAFETY: one thread reaps at a time, as the caller promises.
            unsafe { own.work(&self.device) };
        }
        // SAFETY: one thread reaps at a time, as the caller promises.
        let mut reaped = unsafe { self.rings.reap(out) };
        if let Some(ports) = self.ports.get() {
            // SAFETY: as above.
            reaped += unsafe { ports.reap(ports.reaper(), &mut out[reaped..]) };
        }
        reaped
    }

    /// Returns true if the queue has ports: `ready` and `reap` would each take the lock of the
    /// ports' reaper.
    fn polls_in_reap(&self) -> bool {
        self.ports.get().is_some()
    }

    unsafe fn reap_within(&self, out: &mut [Completion], looks: usize) -> usize {
        if let Some(ports) = self.ports.get() {
            let mut reaper = ports.reaper();
            let mut found = false;
            for _ in 0..looks {
                if self.rings.is_ready() || self.has_own_work() {
                    found = true;
                    break;
                }
                if ports.finds(&mut reaper) {
                    // SAFETY: as the caller promises.
                    return unsafe { ports.reap(reaper, out) };
                }
            }
            if !found {
                return 0;
            }
        }
        // SAFETY: as the caller promises. The ports' lock was released, since this may copy.
        unsafe { self.reap(out) }
    }

    fn arm(&self) -> Armed {
        self.rings.arm();
        if let Some(ports) = self.ports.get() {
            ports.arm();
        }
        if self.has_own_work() {
            // Each poll does a part of the jobs, and other tasks have their turn in between.
            self.rings.signal_anyway();
        }
        if self.rings.is_ready() || self.ports.get().is_some_and(|ports| ports.ready()) {
            Armed::Ready
        } else {
            Armed::Armed
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        if outstanding == 0 || self.engine.is_none() {
            // Either all jobs were reaped, so that the engine touches none of their memory any
            // more, or there is no engine that would touch it.
            discard(keep);
        } else {
            self.rings.keep(keep);
        }
        self.end();
    }
}

impl Drop for SoftQueue {
    /// Ends a queue that no WorkQ has retired.
    fn drop(&mut self) {
        self.end();
    }
}

impl SoftQueue {
    /// Returns the `Ports` of the queue, which keep its endpoints and sync events. Creates the
    /// `Ports` first if there are none.
    fn ports(&self) -> SetUp<&Arc<Ports>> {
        if let Some(ports) = self.ports.get() {
            return Ok(ports);
        }
        let (device, inline_jobs) = (Arc::clone(&self.device), Arc::clone(&self.inline_jobs));
        let new = Ports::new(device, inline_jobs, Arc::clone(&self.signal))?;
        Ok(self.ports.get_or_init(|| new))
    }

    /// Does a job that is not a copy on this thread, if it takes no longer than an inline copy may.
    ///
    /// # Safety
    ///
    /// As for `try_inline`.
    unsafe fn compute_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let job = CpuJob::of(job)?;
        // Copies of data in the cache are far cheaper than `CpuState` assumes.
        let limit = self.device.faults.inline_below().saturating_sub(1) / 4;
        // SAFETY: as the caller promises.
        let outcome = unsafe { CpuState::now(&job, limit) }?;
        self.inline_jobs.add_one();
        Some(outcome)
    }

    /// Accepts jobs until one is refused.
    ///
    /// # Safety
    ///
    /// As for `submit`.
    #[inline(always)]
    unsafe fn accept(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let (mut accepted, mut accepted_at) = (0, 0);
        let mut refused = None;
        if self.rings.is_broken() {
            let refused = Some(JobError::queue_broken());
            return Submitted { accepted, refused };
        }
        for &(token, job) in jobs {
            let Some(task) = Task::of(job) else {
                refused = Some(JobError::device(ErrorKind::NotSupported, 0));
                break;
            };
            let fault = self.device.faults.next();
            if fault == Fault::QueueFull {
                refused = Some(JobError::device(ErrorKind::Again, 0));
                break;
            }
            if let Fault::Behind(_) = fault {
                // Inline jobs are stopped until the worker has done this one.
                self.device.faults.stop_inline();
            }
            // SAFETY: at most `depth` jobs are in flight, and no token is used twice, as the caller
            // promises.
            accepted_at = unsafe { self.rings.accept(Work { token, task, fault }) };
            accepted += 1;
        }
        match &self.engine {
            Some(engine) if accepted > 0 => engine.notify_submit(accepted_at),
            Some(_) => {}
            // No engine does the jobs, so the thread that armed must poll.
            None => self.rings.signal_anyway(),
        }
        Submitted { accepted, refused }
    }

    /// Ends the acceptance of jobs.
    fn end(&self) {
        if !self.rings.retire() {
            return;
        }
        if let Some(ports) = self.ports.get() {
            ports.end();
        }
        if let Some(engine) = &self.engine {
            engine.call();
        } else if self.rings.is_broken() {
            self.device.faults.resume_inline();
        }
    }
}
