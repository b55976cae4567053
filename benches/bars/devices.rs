//! Devices for the bars: one whose completions are seen through the event only, one that finishes
//! late on a thread of its own, and one that records when each source was submitted.
#![expect(unsafe_code, reason = "implements Queue, which is lent memory")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use tokio_doca::device::RegistrationUse;
use tokio_doca::device::contract::{
    Adapter, Armed, Completion, CopyJob, Job, KeepAlive, Queue, QueueConfig, Region, Registrar,
    Registration, Segments, Signal, Submit, Submitted, Token,
};
use tokio_doca::{
    Device, Result,
    device::{Caps, DevInfo, PciAddr, PciFunction},
    error::JobError,
};

use super::raw::Descriptor;
use super::sys;

/// The value for "no Token". No Token has this value, since no table has its number.
const NONE: u64 = u64::MAX;

type Open = Box<dyn Fn(QueueConfig) -> Result<Arc<dyn Queue>> + Send + Sync>;

/// A device that opens its queues by a function.
struct TestDevice {
    info: DevInfo,
    open: Open,
}

fn device(name: &str, open: Open) -> Device {
    let caps = Caps::for_dma(isize::MAX as u64, 1, 1 << 20);
    let info = DevInfo::new(
        "bars",
        name,
        PciAddr::new(0x0c, 0, 0),
        PciFunction::Pf,
        caps,
    );
    Device::from_adapter(Arc::new(TestDevice { info, open }))
}

// SAFETY: the duties of an `Adapter`. `open_queue` makes a new queue and keeps none. The
// information is made once, and the queues accept everything within its capabilities. There are no
// further duties.
unsafe impl Adapter for TestDevice {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        (self.open)(config)
    }
}

// SAFETY: the duties of a `Registrar`. Keys are not used: queues access memory by its address, and
// not after a job's completion. Nothing is exported or imported.
unsafe impl Registrar for TestDevice {
    fn register(&self, _region: &Region, _purpose: RegistrationUse) -> Result<Registration> {
        Ok(Registration::new(0, None))
    }
}

fn descriptor(src: &Segments, dst: &Segments, len: usize) -> Descriptor {
    let (src, dst) = (src.as_slice(), dst.as_slice());
    // SAFETY: an accepted Job's memory is valid and leased until its completion. The device takes
    // no lists.
    unsafe { Descriptor::new(src[0].addr().as_ptr(), dst[0].addr().as_ptr(), len) }
}

/// A device that does each Job and signals inside the submission, but shows the completion only
/// after [`Forced::show`]. The poll that submitted finds nothing. One Job at a time.
#[derive(Default)]
pub(crate) struct Forced {
    token: AtomicU64,
    len: AtomicU64,
    shown: AtomicBool,
}

impl Forced {
    pub(crate) fn open() -> (Device, Arc<Forced>) {
        let forced = Arc::new(Forced {
            token: AtomicU64::new(NONE),
            ..Forced::default()
        });
        let state = Arc::clone(&forced);
        let open = move |config: QueueConfig| {
            let state = Arc::clone(&state);
            let signal = config.signal;
            Ok(Arc::new(ForcedQueue { state, signal }) as Arc<dyn Queue>)
        };
        (device("forced", Box::new(open)), forced)
    }

    /// Shows the completion. Call it once the poll that submitted has returned: the event is then
    /// due.
    #[inline(always)]
    pub(crate) fn show(&self) {
        self.shown.store(true, Ordering::Relaxed);
    }
}

struct ForcedQueue {
    state: Arc<Forced>,
    signal: Arc<Signal>,
}

// SAFETY: a Job is complete when `submit` returns, so that nothing of it is kept. `reap` hands its
// Token out once.
unsafe impl Submit for ForcedQueue {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let [(token, Job::Copy(CopyJob { src, dst, len }))] = jobs else {
            panic!("one copy at a time");
        };
        descriptor(src, dst, *len).copy();
        self.state.shown.store(false, Ordering::Relaxed);
        self.state.len.store(*len as u64, Ordering::Relaxed);
        self.state.token.store(token.as_raw(), Ordering::Release);
        self.signal.raise();
        Submitted {
            accepted: 1,
            refused: None,
        }
    }
}

