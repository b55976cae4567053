//! The thread that is the device: takes jobs from its inbox, does them in order, and sleeps when there are none.
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
use super::inbox::Inbox;
use super::options::Options;
use super::queue::{Node, Work, WorkList};
use crate::device::DevInfo;
use crate::error::{Error, JobError, Result};

/// Looks between two readings of the clock. Without `pause`: one costs as much as eighty of them.
const LOOKS: u32 = 256;

/// Nobody means to spin for longer.
const MAX_SPIN: Duration = Duration::from_secs(3600);

/// A running engine. Dropping it ends the thread, which has nothing to do then: every queue has the engine.
pub(super) struct Engine(pub(super) Arc<EngineShared>);

pub(super) struct EngineShared {
    pub(super) inbox: Inbox<Node>,
    pub(super) sleeping: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) thread: OnceLock<Thread>,
    /// Where the last job was submitted.
    pub(super) submitter: AtomicUsize,
    pub(super) jobs: AtomicU64,
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
        let shared = Arc::new(EngineShared {
            inbox: Inbox::new(),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            submitter: AtomicUsize::new(usize::MAX),
            jobs: AtomicU64::new(0),
        });
        let (ready, is_ready) = mpsc::sync_channel(1);
        let mut worker = Worker {
            shared: Arc::clone(&shared),
            faults: device.faults.clone(),
            spin: options.engine_spin,
            batch: WorkList::new(),
            delayed: BinaryHeap::new(),
            seen: 0,
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

    pub(super) fn inbox(&self) -> &Inbox<Node> {
        &self.0.inbox
    }

    /// Jobs were pushed: wakes the engine if it sleeps.
    #[inline]
    pub(super) fn kick(&self) {
        self.0.kick();
    }

    pub(super) fn jobs(&self) -> u64 {
        self.0.jobs.load(Ordering::Relaxed)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

impl EngineShared {
    /// Jobs were pushed (SeqCst): wakes the engine if it announced that it sleeps.
    #[inline]
    fn kick(&self) {
        if let Ok(cpu) = nix::sched::sched_getcpu() {
            self.submitter.store(cpu, Ordering::Relaxed);
        }
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.wake();
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
    batch: WorkList,
    delayed: BinaryHeap<Delayed>,
    seen: u64,
}

/// A job whose time has not come.
struct Delayed {
    due: Instant,
    /// Of two that are due at once the first goes first.
    number: u64,
    work: Work,
}

impl Worker {
    fn run(&mut self) {
        loop {
            let worked = self.work();
            if worked && self.spin_for_more() {
                continue;
            }
            if self.shared.stop.load(Ordering::SeqCst) && self.is_idle() {
                return;
            }
            self.sleep();
        }
    }

    fn is_idle(&self) -> bool {
        self.batch.is_empty() && self.delayed.is_empty() && self.shared.inbox.is_empty()
    }

    /// Does what can be done now.
    fn work(&mut self) -> bool {
        let mut worked = false;
        while !self.faults.is_held() {
            self.finish_due();
            self.batch.take(&self.shared.inbox);
            let Some(work) = self.batch.pop() else { break };
            worked = true;
            self.begin(work);
        }
        worked
    }

    fn begin(&mut self, work: Work) {
        match work.fault() {
            Fault::Pass | Fault::QueueFull => self.finish(work, None),
            Fault::Error(kind, vendor) => self.finish(work, Some(JobError::device(kind, vendor))),
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
                    work,
                });
            }
        }
    }

    fn finish_due(&mut self) {
        while self
            .delayed
            .peek()
            .is_some_and(|delayed| delayed.due <= Instant::now())
        {
            if let Some(delayed) = self.delayed.pop() {
                self.finish(delayed.work, None);
            }
        }
    }

    fn finish(&mut self, work: Work, failed: Option<JobError>) {
        // Counted before the completion can be seen, so that who awaited a job finds it counted.
        self.shared.jobs.store(
            self.shared.jobs.load(Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
        work.finish(failed);
    }

    /// Spins for a while; true if there is work.
    fn spin_for_more(&self) -> bool {
        let start = Instant::now();
        let due = self.delayed.peek().map(|next| next.due);
        let over =
            |now| now >= start + self.spin.min(MAX_SPIN) || due.is_some_and(|due| now >= due);
        while !over(Instant::now())
            && !self.shared.on_submitters_cpu()
            && !self.shared.stop.load(Ordering::Relaxed)
        {
            for _ in 0..LOOKS {
                if !self.shared.inbox.is_empty() {
                    return true;
                }
            }
        }
        !self.shared.inbox.is_empty()
    }

    /// Announces that it sleeps, looks once more, sleeps.
    fn sleep(&mut self) {
        self.shared.sleeping.store(true, Ordering::SeqCst);
        let held = self.faults.is_held();
        let nothing = held || (self.batch.is_empty() && self.shared.inbox.is_empty());
        if nothing && !self.shared.stop.load(Ordering::SeqCst) {
            match self.delayed.peek().filter(|_| !held) {
                Some(next) => {
                    thread::park_timeout(next.due.saturating_duration_since(Instant::now()))
                }
                None => thread::park(),
            }
        }
        self.shared.sleeping.store(false, Ordering::SeqCst);
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
