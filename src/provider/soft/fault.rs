//! Faults on request, with which users test their own services.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::device::{QueueConfig, Signal};
use crate::error::{ErrorKind, JobError};
use crate::sync::lock;

/// A fault that is injected into a job.
///
/// ```
/// use tokio_doca::soft::{Fault, Soft};
/// # use tokio_doca::{BufPool, Dma, ErrorKind, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// let soft = Soft::builder().build();
/// let device = soft.open("pf0")?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// soft.faults().push(Fault::Error(ErrorKind::IoFailed, 0x88));
/// let error = dma.copy(&src, &dst).await.unwrap_err();
/// assert_eq!((error.kind(), error.vendor_code()), (ErrorKind::IoFailed, Some(0x88)));
/// assert_eq!(dma.copy(&src, &dst).await?, 5);         // the script has ended
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Injects nothing: this job passes.
    Pass,
    /// Fails the job with this kind and vendor code. Nothing is copied.
    Error(ErrorKind, u64),
    /// Delays the job by this time. Jobs submitted after it are not delayed. A device without
    /// engines ignores the delay, since it has no thread that could wait.
    Delay(Duration),
    /// Delays the job until the device has done this number of later jobs of the same WorkQ, so
    /// that completions come in another order. Until then no job of the provider's devices runs
    /// inside its submission. If delayed and lost jobs take all slots of the WorkQ, no later job
    /// can come; then the first delayed job on a device is done.
    Behind(u32),
    /// Loses the job: its completion never comes. Its Bufs stay in use until the WorkQ is gone, and
    /// [`shutdown`](crate::WorkQ::shutdown) waits for ever. A future that waits for the job never
    /// completes: drop it, or give it a time limit.
    Lost,
    /// Breaks the WorkQ's queue: this job and all jobs in flight on that queue fail with `Driver`,
    /// and later jobs are refused with `BadState`. Other queues of the device continue.
    Queue,
    /// Makes the queue refuse the job once, as if it were full.
    QueueFull,
}

impl Fault {
    /// Returns the error that this fault gives to a job of an endpoint or a sync event, where a
    /// failure breaks only that context.
    pub(super) fn error(self) -> Option<JobError> {
        match self {
            Fault::Error(kind, vendor) => Some(JobError::device(kind, vendor)),
            Fault::Queue => Some(JobError::device(ErrorKind::Driver, 0)),
            _ => None,
        }
    }
}

/// The script of faults for all devices of one [`Soft`](super::Soft). Each job takes the next
/// entry; once no entry is left, jobs pass.
///
/// While the script has entries, a [`Hold`] exists, a queue is broken, or a job waits for others
/// ([`Fault::Behind`]), jobs do not run inside their submission.
///
/// Jobs of an Rdma take entries too, but receives do not. A connection is reliable and in order, so
/// [`Fault::Delay`] and [`Fault::Behind`] have no effect on such a job, and a [`Hold`] does not
/// delay it. [`Fault::Error`] and [`Fault::Queue`] take the Rdma to the state Error; `Fault::Queue`
/// breaks only the Rdma, not the queue. Jobs of a [`SyncEvent`](crate::sync_event::SyncEvent) take
/// entries too, but its waits do not. `Fault::Delay`, `Fault::Behind` and a `Hold` have no effect
/// on these jobs, and `Fault::Queue` fails only the job.
///
/// ```
/// use tokio_doca::soft::{Faults, Soft};
///
/// let soft = Soft::builder().build();
/// let faults: &Faults = soft.faults();
/// faults.push_script("pass*3 delay:5ms error:IoFailed")?;     // for the next five jobs
/// assert_eq!(faults.left(), 5);
/// faults.clear();
/// assert_eq!(faults.left(), 0);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
pub struct Faults(Arc<Script>);

