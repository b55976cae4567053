//! The thread that acts as the device. It serves its queues in turn, does the jobs of a queue in
//! order, and sleeps when there are none.
//!
//! After its last job the thread spins for a while, since waking it costs 20 to 50 us. It never
//! spins on the CPU of the submitter, where it would take time from the submitter. Then it
//! announces that it sleeps, polls its queues once more, and parks. It has no periodic timer: an
//! idle device causes no wake-ups.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::super::fault::{Faults, Held};
use super::super::shared::DeviceShared;
use super::affinity::Affinity;
use super::queue_worker::{Driver, QueueWorker};
use super::rings::Work;
use crate::device::DevInfo;
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool as LoomBool, fence};
use crate::sync::lock;

/// The number of polls between two readings of the clock; the polls have no `pause`. One reading
/// costs as much as eighty polls.
const LOOKS: u32 = 256;

/// The number of bytes whose copy takes as long as one part of a hash. Other queues have their turn
/// after each part. In this time about 1 MiB is hashed.
const PIECE: usize = 8 << 20;

/// The submitter stores its CPU at every job whose position is a multiple of this.
const KICKS: u64 = 8;

/// The longest time for which an engine spins.
const MAX_SPIN: Duration = Duration::from_secs(3600);

/// New queues that the thread has not taken over yet. The list also has the capacity for the queues
/// that the thread serves, so that the thread allocates nothing.
#[derive(Default)]
struct Arrived {
    list: Vec<QueueWorker>,
    known: usize,
}

/// A running engine. Dropping it ends the thread, as soon as all its queues have completed.
pub(in super::super) struct Engine(pub(in super::super) Arc<EngineShared>);

pub(in super::super) struct EngineShared {
    parker: Parker,
    /// Set if the thread must take over or remove queues, or must stop.
    called: AtomicBool,
    arrived: Mutex<Arrived>,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
    /// The CPU from which jobs were submitted most recently.
    submitter: AtomicUsize,
    jobs: AtomicU64,
    /// The time for which the engine has worked, in nanoseconds.
    worked: AtomicU64,
}

impl Engine {
    /// Starts the thread, and waits until it runs on its CPUs.
    pub(in super::super) fn start(
        info: &DevInfo,
        spin: Duration,
        affinity: Affinity,
        device: &Arc<DeviceShared>,
        number: usize,
    ) -> Result<Engine> {
        let shared = Arc::<EngineShared>::default();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let mut engine = EngineThread {
            faults: device.faults.clone(),
            spin: spin.min(MAX_SPIN),
            queues: Vec::new(),
            leaving: false,
            shared: Arc::clone(&shared),
        };
        let run = move || {
            let _ = engine.shared.thread.set(thread::current());
            let applied = affinity.apply();
            let is_on_its_cpus = applied.is_ok();
            let _ = ready.send(applied);
            drop(ready);
            if is_on_its_cpus {
                engine.run();
            }
        };
        let name = match number {
            0 => format!("doca-{}", info.name()),
            _ => format!("doca-{}-{number}", info.name()),
        };
        thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(|error| Error::os(None, "the engine's thread", error))?;
        // A new thread may take milliseconds to start. Without this wait the first waiter would
        // spin for that long.
        if let Ok(applied) = is_ready.recv() {
            applied?;
        }
        device.faults.held().add(Arc::downgrade(&shared) as _);
        Ok(Engine(shared))
    }

    /// Does the jobs of this queue from now on.
    pub(in super::super) fn serve(&self, queue: QueueWorker) {
        let mut arrived = self.0.arrived();
        let capacity = arrived.known + 1;
        arrived.list.reserve(capacity);
        arrived.list.push(queue);
        drop(arrived);
        // The thread need not wake up now: the queue's first job wakes it.
        self.0.called.store(true, Ordering::SeqCst);
    }

    /// Wakes the thread to notice that a queue was retired, or that the engine must stop.
    pub(in super::super) fn call(&self) {
        self.0.called.store(true, Ordering::SeqCst);
        self.0.wake();
    }

    /// Wakes the engine if it sleeps. The caller has put a job at `position` before.
    #[inline(always)]
    pub(in super::super) fn notify_submit(&self, position: u64) {
        let asleep = self.0.parker.is_parked();
        if (asleep || position.is_multiple_of(KICKS))
            && let Ok(cpu) = nix::sched::sched_getcpu()
        {
            self.0.submitter.store(cpu, Ordering::Relaxed);
        }
        if asleep {
            self.0.wake_if_parked();
        }
    }

    pub(in super::super) fn jobs(&self) -> u64 {
        self.0.jobs.load(Ordering::Relaxed)
    }

    /// Returns how long the engine has worked, as of the end of its last busy period.
    pub(in super::super) fn worked(&self) -> Duration {
        Duration::from_nanos(self.0.worked.load(Ordering::Relaxed))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.call();
    }
}

/// The flag that says whether the engine sleeps.
pub(in super::super) struct Parker(LoomBool);

impl Parker {
    pub(in super::super) fn new() -> Parker {
        Parker(LoomBool::new(false))
    }