// SAFETY: as for `Submit` above.
unsafe impl Queue for ForcedQueue {
    fn ready(&self) -> bool {
        self.state.shown.load(Ordering::Relaxed) && self.state.token.load(Ordering::Relaxed) != NONE
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        if !self.ready() {
            return 0;
        }
        let token = self.state.token.swap(NONE, Ordering::Acquire);
        out[0] = Completion::new(
            Token::from_raw(token),
            Ok(self.state.len.load(Ordering::Relaxed)),
        );
        1
    }

    fn arm(&self) -> Armed {
        if self.ready() {
            Armed::Ready
        } else {
            Armed::Armed
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, _outstanding: usize) {
        drop(keep);
    }
}

/// What a late device signals: the event handle of a WorkQ, or the eventfd of the bare loop.
pub(crate) enum Bell {
    Signal(Arc<Signal>),
    Raw(EventFd),
}

impl Bell {
    fn ring(&self) {
        match self {
            Bell::Signal(signal) => signal.raise(),
            Bell::Raw(fd) => drop(fd.write(1)),
        }
    }
}

/// A device whose thread finishes a Job a given time after its submission, and records when. The
/// thread never sleeps.
pub(crate) struct Late {
    shared: Arc<LateShared>,
    thread: Option<JoinHandle<()>>,
}

#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

struct LateShared {
    start: Instant,
    delay: u64,
    posted: Line<AtomicU64>,
    finished: Line<AtomicU64>,
    stamp: AtomicU64,
    armed: Line<AtomicBool>,
    stop: AtomicBool,
    bell: OnceLock<Bell>,
}

impl Late {
    /// Starts the thread on a CPU.
    pub(crate) fn start(delay: Duration, cpu: usize) -> Late {
        let shared = Arc::new(LateShared {
            start: Instant::now(),
            delay: delay.as_nanos() as u64,
            posted: Line(AtomicU64::new(NONE)),
            finished: Line(AtomicU64::new(NONE)),
            stamp: AtomicU64::new(0),
            armed: Line::default(),
            stop: AtomicBool::new(false),
            bell: OnceLock::new(),
        });
        let state = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            sys::pin(Some(cpu));
            state.run();
        });
        Late {
            shared,
            thread: Some(thread),
        }
    }

    /// Returns it as a device of the crate.
    pub(crate) fn device(&self) -> Device {
        let state = Arc::clone(&self.shared);
        let open = move |config: QueueConfig| {
            let _ = state.bell.set(Bell::Signal(config.signal));
            Ok(Arc::new(LateQueue(Arc::clone(&state))) as Arc<dyn Queue>)
        };
        device("late", Box::new(open))
    }

    /// Sets the eventfd that it signals for the bare loop, and returns an epoll for it.
    pub(crate) fn set_bell(&self, fd: EventFd) -> sys::Edge {
        let edge = sys::Edge::on(&fd);
        let _ = self.shared.bell.set(Bell::Raw(fd));
        edge
    }

    /// Runs one job of the bare loop: posts, arms, checks, sleeps.
    pub(crate) fn run_raw(&self, edge: &sys::Edge) {
        let state = &self.shared;
        state.posted.0.store(0, Ordering::Release);
        loop {
            state.armed.0.store(true, Ordering::SeqCst);
            if state.finished.0.load(Ordering::SeqCst) != NONE {
                break;
            }
            edge.wait();
        }
        state.finished.0.store(NONE, Ordering::Relaxed);
    }

    /// Returns the nanoseconds since the last job was finished.
    pub(crate) fn since(&self) -> f64 {
        (self.shared.now() - self.shared.stamp.load(Ordering::Relaxed)) as f64
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl LateShared {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let token = self.posted.0.load(Ordering::Acquire);
            if token == NONE {
                continue;
            }
            let due = self.now() + self.delay;
            while self.now() < due {}
            self.posted.0.store(NONE, Ordering::Relaxed);
            self.stamp.store(self.now(), Ordering::Relaxed);
            self.finished.0.store(token, Ordering::SeqCst);
            if self.armed.0.load(Ordering::SeqCst) && self.armed.0.swap(false, Ordering::SeqCst) {
                self.bell.get().expect("set before the first job").ring();
            }
        }
    }
}