pub(super) struct Script {
    entries: Mutex<VecDeque<Fault>>,
    /// The number of entries that are left (`left`), and the number of Holds (`holds`). Both are
    /// read without the lock.
    left: AtomicUsize,
    holds: AtomicUsize,
    /// The number of reasons, besides entries and Holds, why jobs are not done inline: broken
    /// queues, and jobs that wait for other jobs.
    stops: AtomicUsize,
    /// The size below which copies run inline: 0 while jobs must not be done inline.
    inline_below: AtomicUsize,
    unscripted_below: usize,
    held: HeldList,
    stuck: Mutex<Vec<Weak<Stuck>>>,
}

/// The jobs of one WorkQ, on all of the provider's devices, that do not complete by themselves:
/// jobs that wait for others, and lost jobs.
pub(super) struct Stuck {
    /// The depth and the signal of the WorkQ.
    of: (u32, Arc<Signal>),
    /// The lower half is the number of such jobs. The upper half is the number of those that wait
    /// for others.
    pub(super) jobs: AtomicU64,
}

impl Stuck {
    pub(super) const BEHIND: u64 = 1 << 32 | Stuck::NEVER;
    pub(super) const NEVER: u64 = 1;

    /// Returns the entry of the WorkQ with this signal.
    fn find(list: &[Weak<Stuck>], signal: &Arc<Signal>) -> Option<Arc<Stuck>> {
        let mut known = list.iter().filter_map(Weak::upgrade);
        known.find(|it| Arc::ptr_eq(&it.of.1, signal))
    }

    /// Returns true if such jobs take all slots of the WorkQ while one of them waits for later
    /// jobs, which then cannot come.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let jobs = self.jobs.load(Ordering::SeqCst);
        jobs >> 32 != 0 && jobs as u32 >= self.of.0
    }
}

/// A party, such as an engine, that a Hold has stopped, or that waits because jobs take all slots.
/// `resume` is called to make it continue.
pub(super) trait Held: Send + Sync {
    fn resume(&self);
}

/// All parties of a provider that implement `Held`.
#[derive(Default)]
pub(super) struct HeldList(Mutex<Vec<Weak<dyn Held>>>);

impl HeldList {
    pub(super) fn add(&self, new: Weak<dyn Held>) {
        let mut list = lock(&self.0);
        list.retain(|known| known.strong_count() > 0);
        list.push(new);
    }

    fn resume(&self) {
        let list = lock(&self.0);
        for held in list.iter().filter_map(Weak::upgrade) {
            held.resume();
        }
    }
}

impl Faults {
    pub(super) fn new(inline_limit: usize) -> Faults {
        // With an inline limit of 0, even a copy of 0 bytes is not inline.
        let below = match inline_limit {
            0 => 0,
            limit => limit.saturating_add(1),
        };
        Faults(Arc::new(Script {
            inline_below: AtomicUsize::new(below),
            unscripted_below: below,
            entries: Mutex::default(),
            left: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            stops: AtomicUsize::new(0),
            held: HeldList::default(),
            stuck: Mutex::default(),
        }))
    }

    /// Appends an entry to the script.
    pub fn push(&self, fault: Fault) {
        let mut entries = self.entries();
        entries.push_back(fault);
        self.changed(&entries);
    }

    /// Returns how many entries are left.
    pub fn left(&self) -> usize {
        self.0.left.load(Ordering::SeqCst)
    }

    /// Removes all entries.
    pub fn clear(&self) {
        let mut entries = self.entries();
        entries.clear();
        self.changed(&entries);
    }

