//! Jobs of the caller's own loop: select, poll and epoll in a plain thread, without any runtime.
//! Each job is reported once, with the `user_data` that it was posted with; an arm fires once; a
//! cleared handle is quiet.

#![expect(unsafe_code, reason = "implements Queue, to come in between")]

use std::collections::BTreeSet;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use support::*;
use tokio_doca::device::contract::{
    Adapter, Armed, Completion, Job, KeepAlive, Queue, QueueConfig, Registrar, Submit, Submitted,
    Token,
};
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{
    Buf, BufPool, Device, Dma, ErrorKind, Mmap, Mode, WorkQ, device::DevInfo, error::JobError,
};

/// How the loop waits.
#[derive(Clone, Copy, Debug)]
enum Way {
    Poll,
    Select,
    Level,
    Edge,
}

const WAYS: [Way; 4] = [Way::Poll, Way::Select, Way::Level, Way::Edge];

struct Waiter<'a> {
    way: Way,
    fd: BorrowedFd<'a>,
    epoll: Epoll,
}

impl<'a> Waiter<'a> {
    fn new(way: Way, workq: &'a WorkQ) -> Waiter<'a> {
        let fd = workq.event_handle().unwrap();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let edge = match way {
            Way::Edge => EpollFlags::EPOLLET,
            _ => EpollFlags::empty(),
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN | edge, 0);
        epoll.add(fd, event).unwrap();
        Waiter { way, fd, epoll }
    }

    /// Returns true if the handle is readable within `ms` milliseconds.
    fn wait(&self, ms: u16) -> bool {
        match self.way {
            Way::Poll => {
                let mut fds = [PollFd::new(self.fd, PollFlags::POLLIN)];
                nix::poll::poll(&mut fds, PollTimeout::from(ms)).unwrap() == 1
            }
            Way::Select => select(self.fd, ms),
            Way::Level | Way::Edge => {
                let mut events = [EpollEvent::empty(); 4];
                self.epoll
                    .wait(&mut events, EpollTimeout::from(ms))
                    .unwrap()
                    == 1
            }
        }
    }

    /// Asserts that the handle fires in time.
    #[track_caller]
    fn fires(&self) {
        assert!(self.wait(60_000), "{:?}: it never fired", self.way);
    }

    /// Asserts that the handle does not fire for a while.
    #[track_caller]
    fn is_quiet(&self) {
        assert!(!self.wait(20), "{:?}: it is not quiet", self.way);
    }
}

fn select(fd: BorrowedFd<'_>, ms: u16) -> bool {
    let mut set = nix::sys::select::FdSet::new();
    set.insert(fd);
    let mut time = nix::sys::time::TimeVal::new(ms as i64 / 1000, ms as i64 % 1000 * 1000);
    let bound = fd.as_raw_fd() + 1;
    let ready = nix::sys::select::select(bound, &mut set, None, None, &mut time);
    ready.unwrap() == 1
}

/// Returns benches in each mode whose jobs go through the engine, so that none finishes during its
/// submission.
fn benches() -> impl Iterator<Item = Bench> {
    let spin = Duration::from_micros(30);
    let modes = [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }];
    modes
        .into_iter()
        .map(|mode| Bench::new(Config::new(true, mode)))
}

type Told = Vec<(u64, Result<usize, JobError>)>;

fn progress(workq: &WorkQ) -> Told {
    let mut told = Vec::new();
    let handed = workq.progress(|user_data, result| {
        let bytes = result.map(|output| output.bytes().expect("it moves bytes"));
        told.push((user_data, bytes));
    });
    assert_eq!(handed, told.len());
    told
}

/// Arms, waits, clears and calls `progress` until `jobs` jobs were reported.
fn turn(waiter: &Waiter<'_>, workq: &WorkQ, jobs: usize) -> Told {
    let mut told = Vec::new();
    while told.len() < jobs {
        workq.arm();
        waiter.fires();
        workq.clear();
        told.extend(progress(workq));
    }
    told
}

fn poll_with<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&count.waker()))
}

fn pair(bench: &Bench, text: &[u8]) -> (Buf, Buf) {
    (bench.filled(text), bench.empty())
}