struct LateQueue(Arc<LateShared>);

// SAFETY: the device touches no memory, and hands each Token out once.
unsafe impl Submit for LateQueue {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let [(token, _)] = jobs else {
            panic!("one job at a time");
        };
        self.0.posted.0.store(token.as_raw(), Ordering::Release);
        Submitted {
            accepted: 1,
            refused: None,
        }
    }
}

// SAFETY: as for `Submit` above.
unsafe impl Queue for LateQueue {
    fn ready(&self) -> bool {
        self.0.finished.0.load(Ordering::SeqCst) != NONE
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        match self.0.finished.0.swap(NONE, Ordering::SeqCst) {
            NONE => 0,
            token => {
                out[0] = Completion::new(Token::from_raw(token), Ok(0));
                1
            }
        }
    }

    fn arm(&self) -> Armed {
        self.0.armed.0.store(true, Ordering::SeqCst);
        if self.ready() {
            Armed::Ready
        } else {
            Armed::Armed
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, _outstanding: usize) {
        drop(keep);
    }
}

/// Wraps a device, and records when each source was submitted. Its clock counts submissions, so
/// that a busy machine does not distort it.
pub(crate) struct Observed {
    clock: AtomicU64,
    /// The time of the last submission of each source, in the order of their addresses.
    submitted: Box<[AtomicU64]>,
    /// The address of the first source, and the distance between two sources in bytes.
    base: AtomicU64,
    stride: u64,
}

impl Observed {
    pub(crate) fn over(inner: Device, sources: usize, stride: usize) -> (Device, Arc<Observed>) {
        let observed = Arc::new(Observed {
            clock: AtomicU64::new(0),
            submitted: (0..sources).map(|_| AtomicU64::new(0)).collect(),
            base: AtomicU64::new(0),
            stride: stride as u64,
        });
        let state = Arc::clone(&observed);
        let open = move |config| {
            let inner = inner.adapter().open_queue(config)?;
            let state = Arc::clone(&state);
            Ok(Arc::new(ObservedQueue { inner, state }) as Arc<dyn Queue>)
        };
        (device("observed", Box::new(open)), observed)
    }

    pub(crate) fn set_base(&self, address: usize) {
        self.base.store(address as u64, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Returns when `source` was submitted last.
    pub(crate) fn submitted(&self, source: usize) -> u64 {
        self.submitted[source].load(Ordering::Relaxed)
    }
}

struct ObservedQueue {
    inner: Arc<dyn Queue>,
    state: Arc<Observed>,
}

// SAFETY: every call goes unchanged to the inner queue, which fulfils the duties.
unsafe impl Submit for ObservedQueue {
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        // SAFETY: as the caller promises.
        unsafe { self.inner.try_inline(job) }
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let state = &self.state;
        for (_, job) in jobs {
            if let Job::Copy(CopyJob { src, .. }) = job {
                let addr = src.as_slice()[0].addr().as_ptr().addr() as u64;
                let source = (addr - state.base.load(Ordering::Relaxed)) / state.stride;
                let now = state.clock.fetch_add(1, Ordering::Relaxed);
                state.submitted[source as usize].store(now, Ordering::Relaxed);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.inner.submit(jobs) }
    }
}

// SAFETY: as for `Submit` above.
unsafe impl Queue for ObservedQueue {
    fn ready(&self) -> bool {
        self.inner.ready()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        // SAFETY: as the caller promises.
        unsafe { self.inner.reap(out) }
    }

    fn arm(&self) -> Armed {
        self.inner.arm()
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.inner.retire(keep, outstanding) };
    }
}
