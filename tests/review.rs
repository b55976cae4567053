//! Stories that no single part tells: each was found by reading, and failed once.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio_doca::device::{Caps, PciAddr, PciFunction, Provider};
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{
    Buf, BufPool, DevInfo, Device, Dma, ErrorKind, JobError, Mmap, Mode, Reason, WorkQ,
};

struct Bench {
    soft: Soft,
    device: Device,
    pool: BufPool,
}

fn bench(soft: Soft) -> Bench {
    let device = soft.open("pf0").unwrap();
    let mmap = Mmap::builder().device(&device).alloc(1 << 18).unwrap();
    let pool = BufPool::builder(&mmap).build().unwrap();
    Bench { soft, device, pool }
}

impl Bench {
    fn dma(&self, depth: u32, mode: Mode) -> Dma {
        let workq = WorkQ::builder().depth(depth).mode(mode).build().unwrap();
        Dma::builder(&self.device).attach(&workq).unwrap()
    }

    fn pair(&self) -> (Buf, Buf) {
        let (src, dst) = (
            self.pool.try_alloc().unwrap(),
            self.pool.try_alloc().unwrap(),
        );
        src.extend_from_slice(b"abc").unwrap();
        (src, dst)
    }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The mark that somebody waits is cleared by whoever finds the line empty, while somebody comes.
#[test]
fn a_pools_waiter_that_comes_while_the_mark_is_cleared_is_woken() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let pool = BufPool::builder(&mmap).range(0..8192).build().unwrap();
        let (first, second) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        // Leaves the mark behind, and nobody in line.
        assert!(Box::pin(pool.alloc()).as_mut().now_or_never().is_none());
        let ready = AtomicU32::new(0);
        let meet = || {
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                meet();
                drop(first);
            });
            meet();
            let taken = loop {
                if let Ok(buf) = pool.try_alloc() {
                    break buf;
                }
                std::thread::yield_now();
            };
            let flag = Arc::new(Flag::default());
            let waker = Waker::from(Arc::clone(&flag));
            let mut alloc = Box::pin(pool.alloc());
            let mut cx = Context::from_waker(&waker);
            assert!(alloc.poll_unpin(&mut cx).is_pending());
            drop(second);
            let deadline = deadline();
            while !flag.0.load(Ordering::SeqCst) {
                assert!(
                    Instant::now() < deadline,
                    "an element is free, and the waiter sleeps"
                );
                std::thread::yield_now();
            }
            drop(taken);
        });
    }
}

/// Bufs that outlive their pool come home from two threads at once: the last one ends it, and nobody reads it then (ASan
/// sees it).
#[test]
fn a_closed_pool_is_ended_by_the_last_of_two() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
    for _ in 0..500 {
        let pool = BufPool::builder(&mmap).range(0..8192).build().unwrap();
        let (first, second) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        drop(pool);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(first));
            scope.spawn(|| drop(second));
        });
        assert!(
            BufPool::builder(&mmap).build().is_ok(),
            "the claim is gone with it"
        );
    }
}

#[tokio::test]
async fn a_device_that_is_full_while_the_workq_is_not_burns_no_cpu() {
    let bench = bench(Soft::builder().defer(true).build());
    let dma = bench.dma(4, Mode::EventDriven);
    let hold = bench.soft.faults().hold();
    let (src, dst) = bench.pair();
    let running = tokio::spawn(dma.copy_owned(src, dst));
    tokio::task::yield_now().await;
    // The device has no room for the others, as often as they ask: each asks once, and waits for a completion.
    for _ in 0..1000 {
        bench.soft.faults().push(Fault::QueueFull);
    }
    let others: Vec<_> = (0..3)
        .map(|_| {
            let (src, dst) = bench.pair();
            tokio::spawn(dma.copy_owned(src, dst))
        })
        .collect();
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert!(!running.is_finished() && others.iter().all(|other| !other.is_finished()));
    let left = bench.soft.faults().left();
    assert!(
        left > 900,
        "{} refusals for 3 copies that wait",
        1000 - left
    );
    bench.soft.faults().clear();
    drop(hold);
    assert_eq!(running.await.unwrap(), Ok(3));
    for other in others {
        assert_eq!(other.await.unwrap(), Ok(3));
    }
}