#[test]
fn an_arm_before_or_after_the_submission_fires_in_any_kind_of_loop_and_mode() {
    for bench in benches() {
        let workq = &bench.workq;
        for way in WAYS {
            let waiter = Waiter::new(way, workq);
            for (word, early) in [(u64::MAX, true), (0, false)] {
                let (src, dst) = pair(&bench, b"abc");
                if early {
                    workq.arm();
                    waiter.is_quiet();
                }
                bench.dma.copy(&src, &dst).post(word).unwrap();
                if !early {
                    workq.arm();
                }
                waiter.fires();
                workq.clear();
                assert_eq!(progress(workq), [(word, Ok(3))]);
                assert_eq!(bytes(&dst), b"abc");
                assert_eq!(progress(workq), []);
                waiter.is_quiet();
            }
        }
        assert_eq!(workq.in_flight(), 0);
    }
}

#[test]
fn an_arm_with_a_completion_waiting_fires_at_once() {
    for (way, bench) in WAYS
        .into_iter()
        .flat_map(|way| benches().map(move |bench| (way, bench)))
    {
        let workq = &bench.workq;
        let waiter = Waiter::new(way, workq);
        let (src, dst) = pair(&bench, b"abc");
        bench.dma.copy(&src, &dst).post(1).unwrap();
        block_until("the device is done", || bench.device.jobs() == Some(1));
        // Nothing was armed, so nothing has signaled.
        waiter.is_quiet();
        workq.arm();
        waiter.fires();
        workq.clear();
        waiter.is_quiet();
        // The result was not fetched yet, so the next arm fires too, although the device has
        // nothing more to report.
        workq.arm();
        waiter.fires();
        workq.clear();
        assert_eq!(progress(workq), [(1, Ok(3))]);
        workq.arm();
        waiter.is_quiet();
    }
}

#[test]
fn an_arm_fires_for_what_an_op_collected() {
    for way in WAYS {
        let bench = Bench::new(Config::new(true, Mode::BusyPoll));
        let workq = &bench.workq;
        let waiter = Waiter::new(way, workq);
        let hold = bench.hold();
        let (src, dst) = pair(&bench, b"mine");
        bench.dma.copy(&src, &dst).post(5).unwrap();
        drop(hold);
        // `block_on` busy-polls, and reaps both jobs.
        workq.block_on(bench.works());
        assert_eq!(bytes(&dst), b"mine", "collected");
        waiter.is_quiet();
        workq.arm();
        waiter.fires();
        workq.clear();
        waiter.is_quiet();
        assert_eq!(progress(workq), [(5, Ok(4))]);

        // The loop arms before an `Op` reaps the job, and is notified as well.
        let hold = bench.hold();
        bench.dma.copy(&src, &dst).post(6).unwrap();
        workq.arm();
        drop(hold);
        workq.block_on(bench.works());
        waiter.fires();
        workq.clear();
        assert_eq!(progress(workq), [(6, Ok(4))]);
    }
}

/// A software queue that runs the caller's loop at the worst moment: after a completion was taken
/// from the device, and before it is delivered.
struct Interrupted {
    inner: Arc<dyn Queue>,
    interrupt: Arc<Interrupt>,
}

#[derive(Default)]
struct Interrupt {
    workq: OnceLock<WorkQ>,
    done: AtomicBool,
    /// Called while a job is tried inline, before the provider panics.
    beside: Mutex<Option<Beside>>,
}

type Beside = Box<dyn FnOnce() + Send>;

// SAFETY: the inner queue keeps the duties; every call is passed to it unchanged.
unsafe impl Submit for Interrupted {
    unsafe fn try_inline(&self, _: Job<'_>) -> Option<Result<u64, JobError>> {
        let beside = self.interrupt.beside.lock().unwrap().take()?;
        beside();
        panic!("a provider's panic");
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // SAFETY: the caller keeps the promises of `submit`.
        unsafe { self.inner.submit(jobs) }
    }
}

// SAFETY: as above for `Submit`.
unsafe impl Queue for Interrupted {
    fn ready(&self) -> bool {
        self.inner.ready()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        // SAFETY: the caller keeps the promises of `reap`.
        let reaped = unsafe { self.inner.reap(out) };
        if reaped > 0 && !self.interrupt.done.swap(true, Ordering::Relaxed) {
            let workq = self.interrupt.workq.get().unwrap();
            workq.arm();
            assert_eq!(progress(workq), []);
        }
        reaped
    }

    fn arm(&self) -> Armed {
        self.inner.arm()
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: the caller keeps the promises of `retire`.
        unsafe { self.inner.retire(keep, outstanding) };
    }
}

