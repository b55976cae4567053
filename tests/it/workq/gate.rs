//! Application code that runs because of a completion, and uses the very WorkQ that reaps it: drops
//! of owners and wakers, wakers that are called, and `tracing` subscribers.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use support::rdma::{Setup, Side, connect};
use support::subscriber::OnEvent;
use support::*;
use tokio_doca::device::DevInfo;
use tokio_doca::device::contract::{
    Adapter, Armed, Completion, Job, KeepAlive, Queue, QueueConfig, Registrar, Submit, Submitted,
    Token,
};
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Device, Dma, Mmap, Mode, Rdma, Result, WorkQ, mem::BufInventory,
    workq::WorkQBuilder,
};

/// A user of a WorkQ: copies a Buf through the engine, and waits for the end of the copy.
#[derive(Clone)]
struct User {
    workq: WorkQ,
    dma: Dma,
    pool: BufPool,
    flushed: Arc<AtomicBool>,
}

impl User {
    fn of(bench: &Bench) -> User {
        User {
            workq: bench.workq.clone(),
            dma: bench.dma.clone(),
            pool: bench.pool.clone(),
            flushed: Arc::default(),
        }
    }

    /// Returns a source and a destination.
    fn bufs(&self) -> (Buf, Buf) {
        let src = self.pool.try_alloc().unwrap();
        src.extend_from_slice(b"abc").unwrap();
        (src, self.pool.try_alloc().unwrap())
    }

    fn copy(&self) {
        let (src, dst) = self.bufs();
        assert_eq!(self.workq.block_on(self.dma.copy(&src, &dst)), Ok(3));
    }

    /// The application code that a completion runs.
    fn flush(&self) {
        self.copy();
        self.flushed.store(true, Ordering::SeqCst);
    }

    fn has_flushed(&self) -> bool {
        self.flushed.load(Ordering::SeqCst)
    }

    /// Copies until that code has run.
    fn copy_until_flushed(&self) {
        block_until("the code of the application's has run", || {
            self.copy();
            self.has_flushed()
        });
    }
}

/// A waker that uses the WorkQ when it is woken, or when it is dropped.
struct Uses {
    woken: Mutex<Option<User>>,
    dropped: Option<User>,
}

impl Uses {
    fn when_woken(user: &User) -> Waker {
        let woken = Mutex::new(Some(user.clone()));
        Waker::from(Arc::new(Uses {
            woken,
            dropped: None,
        }))
    }

    fn when_dropped(user: &User) -> Waker {
        let (woken, dropped) = (Mutex::default(), Some(user.clone()));
        Waker::from(Arc::new(Uses { woken, dropped }))
    }
}

impl Wake for Uses {
    fn wake(self: Arc<Self>) {
        // Takes the user once: using the WorkQ may wake this waker again.
        let user = self.woken.lock().unwrap().take();
        if let Some(user) = user {
            user.flush();
        }
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        if let Some(user) = &self.dropped {
            user.flush();
        }
    }
}

/// Memory whose owner uses the WorkQ when it is dropped.
struct Owner(Vec<u8>, User);

impl AsMut<[u8]> for Owner {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.flush();
    }
}

fn poll_with<F: Future<Output: std::fmt::Debug>>(future: Pin<&mut F>, waker: &Waker) {
    let polled = future.poll(&mut Context::from_waker(waker));
    assert!(polled.is_pending(), "{polled:?}");
}

fn deferred() -> [Config; 2] {
    modes().map(|mode| Config::new(true, mode))
}

/// Runs `story` in both modes, on separate threads that have entered a runtime.
fn in_both_modes(what: &'static str, story: fn(&Bench)) {
    for config in deferred() {
        on_a_thread(what, move || {
            let runtime = workers();
            let _entered = runtime.enter();
            story(&Bench::new(config));
        });
    }
}