    /// Holds all jobs that have not begun, until the Hold is dropped. The jobs are in flight, but
    /// make no progress.
    #[must_use = "the jobs continue when the Hold is dropped"]
    pub fn hold(&self) -> Hold {
        let entries = self.entries();
        self.0.holds.fetch_add(1, Ordering::SeqCst);
        self.changed(&entries);
        drop(entries);
        Hold(self.clone())
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Fault>> {
        lock(&self.0.entries)
    }

    fn changed(&self, entries: &VecDeque<Fault>) {
        let script = &self.0;
        script.left.store(entries.len(), Ordering::SeqCst);
        let stopped = script.stops.load(Ordering::SeqCst) != 0;
        let free = entries.is_empty() && !stopped && !self.is_held();
        let below = if free { script.unscripted_below } else { 0 };
        script.inline_below.store(below, Ordering::SeqCst);
    }

    /// Returns the size in bytes below which copies run inline now.
    #[inline]
    pub(super) fn inline_below(&self) -> usize {
        self.0.inline_below.load(Ordering::Relaxed)
    }

    pub(super) fn held(&self) -> &HeldList {
        &self.0.held
    }

    /// Returns the `Stuck` that all queues of a WorkQ share.
    pub(super) fn stuck(&self, of: &QueueConfig) -> Arc<Stuck> {
        let mut list = lock(&self.0.stuck);
        list.retain(|known| known.strong_count() > 0);
        if let Some(known) = Stuck::find(&list, &of.signal) {
            return known;
        }
        let (of, jobs) = ((of.depth, Arc::clone(&of.signal)), AtomicU64::new(0));
        let new = Arc::new(Stuck { of, jobs });
        list.push(Arc::downgrade(&new));
        new
    }

    /// Counts a lost job of an endpoint or a sync event, on the WorkQ with this signal.
    #[cold]
    pub(super) fn add_lost(&self, signal: &Arc<Signal>) {
        if let Some(stuck) = Stuck::find(&lock(&self.0.stuck), signal) {
            self.add_stuck(&stuck, Stuck::NEVER);
        }
    }

    /// Counts a job that does not complete by itself. If the WorkQ has no slot left now, other
    /// devices must continue with the jobs that they delay.
    pub(super) fn add_stuck(&self, stuck: &Stuck, job: u64) {
        stuck.jobs.fetch_add(job, Ordering::SeqCst);
        if stuck.is_full() {
            self.0.held.resume();
        }
    }

    /// Stops jobs from being done inline. A broken queue must see every job, to refuse it; a queue
    /// with a job that waits for others must see these, to count them.
    pub(super) fn stop_inline(&self) {
        let entries = self.entries();
        self.0.stops.fetch_add(1, Ordering::SeqCst);
        self.changed(&entries);
    }

    /// Cancels one call of `stop_inline`.
    pub(super) fn resume_inline(&self) {
        let entries = self.entries();
        self.0.stops.fetch_sub(1, Ordering::SeqCst);
        self.changed(&entries);
    }

    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.0.holds.load(Ordering::SeqCst) != 0
    }

    /// Takes the entry for the job that is being submitted.
    pub(super) fn next(&self) -> Fault {
        if self.0.left.load(Ordering::SeqCst) == 0 {
            return Fault::Pass;
        }
        let mut entries = self.entries();
        let fault = entries.pop_front();
        self.changed(&entries);
        fault.unwrap_or(Fault::Pass)
    }
}

/// While a `Hold` exists, jobs of the provider's devices that have not begun make no progress.
/// Dropping it lets them continue.
///
/// ```
/// use tokio_doca::soft::{Hold, Soft};
/// # use tokio_doca::{BufPool, Dma, ErrorKind, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// let soft = Soft::builder().build();
/// let device = soft.open("pf0")?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// // Runs a test while a copy is in flight.
/// let hold: Hold = soft.faults().hold();
/// let copy = dma.copy(&src, &dst).start()?;
/// assert_eq!(dst.data().unwrap_err().kind(), ErrorKind::InUse);
/// drop(hold);
/// assert_eq!(copy.await?, 5);
/// # Ok(())
/// # }
/// ```
pub struct Hold(Faults);

impl Drop for Hold {
    fn drop(&mut self) {
        let entries = self.0.entries();
        self.0.0.holds.fetch_sub(1, Ordering::SeqCst);
        self.0.changed(&entries);
        drop(entries);
        self.0.held().resume();
    }
}