    /// Announces that the engine sleeps. The engine polls its queues afterwards: either it sees a
    /// new job, or the submitter of that job sees the announcement. Pairs with `is_parked`.
    pub(in super::super) fn prepare(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Marks the engine as awake.
    pub(in super::super) fn finish(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns true if the engine sleeps. The caller has put a job before: either the engine sees
    /// the job, or this call sees that the engine sleeps.
    #[inline(always)]
    pub(super) fn is_parked(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }

    /// Returns true if the caller must wake the engine for a job that it has put before.
    pub(in super::super) fn claim_wake(&self) -> bool {
        self.is_parked() && self.0.swap(false, Ordering::AcqRel)
    }
}

impl Default for EngineShared {
    fn default() -> EngineShared {
        EngineShared {
            parker: Parker::new(),
            called: AtomicBool::new(false),
            arrived: Mutex::default(),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            submitter: AtomicUsize::new(usize::MAX),
            jobs: AtomicU64::new(0),
            worked: AtomicU64::new(0),
        }
    }
}

impl EngineShared {
    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        lock(&self.arrived)
    }

    /// Wakes the engine if it sleeps.
    fn wake_if_parked(&self) {
        if self.parker.claim_wake() {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Returns true if this thread runs on the CPU from which the last job was submitted.
    fn on_submitters_cpu(&self) -> bool {
        nix::sched::sched_getcpu().is_ok_and(|cpu| cpu == self.submitter.load(Ordering::Relaxed))
    }
}

impl Held for EngineShared {
    fn resume(&self) {
        self.wake();
    }
}

/// The state of the thread.
struct EngineThread {
    faults: Faults,
    spin: Duration,
    queues: Vec<QueueWorker>,
    /// True if some queues are retired whose jobs have not completed.
    leaving: bool,
    shared: Arc<EngineShared>,
}

/// How an engine drives a queue.
struct Drives<'a>(&'a EngineShared);

impl Driver for Drives<'_> {
    const KEEPS_TIME: bool = true;
    const PIECE: usize = PIECE;

    /// Copies all bytes at once.
    #[inline(always)]
    fn copy(&mut self, work: &Work, from: usize) -> usize {
        debug_assert_eq!(from, 0, "nothing of a copy is left to the next turn");
        let len = work.len();
        work.copy(0, len);
        len
    }

    #[inline(always)]
    fn count(&mut self) {
        // The job is counted before its completion can be seen, so that a caller which awaited the
        // job finds it counted.
        let jobs = &self.0.jobs;
        jobs.store(jobs.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl EngineThread {
    fn run(&mut self) {
        loop {
            let start = Instant::now();
            self.answer();
            if self.work() {
                let end = Instant::now();
                let worked = &self.shared.worked;
                let more = u64::try_from((end - start).as_nanos()).unwrap_or(u64::MAX);
                worked.store(
                    worked.load(Ordering::Relaxed).saturating_add(more),
                    Ordering::Relaxed,
                );
                if self.spin_for_more(end) {
                    continue;
                }
            }
            if self.shared.stop.load(Ordering::SeqCst) && self.queues.is_empty() {
                return;
            }
            self.sleep();
        }
    }

    /// Takes over new queues, and removes the retired ones whose jobs have completed.
    fn answer(&mut self) {
        let shared = &self.shared;
        let called = shared.called.swap(false, Ordering::SeqCst);
        if called {
            let mut arrived = shared.arrived();
            // Only a list to which `serve` has added a queue has the capacity for all queues.
            if !arrived.list.is_empty() {
                arrived.list.append(&mut self.queues);
                std::mem::swap(&mut arrived.list, &mut self.queues);
                arrived.known = self.queues.len();
            }
        }
        if called || self.leaving {
            // Dropping what a queue kept alive runs user code, so no lock is held here.
            self.queues
                .retain(|queue| !queue.consumer().is_over(&self.faults));
            self.leaving = self
                .queues
                .iter()
                .any(|queue| queue.consumer().is_retired());
        }
    }

    /// Does all jobs that can be done now. Returns true if there was one.
    fn work(&mut self) -> bool {
        let mut worked = false;
        loop {
            let mut found = false;
            for queue in &mut self.queues {
                found |= queue.drive(&mut Drives(&self.shared));
            }
            if !found {
                return worked;
            }
            worked = true;
            if self.leaving || self.shared.called.load(Ordering::Relaxed) {
                self.answer();
            }
        }
    }

    /// Returns true if `answer` or `work` would do something.
    #[inline(always)]
    fn has_work(&self) -> bool {
        self.queues.iter().any(QueueWorker::has_work) || self.shared.called.load(Ordering::Relaxed)
    }

    /// Returns when the next deferred job is due.
    fn due(&self) -> Option<Instant> {
        self.queues.iter().filter_map(QueueWorker::due).min()
    }

    /// Spins for a while. Returns true as soon as there is work.
    fn spin_for_more(&self, start: Instant) -> bool {
        let due = self.due();
        let over = |now| now >= start + self.spin || due.is_some_and(|due| now >= due);
        while !over(Instant::now()) && !self.shared.on_submitters_cpu() {
            for _ in 0..LOOKS {
                if self.has_work() {
                    return true;
                }
            }
        }
        self.has_work()
    }

    /// Announces that the engine sleeps, polls once more, and sleeps.
    fn sleep(&mut self) {
        let shared = &self.shared;
        shared.parker.prepare();
        let held = self.faults.is_held();
        let nothing = match held {
            true => !shared.called.load(Ordering::SeqCst),
            false => !self.has_work(),
        };
        if nothing {
            match self.due().filter(|_| !held) {
                Some(due) => thread::park_timeout(due.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
        }
        shared.parker.finish();
    }
}