#[test]
fn an_owner_that_gets_its_memory_back_from_a_job_may_use_the_workq() {
    in_both_modes("an owner's drop", |bench| {
        let user = User::of(bench);
        let owner = Owner(vec![1; 4096], user.clone());
        let builder = Mmap::builder().device(&bench.device);
        let mmap = builder.from_owner(owner).unwrap();
        let inventory = BufInventory::with_capacity(1);
        let (src, dst) = (inventory.buf_filled(&mmap, ..).unwrap(), bench.empty());
        let hold = bench.hold();
        drop(bench.dma.copy(&src, &dst).start().unwrap());
        drop((src, mmap));
        assert!(!user.has_flushed(), "the job has the memory");
        drop(hold);
        user.copy_until_flushed();
    });
}

#[test]
fn a_waker_of_a_dropped_op_may_use_the_workq_when_it_is_dropped() {
    // This needs event mode: an `Op` that polls by itself stores no waker.
    on_a_thread("a waker's drop", || {
        let runtime = workers();
        let _entered = runtime.enter();
        let bench = Bench::new(Config::new(true, Mode::EventDriven));
        let user = User::of(&bench);
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        let waker = Uses::when_dropped(&user);
        poll_with(copy.as_mut(), &waker);
        drop(copy);
        drop(waker);
        assert!(!user.has_flushed(), "the job has it still");
        drop(hold);
        user.copy_until_flushed();
    });
}

#[test]
fn a_waker_may_use_the_workq_whose_mode_is_set() {
    on_a_thread("a waker, woken by a change of the mode", || {
        let runtime = workers();
        let _entered = runtime.enter();
        let bench = Bench::new(Config::new(true, Mode::EventDriven));
        let user = User::of(&bench);
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        // The job is lost, so that only the change of the mode wakes its `Op`.
        bench.soft.faults().push(tokio_doca::soft::Fault::Lost);
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_with(copy.as_mut(), &Uses::when_woken(&user));
        bench.workq.set_mode(Mode::BusyPoll).unwrap();
        user.copy_until_flushed();
    });
}

#[test]
fn a_waker_may_use_the_workq_whose_job_brings_the_buf_home_that_it_waits_for() {
    in_both_modes("a waker of a pool", |bench| {
        let user = User::of(bench);
        let mmap = bench.mmap(4096);
        let pool = BufPool::builder(&mmap).element_size(4096).build().unwrap();
        let (src, dst) = (bench.filled(b"abc"), pool.try_alloc().unwrap());
        let hold = bench.hold();
        drop(bench.dma.copy(&src, &dst).start().unwrap());
        drop((src, dst));
        let mut next = Box::pin(pool.alloc());
        poll_with(next.as_mut(), &Uses::when_woken(&user));
        drop(hold);
        user.copy_until_flushed();
        assert!(poll(next.as_mut()).is_ready(), "the Buf is home");
    });
}

#[test]
fn a_waker_may_use_the_workq_that_hears_of_the_end_of_a_connection() {
    for mode in modes() {
        on_a_thread("a waker of a watch", move || {
            let runtime = workers();
            let _entered = runtime.enter();
            let setup = Setup::new(true, mode);
            let (one, other) = (Side::new(setup), Side::new(setup));
            connect(&one.rdma, &other.rdma);
            let user = beside(&one.rdma, &one.workq);
            let mut watch = one.rdma.watch();
            let mut changed = Box::pin(watch.changed());
            poll_with(changed.as_mut(), &Uses::when_woken(&user));
            other.rdma.reset().unwrap();
            user.copy_until_flushed();
        });
    }
}

/// Returns a context for copies on the WorkQ of an `Rdma`.
fn beside(rdma: &Rdma, workq: &WorkQ) -> User {
    let device = rdma.device();
    let mmap = Mmap::builder().device(device).alloc(1 << 14).unwrap();
    User {
        workq: workq.clone(),
        dma: Dma::builder(device).attach(workq).unwrap(),
        pool: BufPool::builder(&mmap).build().unwrap(),
        flushed: Arc::default(),
    }
}

/// The fault of a queue in one call.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    /// The queue returns a completion of a job that does not exist.
    Stale,
    /// `reap` panics, before it has returned any completion.
    Panics,
    /// `clear` panics.
    PanicsInClear,
    /// `arm` panics.
    PanicsInArm,
}

