//! The thread that is the device: takes jobs from its queues in turn, does those of a queue in order, and sleeps when
//! there are none.
//!
//! After its last job it spins for a while, since waking it costs 20 to 50 us; but never on the CPU that submits, where
//! it would only be in the way. Then it announces that it sleeps, looks once more, and parks. It has no timer: an idle
//! device makes no wake-ups.

use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::device::DeviceShared;
use super::fault::{Fault, Faults};
use super::options::Options;
use super::queue::{Rings, Work};
use crate::device::DevInfo;
use crate::error::{Error, JobError, Result};
use crate::sync::atomic::{AtomicBool as LoomBool, fence};

/// Looks between two readings of the clock. Without `pause`: one costs as much as eighty of them.
const LOOKS: u32 = 256;

/// Jobs of one queue before the next queue has its turn.
const TURN: usize = 16;

/// Every so many jobs the submitter says on which CPU it runs.
const KICKS: u64 = 8;

/// Nobody means to spin for longer.
const MAX_SPIN: Duration = Duration::from_secs(3600);

/// A running engine. Dropping it ends the thread, as soon as all its queues are over.
pub(super) struct Engine(pub(super) Arc<EngineShared>);

pub(super) struct EngineShared {
    bed: Bed,
    /// Queues came or went, or it shall stop.
    called: AtomicBool,
    /// Queues that the thread does not know yet.
    arrived: Mutex<Vec<Arc<Rings>>>,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
    /// Where jobs were submitted of late.
    submitter: AtomicUsize,
    jobs: AtomicU64,
}

/// The engines that a release of held jobs must wake.
#[derive(Default)]
pub(super) struct Engines(Mutex<Vec<Weak<EngineShared>>>);

impl Engines {
    pub(super) fn wake_all(&self) {
        for engine in self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter_map(Weak::upgrade)
        {
            engine.wake();
        }
    }

    fn add(&self, engine: &Arc<EngineShared>) {
        let mut engines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|known| known.strong_count() > 0);
        engines.push(Arc::downgrade(engine));
    }
}

impl Engine {
    /// Starts the thread, and waits until it runs.
    pub(super) fn start(
        info: &DevInfo,
        options: &Options,
        device: &Arc<DeviceShared>,
    ) -> Result<Engine> {
        let shared = Arc::new(EngineShared::new());
        let (ready, is_ready) = mpsc::sync_channel(1);
        let mut worker = Worker {
            shared: Arc::clone(&shared),
            faults: device.faults.clone(),
            spin: options.engine_spin,
            queues: Vec::new(),
            delayed: BinaryHeap::new(),
            seen: 0,
            leaving: false,
        };
        let run = move || {
            let _ = worker.shared.thread.set(thread::current());
            let _ = ready.send(());
            drop(ready);
            worker.run();
        };
        let name = format!("doca-{}", info.name());
        thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(|error| Error::os("open_queue", "the engine's thread", error))?;
        // A new thread may take milliseconds to appear; nobody shall spin for it.
        let _ = is_ready.recv();
        device.faults.engines().add(&shared);
        Ok(Engine(shared))
    }

    /// Does this queue's jobs from now on.
    pub(super) fn serve(&self, queue: &Arc<Rings>) {
        let mut arrived = self
            .0
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        arrived.push(Arc::clone(queue));
        drop(arrived);
        self.call();
    }

    /// Queues came or went.
    pub(super) fn call(&self) {
        self.0.called.store(true, Ordering::SeqCst);
        self.0.wake();
    }

    /// A job was put, at this position: wakes the engine if it sleeps.
    #[inline(always)]
    pub(super) fn kick(&self, position: u64) {
        let asleep = self.0.bed.is_asleep();
        if (asleep || position.is_multiple_of(KICKS))
            && let Ok(cpu) = nix::sched::sched_getcpu()
        {
            self.0.submitter.store(cpu, Ordering::Relaxed);
        }
        if asleep && self.0.bed.rouse() {
            self.0.wake();
        }
    }

    pub(super) fn jobs(&self) -> u64 {
        self.0.jobs.load(Ordering::Relaxed)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.call();
    }
}

/// Where the engine sleeps.
pub(super) struct Bed(LoomBool);

impl Bed {
    pub(super) fn new() -> Bed {
        Bed(LoomBool::new(false))
    }