struct Interrupting(Device, Arc<Interrupt>);

// SAFETY: the inner device keeps the adapter duties; each queue wraps a new queue of it.
unsafe impl Adapter for Interrupting {
    fn info(&self) -> &DevInfo {
        self.0.info()
    }

    fn registrar(&self) -> &dyn Registrar {
        self.0.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> tokio_doca::Result<Arc<dyn Queue>> {
        let (inner, interrupt) = (self.0.adapter().open_queue(config)?, Arc::clone(&self.1));
        Ok(Arc::new(Interrupted { inner, interrupt }))
    }
}

#[test]
fn an_arm_while_somebody_else_is_collecting_is_heard() {
    for way in WAYS {
        let inner = Soft::builder().defer(true).build().open("pf0").unwrap();
        let interrupt = Arc::new(Interrupt::default());
        let adapter = Interrupting(inner, Arc::clone(&interrupt));
        let device = Device::from_adapter(Arc::new(adapter));
        let mmap = Mmap::builder().device(&device).alloc(1 << 14).unwrap();
        let pool = BufPool::builder(&mmap).build().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        assert!(interrupt.workq.set(workq.clone()).is_ok());
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        let waiter = Waiter::new(way, &workq);
        let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        src.extend_from_slice(b"abc").unwrap();
        dma.copy(&src, &dst).post(1).unwrap();
        // Polls outside of the loop, and reaps, as the poll of an `Op` would.
        workq.block_on(async {
            while !interrupt.done.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
        });
        waiter.fires();
        workq.clear();
        assert_eq!(progress(&workq), [(1, Ok(3))]);
        // Leaked, because it refers to itself through its device.
        std::mem::forget(interrupt);
    }
}

#[tokio::test]
async fn a_shutdown_is_told_when_the_provider_panics_while_a_job_is_posted() {
    let interrupt = Arc::new(Interrupt::default());
    let inner = Soft::builder().build().open("pf0").unwrap();
    let adapter = Interrupting(inner, Arc::clone(&interrupt));
    let device = Device::from_adapter(Arc::new(adapter));
    let mmap = Mmap::builder().device(&device).alloc(1 << 14).unwrap();
    let pool = BufPool::builder(&mmap).build().unwrap();
    let workq = WorkQ::builder().build().unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
    src.extend_from_slice(b"abc").unwrap();
    let shutdown = Arc::new(Mutex::new(Box::pin(workq.shutdown())));
    let told = Count::new();
    let poll = {
        let (shutdown, waker) = (Arc::clone(&shutdown), told.waker());
        move || {
            let mut cx = Context::from_waker(&waker);
            shutdown.lock().unwrap().as_mut().poll(&mut cx)
        }
    };
    let beside = poll.clone();
    // The shutdown is pending, because the job has a slot.
    let beside = Box::new(move || assert!(beside().is_pending())) as Beside;
    *interrupt.beside.lock().unwrap() = Some(beside);
    let posts = AssertUnwindSafe(|| dma.copy(&src, &dst).post(1).is_ok());
    assert!(catch_unwind(posts).is_err());
    assert_eq!(told.wakes(), 1);
    assert!(matches!(poll(), Poll::Ready(Ok(()))));
}

#[test]
fn clear_quiets_a_level_triggered_loop_and_without_it_the_loop_stays_awake() {
    for way in [Way::Poll, Way::Select, Way::Level] {
        let bench = Bench::new(Config::new(true, Mode::EventDriven));
        let workq = &bench.workq;
        let waiter = Waiter::new(way, workq);
        let (src, dst) = pair(&bench, b"abc");
        bench.dma.copy(&src, &dst).post(1).unwrap();
        workq.arm();
        waiter.fires();
        assert_eq!(progress(workq).len(), 1);
        waiter.fires();
        workq.clear();
        waiter.is_quiet();
        // Without an event to acknowledge, `clear` does nothing.
        workq.clear();
        waiter.is_quiet();
    }
}

#[test]
fn an_edge_triggered_loop_that_never_clears_hears_of_every_job() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let workq = &bench.workq;
    let waiter = Waiter::new(Way::Edge, workq);
    for word in 0..200 {
        let (src, dst) = pair(&bench, b"abc");
        workq.arm();
        bench.dma.copy(&src, &dst).post(word).unwrap();
        waiter.fires();
        let mut told = progress(workq);
        while told.is_empty() {
            // The device has counted the job, and delivers its completion a few moments later.
            told = progress(workq);
        }
        assert_eq!(told, [(word, Ok(3))]);
    }
}