/// A software queue that commits one fault at its next opportunity, once a completion waits.
struct Sinner {
    inner: Arc<dyn Queue>,
    next: Arc<Mutex<Option<Wrong>>>,
}

impl Sinner {
    fn may_panic(&self, wrong: Wrong) {
        let panics = self.next.lock().unwrap().take_if(|next| *next == wrong);
        assert!(panics.is_none(), "a provider's panic");
    }
}

#[expect(unsafe_code, reason = "implements a queue")]
// SAFETY: the inner queue keeps the duties; every call is passed to it unchanged, except for the
// completion of a job that does not exist.
unsafe impl Submit for Sinner {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // SAFETY: the caller keeps the promises of `submit`.
        unsafe { self.inner.submit(jobs) }
    }
}

#[expect(unsafe_code, reason = "implements a queue")]
// SAFETY: as above for `Submit`.
unsafe impl Queue for Sinner {
    fn ready(&self) -> bool {
        self.inner.ready()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        if !self.inner.ready() {
            return 0;
        }
        let mut next = self.next.lock().unwrap();
        let wrong = match *next {
            Some(Wrong::PanicsInClear | Wrong::PanicsInArm) => None,
            _ => next.take(),
        };
        drop(next);
        match wrong {
            None | Some(Wrong::PanicsInClear | Wrong::PanicsInArm) => {
                // SAFETY: the caller keeps the promises of `reap`.
                unsafe { self.inner.reap(out) }
            }
            Some(Wrong::Stale) => {
                out[0] = Completion::new(Token::new(0, 0, u32::MAX), Ok(0));
                // SAFETY: the caller keeps the promises of `reap`.
                1 + unsafe { self.inner.reap(&mut out[1..]) }
            }
            Some(Wrong::Panics) => panic!("a provider's panic"),
        }
    }

    fn arm(&self) -> Armed {
        self.may_panic(Wrong::PanicsInArm);
        self.inner.arm()
    }

    fn clear(&self) {
        self.may_panic(Wrong::PanicsInClear);
        self.inner.clear();
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: the caller keeps the promises of `retire`.
        unsafe { self.inner.retire(keep, outstanding) };
    }
}

struct Sins(Device, Arc<Mutex<Option<Wrong>>>);

#[expect(unsafe_code, reason = "implements Adapter")]
// SAFETY: each queue wraps a new queue of the inner device.
unsafe impl Adapter for Sins {
    fn info(&self) -> &DevInfo {
        self.0.info()
    }

    fn registrar(&self) -> &dyn Registrar {
        self.0.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        let (inner, next) = (self.0.adapter().open_queue(config)?, Arc::clone(&self.1));
        Ok(Arc::new(Sinner { inner, next }))
    }
}

/// A `tracing` subscriber that panics at errors.
fn panics_at_errors(level: tracing::Level) {
    assert!(level != tracing::Level::ERROR, "a subscriber's panic");
}

type Next = Arc<Mutex<Option<Wrong>>>;

/// Returns a WorkQ on a faulty queue, and the fault that the queue commits next.
fn sinner() -> (User, Next) {
    let soft = Soft::builder().defer(true).build();
    sinner_on(&soft, WorkQ::builder().mode(Mode::BusyPoll))
}

fn sinner_on(soft: &Soft, workq: WorkQBuilder) -> (User, Next) {
    let next = Next::default();
    let inner = soft.open("pf0").unwrap();
    let device = Device::from_adapter(Arc::new(Sins(inner, Arc::clone(&next))));
    let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
    let workq = workq.build().unwrap();
    let user = User {
        dma: Dma::builder(&device).attach(&workq).unwrap(),
        pool: BufPool::builder(&mmap).build().unwrap(),
        workq,
        flushed: Arc::default(),
    };
    (user, next)
}