#[tokio::test]
async fn a_delay_beyond_the_clock_delays_that_job_alone() {
    let bench = bench(Soft::builder().build());
    let dma = bench.dma(4, Mode::EventDriven);
    bench.soft.faults().push(Fault::Delay(Duration::MAX));
    let (src, dst) = bench.pair();
    let mut never = Box::pin(dma.copy(&src, &dst));
    assert!(never.as_mut().now_or_never().is_none());
    let (src, dst) = bench.pair();
    assert_eq!(dma.copy(&src, &dst).await, Ok(3));
}

#[tokio::test]
async fn a_script_is_taken_in_the_order_of_submission() {
    let bench = bench(Soft::builder().build());
    let dma = bench.dma(4, Mode::EventDriven);
    let error = Fault::Error(ErrorKind::IoFailed, 7);
    for fault in [error, Fault::QueueFull, Fault::Pass, error] {
        bench.soft.faults().push(fault);
    }
    let pairs = [bench.pair(), bench.pair(), bench.pair()];
    let results =
        futures::future::join_all(pairs.iter().map(|(src, dst)| dma.copy(src, dst))).await;
    let failed = Err(JobError::device(ErrorKind::IoFailed, 7));
    assert_eq!(results, [failed, Ok(3), failed]);
}

#[test]
fn a_forged_description_opens_nothing() {
    let soft = Soft::builder().build();
    let caps = Caps::for_dma(u64::MAX, 1, u32::MAX);
    let forged = DevInfo::new("soft", "pf0", PciAddr::new(1, 2, 3), PciFunction::Pf, caps);
    let error = Provider::open(&soft, &forged).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(soft.open("pf0").is_ok());
}

/// A job in flight that is polled outside of every runtime goes on, and says so.
#[test]
fn a_job_that_nobody_can_wait_for_says_that_it_goes_on() {
    let bench = bench(Soft::builder().defer(true).build());
    let dma = bench.dma(4, Mode::EventDriven);
    let hold = bench.soft.faults().hold();
    let (src, dst) = bench.pair();
    let mut copy = Box::pin(dma.copy(&src, &dst));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async { assert!(copy.as_mut().now_or_never().is_none()) });
    let error = copy.as_mut().now_or_never().unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::BadState, Reason::Unheard)
    );
    assert!(dst.data().is_err(), "still leased");
    drop(copy);
    drop(hold);
    runtime.block_on(async { dma.workq().shutdown().await.unwrap() });
    assert_eq!(&dst.data().unwrap()[..], b"abc");
}

/// A forgotten future leaves its Slot taken; `block_on` sleeps all the same while it waits for something else.
#[test]
fn block_on_sleeps_beside_a_result_that_nobody_fetches() {
    let bench = bench(Soft::builder().defer(true).build());
    let dma = bench.dma(4, Mode::BusyPoll);
    let workq = dma.workq();
    let (src, dst) = bench.pair();
    let copy = Box::leak(Box::new(dma.copy_owned(src, dst.clone())));
    // Pinned for ever: it is leaked.
    let mut copy = std::pin::Pin::static_mut(copy);
    let mut hold = Some(bench.soft.faults().hold());
    let deadline = deadline();
    workq.block_on(async {
        assert!(futures::poll!(copy.as_mut()).is_pending());
        drop(hold.take());
        while dst.data().is_err() || dst.data_len() == 0 {
            assert!(Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(workq.in_flight(), 1, "its result waits");
    let (tell, told) = futures::channel::oneshot::channel();
    let before = cpu_time();
    let teller = std::thread::spawn(move || {
        // The time that is measured.
        std::thread::sleep(Duration::from_millis(300));
        tell.send(()).unwrap();
    });
    workq.block_on(told).unwrap();
    let took = cpu_time() - before;
    assert!(
        took < Duration::from_millis(100),
        "{took:?} of CPU in 300 ms of waiting"
    );
    teller.join().unwrap();
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = stat.split_whitespace().next().unwrap().parse().unwrap();
    Duration::from_nanos(nanoseconds)
}