#[test]
fn an_arm_survives_a_progress_that_finds_nothing() {
    for way in WAYS {
        let bench = Bench::new(Config::new(true, Mode::EventDriven));
        let workq = &bench.workq;
        let waiter = Waiter::new(way, workq);
        let hold = bench.hold();
        let (src, dst) = pair(&bench, b"abc");
        bench.dma.copy(&src, &dst).post(1).unwrap();
        workq.arm();
        assert_eq!(progress(workq), []);
        waiter.is_quiet();
        drop(hold);
        waiter.fires();
        workq.clear();
        assert_eq!(progress(workq), [(1, Ok(3))]);
    }
}

#[test]
fn each_job_is_told_once_with_its_word_whoever_collects() {
    for bench in benches() {
        const JOBS: u64 = 2_000;
        let (workq, stop) = (&bench.workq, AtomicBool::new(false));
        let told = thread::scope(|scope| {
            // Others reap meanwhile: an `Op` that polls, and loops that only call `progress`.
            let others: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut told = Told::new();
                        while !stop.load(Ordering::Relaxed) {
                            told.extend(progress(workq));
                            thread::yield_now();
                        }
                        told
                    })
                })
                .collect();
            let op = scope.spawn(|| {
                let (src, dst) = pair(&bench, b"op");
                while !stop.load(Ordering::Relaxed) {
                    dst.reset_data_len().unwrap();
                    assert_eq!(workq.block_on(bench.dma.copy(&src, &dst)), Ok(2));
                }
            });
            let waiter = Waiter::new(Way::Level, workq);
            let pairs: Vec<_> = (0..8).map(|_| pair(&bench, b"x")).collect();
            let mut told = Told::new();
            for word in 0..JOBS {
                let (src, dst) = &pairs[word as usize % pairs.len()];
                let end = Instant::now() + LIMIT;
                loop {
                    assert!(Instant::now() < end, "job {word} finds no room");
                    match bench.dma.copy(src, dst).post(word << 32 | 7) {
                        Ok(()) => break,
                        // The previous job still uses this pair, or the queue is full.
                        Err(error) => assert!(
                            matches!(error.kind(), ErrorKind::InUse | ErrorKind::Again),
                            "{error}"
                        ),
                    }
                    workq.arm();
                    waiter.wait(1);
                    workq.clear();
                    told.extend(progress(workq));
                }
                if dst.tailroom() == 0 {
                    let _ = dst.reset_data_len();
                }
            }
            block_until("all are over", || {
                told.extend(progress(workq));
                workq.stats().in_flight <= 1
            });
            stop.store(true, Ordering::Relaxed);
            op.join().unwrap();
            for other in others {
                told.extend(other.join().unwrap());
            }
            told.extend(progress(workq));
            told
        });
        let words: BTreeSet<u64> = told.iter().map(|told| told.0).collect();
        assert!(told.iter().all(|told| told.1 == Ok(1)));
        assert_eq!(told.len() as u64, JOBS, "each once");
        assert_eq!(words, (0..JOBS).map(|word| word << 32 | 7).collect());
        assert_eq!(workq.in_flight(), 0);
    }
}

#[test]
fn what_is_finished_inline_is_told_by_progress_as_well() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let workq = &bench.workq;
    let waiter = Waiter::new(Way::Edge, workq);
    let (src, dst) = pair(&bench, b"abc");
    workq.arm();
    bench.dma.copy(&src, &dst).post(3).unwrap();
    waiter.fires();
    assert_eq!(bytes(&dst), b"abc");
    assert_eq!((workq.in_flight(), workq.stats().unfetched), (1, 1));
    assert_eq!(progress(workq), [(3, Ok(3))]);
    assert_eq!(workq.in_flight(), 0);
}