#[test]
fn a_subscriber_that_panics_stops_no_op() {
    on_a_thread("a copy after a subscriber's panic", || {
        let (user, next) = sinner();
        tracing::subscriber::with_default(OnEvent::new(panics_at_errors), || {
            for _ in 0..3 {
                *next.lock().unwrap() = Some(Wrong::Stale);
                user.copy();
                assert!(next.lock().unwrap().is_none(), "the subscriber was told");
            }
        });
        user.copy();
    });
}

#[test]
fn a_provider_that_panics_in_a_look_does_not_keep_the_right_to_look() {
    on_a_thread("a copy after a provider's panic", || {
        let (user, next) = sinner();
        *next.lock().unwrap() = Some(Wrong::Panics);
        let looks = std::panic::AssertUnwindSafe(|| user.copy());
        assert!(std::panic::catch_unwind(looks).is_err());
        user.copy();
    });
}

fn is_readable(workq: &WorkQ, timeout: PollTimeout) -> bool {
    let handle = workq.event_handle().unwrap();
    nix::poll::poll(&mut [PollFd::new(handle, PollFlags::POLLIN)], timeout).unwrap() > 0
}

#[test]
fn a_provider_that_panics_in_the_turn_that_was_rung_for_keeps_nobody_asleep() {
    on_a_thread("a copy behind one that is not polled", || {
        let soft = Soft::builder().defer(true).build();
        let (user, next) = sinner_on(&soft, WorkQ::builder().depth(1));
        // The test's own loop waits for events.
        let workq = &user.workq;
        assert!(!is_readable(workq, PollTimeout::ZERO));
        let pairs: [_; 3] = std::array::from_fn(|_| user.bufs());
        let hold = soft.faults().hold();
        drop(user.dma.copy(&pairs[0].0, &pairs[0].1).start().unwrap());
        // This copy is never polled again. The reaper of the event notifies the copy behind it.
        let mut left = Box::pin(user.dma.copy(&pairs[1].0, &pairs[1].1));
        let tempts = Call::waker(move || *next.lock().unwrap() = Some(Wrong::PanicsInClear));
        poll_with(left.as_mut(), &tempts);
        let woken = Count::new();
        let mut behind = Box::pin(user.dma.copy(&pairs[2].0, &pairs[2].1));
        poll_with(behind.as_mut(), &woken.waker());
        drop(hold);
        loop {
            is_readable(workq, PollTimeout::NONE);
            let clears = std::panic::AssertUnwindSafe(|| workq.clear());
            if std::panic::catch_unwind(clears).is_err() {
                break;
            }
        }
        assert_eq!(woken.wakes(), 0, "that turn has told nobody");
        while woken.wakes() == 0 {
            assert!(is_readable(workq, PollTimeout::ZERO), "nobody is to hear");
            workq.clear();
        }
        workq.block_on(behind).unwrap();
    });
}

#[test]
fn a_provider_that_panics_when_it_is_to_ring_keeps_nobody_asleep() {
    on_a_thread("a copy after one whose poll has panicked", || {
        let soft = Soft::builder().defer(true).build();
        let (user, next) = sinner_on(&soft, WorkQ::builder());
        // The test's own loop waits for events.
        let workq = &user.workq;
        assert!(!is_readable(workq, PollTimeout::ZERO));
        let pairs: [_; 2] = std::array::from_fn(|_| user.bufs());
        let hold = soft.faults().hold();
        let mut first = Box::pin(user.dma.copy(&pairs[0].0, &pairs[0].1));
        *next.lock().unwrap() = Some(Wrong::PanicsInArm);
        let polls = std::panic::AssertUnwindSafe(|| poll_with(first.as_mut(), Waker::noop()));
        assert!(std::panic::catch_unwind(polls).is_err());
        let woken = Count::new();
        let mut second = Box::pin(user.dma.copy(&pairs[1].0, &pairs[1].1));
        poll_with(second.as_mut(), &woken.waker());
        drop(hold);
        while woken.wakes() == 0 {
            assert!(
                is_readable(workq, PollTimeout::try_from(LIMIT).unwrap()),
                "nobody is to hear"
            );
            workq.clear();
        }
        workq.block_on(second).unwrap();
    });
}