    /// Engine: announces that it sleeps. What it looks at next, it sees as it is after that. Pairs with `is_asleep`.
    pub(super) fn lie_down(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Engine: it was woken, or found something.
    pub(super) fn get_up(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// A job was put before: either the engine sees it, or this sees the engine asleep.
    #[inline(always)]
    pub(super) fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }

    /// True for the one who must wake it.
    pub(super) fn rouse(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

impl EngineShared {
    pub(super) fn new() -> EngineShared {
        EngineShared {
            bed: Bed::new(),
            called: AtomicBool::new(false),
            arrived: Mutex::default(),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            submitter: AtomicUsize::new(usize::MAX),
            jobs: AtomicU64::new(0),
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Whether this thread runs where the last job came from.
    fn on_submitters_cpu(&self) -> bool {
        nix::sched::sched_getcpu().is_ok_and(|cpu| cpu == self.submitter.load(Ordering::Relaxed))
    }
}

/// The state of the thread.
struct Worker {
    shared: Arc<EngineShared>,
    faults: Faults,
    spin: Duration,
    queues: Vec<Arc<Rings>>,
    delayed: BinaryHeap<Delayed>,
    seen: u64,
    /// Queues are retired whose jobs are not over.
    leaving: bool,
}

/// A job whose time has not come.
struct Delayed {
    due: Instant,
    /// Of two that are due at once the first goes first.
    number: u64,
    queue: Arc<Rings>,
    work: Work,
}

impl Worker {
    fn run(&mut self) {
        loop {
            self.answer();
            let worked = self.work();
            if worked && self.spin_for_more() {
                continue;
            }
            if self.shared.stop.load(Ordering::SeqCst) && self.queues.is_empty() {
                return;
            }
            self.sleep();
        }
    }

    /// Takes queues in that came, and leaves those that are over.
    fn answer(&mut self) {
        if self.shared.called.swap(false, Ordering::SeqCst) {
            let mut arrived = self
                .shared
                .arrived
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.queues.append(&mut arrived);
            drop(arrived);
            self.leaving = true;
        }
        if self.leaving {
            self.queues.retain(|queue| !queue.is_over());
            self.leaving = self.queues.iter().any(|queue| queue.is_retired());
        }
    }

    /// Does what can be done now.
    fn work(&mut self) -> bool {
        let mut worked = false;
        loop {
            self.finish_due();
            let mut found = false;
            for at in 0..self.queues.len() {
                found |= self.serve(at);
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

    /// Does some jobs of one queue.
    fn serve(&mut self, at: usize) -> bool {
        let queue = Arc::clone(&self.queues[at]);
        let mut found = false;
        for _ in 0..TURN {
            if self.faults.is_held() {
                break;
            }
            let Some(work) = queue.next() else { break };
            if found && work.is_long() {
                queue.ring_for_certain();
            }
            found = true;
            self.begin(&queue, work);
        }
        if found {
            queue.ring_for_certain();
        }
        found
    }

    fn begin(&mut self, queue: &Arc<Rings>, work: Work) {
        match work.fault {
            Fault::Pass | Fault::QueueFull => self.finish(queue, &work, None),
            Fault::Error(kind, vendor) => {
                self.finish(queue, &work, Some(JobError::device(kind, vendor)));
            }
            Fault::Delay(time) => {
                self.seen += 1;
                // What lies beyond the clock is due in a hundred years.
                let now = Instant::now();
                let due = now
                    .checked_add(time)
                    .unwrap_or(now + Duration::from_secs(100 * 365 * 86_400));
                self.delayed.push(Delayed {
                    due,
                    number: self.seen,
                    queue: Arc::clone(queue),
                    work,
                });
            }
        }
    }

    fn finish_due(&mut self) {
        if self.delayed.is_empty() || self.faults.is_held() {
            return;
        }
        while self
            .delayed
            .peek()
            .is_some_and(|delayed| delayed.due <= Instant::now())
        {
            if let Some(delayed) = self.delayed.pop() {
                self.finish(&delayed.queue, &delayed.work, None);
                delayed.queue.ring_for_certain();
            }
        }
    }

    #[inline(always)]
    fn finish(&mut self, queue: &Rings, work: &Work, failed: Option<JobError>) {
        // Counted before the completion can be seen, so that who awaited a job finds it counted.
        self.shared.jobs.store(
            self.shared.jobs.load(Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
        queue.finish(work, failed);
    }

    /// Whether there is something that `answer` or `work` would do.
    #[inline(always)]
    fn has_work(&self) -> bool {
        self.queues.iter().any(|queue| queue.has_work())
            || self.shared.called.load(Ordering::Relaxed)
    }

    /// Spins for a while; true if there is work.
    fn spin_for_more(&self) -> bool {
        let start = Instant::now();
        let due = self.delayed.peek().map(|next| next.due);
        let over =
            |now| now >= start + self.spin.min(MAX_SPIN) || due.is_some_and(|due| now >= due);
        while !over(Instant::now()) && !self.shared.on_submitters_cpu() {
            for _ in 0..LOOKS {
                if self.has_work() {
                    return true;
                }
            }
        }
        self.has_work()
    }

    /// Announces that it sleeps, looks once more, sleeps.
    fn sleep(&mut self) {
        self.shared.bed.lie_down();
        let held = self.faults.is_held();
        let nothing = match held {
            true => !self.shared.called.load(Ordering::SeqCst),
            false => !self.has_work(),
        };
        if nothing {
            match self.delayed.peek().filter(|_| !held) {
                Some(next) => {
                    thread::park_timeout(next.due.saturating_duration_since(Instant::now()));
                }
                None => thread::park(),
            }
        }
        self.shared.bed.get_up();
    }
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Delayed) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Delayed) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    /// The heap's greatest is the one that is due first.
    fn cmp(&self, other: &Delayed) -> Order {
        other
            .due
            .cmp(&self.due)
            .then(other.number.cmp(&self.number))
    }
}