#[test]
fn a_full_queue_is_again_and_the_order_of_ends_is_kept() {
    for defer in [false, true] {
        let bench = Bench::new(Config::new(defer, Mode::EventDriven).depth(4));
        let workq = &bench.workq;
        let pairs: Vec<_> = (0..5).map(|_| pair(&bench, b"abc")).collect();
        for (word, (src, dst)) in (0..4).zip(&pairs) {
            bench.dma.copy(src, dst).post(word).unwrap();
        }
        let (src, dst) = &pairs[4];
        let text = refused(bench.dma.copy(src, dst).post(4), ErrorKind::Again);
        mentions(&text, &[4]);
        assert!(dst.data_mut().is_ok(), "its Leases went back");
        let waiter = Waiter::new(Way::Poll, workq);
        let told = turn(&waiter, workq, 4);
        assert_eq!(told, [0, 1, 2, 3].map(|word| (word, Ok(3))));
        bench.dma.copy(src, dst).post(4).unwrap();
        assert_eq!(turn(&waiter, workq, 1), [(4, Ok(3))]);
    }
}

#[test]
fn a_device_that_is_full_is_again_and_takes_the_job_later() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let (src, dst) = pair(&bench, b"abc");
    bench.soft.faults().push(Fault::QueueFull);
    refused(bench.dma.copy(&src, &dst).post(1), ErrorKind::Again);
    assert_eq!(
        (bench.workq.in_flight(), progress(&bench.workq)),
        (0, vec![])
    );
    bench.dma.copy(&src, &dst).post(2).unwrap();
    let waiter = Waiter::new(Way::Poll, &bench.workq);
    assert_eq!(turn(&waiter, &bench.workq, 1), [(2, Ok(3))]);
    run(bench.works());
}

#[test]
fn a_job_that_fails_is_told_and_leaves_the_rooms_as_they_were() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let (src, dst) = pair(&bench, b"abc");
    bench
        .soft
        .faults()
        .push(Fault::Error(ErrorKind::IoFailed, 9));
    bench.dma.copy(&src, &dst).post(1).unwrap();
    let waiter = Waiter::new(Way::Poll, &bench.workq);
    let told = turn(&waiter, &bench.workq, 1);
    assert_eq!(told, [(1, Err(JobError::device(ErrorKind::IoFailed, 9)))]);
    assert_eq!(dst.data_len(), 0);
    assert_eq!(bench.workq.stats().failed, 1);
}

#[test]
fn its_memory_is_leased_until_the_completion_was_collected() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let hold = bench.hold();
    let (src, dst) = pair(&bench, b"abc");
    bench.dma.copy(&src, &dst).post(1).unwrap();
    refused(dst.data(), ErrorKind::InUse);
    refused(src.data_mut(), ErrorKind::InUse);
    assert_eq!(progress(&bench.workq), []);
    drop(hold);
    let waiter = Waiter::new(Way::Poll, &bench.workq);
    assert_eq!(turn(&waiter, &bench.workq, 1), [(1, Ok(3))]);
    assert_eq!(&dst.data().unwrap()[..], b"abc");
}

#[test]
fn ops_in_a_loop_without_a_runtime_are_woken_by_clear() {
    for way in [Way::Level, Way::Edge] {
        let bench = Bench::new(Config::new(true, Mode::EventDriven));
        let workq = &bench.workq;
        let waiter = Waiter::new(way, workq);
        let (src, dst) = pair(&bench, b"op");
        let (src2, dst2) = pair(&bench, b"second");
        let (mine, theirs) = pair(&bench, b"mine");
        let hold = bench.hold();
        let (first, second) = (Count::new(), Count::new());
        let mut op = Box::pin(bench.dma.copy(&src, &dst));
        let mut op2 = Box::pin(bench.dma.copy(&src2, &dst2));
        assert!(poll_with(op.as_mut(), &first).is_pending());
        assert!(poll_with(op2.as_mut(), &second).is_pending());
        bench.dma.copy(&mine, &theirs).post(4).unwrap();
        drop(hold);
        let mut told = Told::new();
        let end = Instant::now() + LIMIT;
        // The `Op`s have armed for their own jobs; the loop arms until its posted job is reported.
        while first.wakes() == 0 || second.wakes() == 0 || told.is_empty() {
            assert!(Instant::now() < end);
            if told.is_empty() {
                workq.arm();
            }
            waiter.fires();
            workq.clear();
            told.extend(progress(workq));
        }
        assert_eq!(told, [(4, Ok(4))]);
        assert_eq!(poll_with(op.as_mut(), &first), Poll::Ready(Ok(2)));
        assert_eq!(poll_with(op2.as_mut(), &second), Poll::Ready(Ok(6)));
    }
}

#[test]
fn a_cleared_event_is_not_lost_for_ops_on_a_runtime() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let (workq, stop) = (bench.workq.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    // Clears every event as soon as possible.
    let clearing = thread::spawn(move || {
        workq.event_handle().unwrap();
        while !stopped.load(Ordering::Relaxed) {
            workq.clear();
        }
    });
    run(async {
        for _ in 0..300 {
            in_time("a copy", bench.works()).await;
        }
    });
    stop.store(true, Ordering::Relaxed);
    clearing.join().unwrap();
}

#[test]
fn the_handle_stays_the_same_when_devices_come() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let workq = WorkQ::builder().depth(8).build().unwrap();
    let before = workq.event_handle().unwrap().as_fd().as_raw_fd();
    let waiter = Waiter::new(Way::Level, &workq);
    let dma = bench.dma.attach(&workq).unwrap();
    let other = Soft::builder().defer(true).build().open("pf0").unwrap();
    let _other = tokio_doca::Dma::builder(&other).attach(&workq).unwrap();
    assert_eq!(workq.event_handle().unwrap().as_raw_fd(), before);
    let (src, dst) = pair(&bench, b"abc");
    dma.copy(&src, &dst).post(1).unwrap();
    assert_eq!(turn(&waiter, &workq, 1), [(1, Ok(3))]);
}

#[test]
fn a_callback_may_submit_and_a_panic_in_it_loses_nothing_else() {
    let bench = Bench::new(Config::new(false, Mode::BusyPoll).depth(2));
    let (src, dst) = pair(&bench, b"abc");
    bench.dma.copy(&src, &dst).post(1).unwrap();
    let seen = AtomicUsize::new(0);
    // The jobs run inline and complete at once; one `progress` is bounded all the same.
    let handed = bench.workq.progress(|word, _| {
        seen.fetch_add(1, Ordering::Relaxed);
        bench.dma.copy(&src, &dst).post(word + 1).unwrap();
    });
    assert_eq!((handed, seen.load(Ordering::Relaxed)), (2, 2));
    let (src, dst) = pair(&bench, b"abc");
    bench.dma.copy(&src, &dst).post(9).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bench.workq.progress(|_, _| panic!("in the callback"));
    }));
    assert!(panicked.is_err());
    assert_eq!(progress(&bench.workq), [(9, Ok(3))]);
    assert_eq!(bench.workq.in_flight(), 0);
}

#[test]
fn shutdown_waits_for_such_jobs_and_their_ends_are_still_told() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let hold = bench.hold();
    let (src, dst) = pair(&bench, b"abc");
    bench.dma.copy(&src, &dst).post(8).unwrap();
    let mut shutdown = Box::pin(bench.workq.shutdown());
    runtime().block_on(async { poll_pending(shutdown.as_mut()) });
    let (src2, dst2) = pair(&bench, b"late");
    refused(bench.dma.copy(&src2, &dst2).post(9), ErrorKind::Shutdown);
    drop(hold);
    bench.workq.block_on(shutdown).unwrap();
    assert_eq!(bytes(&dst), b"abc");
    assert_eq!(progress(&bench.workq), [(8, Ok(3))]);
    assert_eq!(progress(&bench.workq), []);
}

#[test]
fn the_last_drop_forgets_what_was_not_told_and_gives_the_memory_back() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let Bench {
        soft,
        pool,
        workq,
        dma,
        ..
    } = bench;
    let filled = |text: &[u8]| {
        let buf = pool.try_alloc().unwrap();
        buf.extend_from_slice(text).unwrap();
        buf
    };
    let [(a, b), (c, d)] = [b"one", b"two"].map(|text| (filled(text), pool.try_alloc().unwrap()));
    // One job has completed and was reaped, but its result is not fetched; another job is in
    // flight.
    dma.copy(&a, &b).post(1).unwrap();
    workq.arm();
    block_until("it is collected", || {
        workq.clear();
        workq.stats().unfetched == 1
    });
    let hold = soft.faults().hold();
    dma.copy(&c, &d).post(2).unwrap();
    drop((workq, dma, a, b, c));
    refused(d.data(), ErrorKind::InUse);
    drop(hold);
    block_until("the device is done with it", || d.data().is_ok());
    drop(d);
    let all = pool.elements();
    block_until("the pool is full again", || free_bufs(&pool) == all);
}
