//! The three modes, and changes between them while jobs are in flight or wait for a slot: no task
//! is left asleep.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use support::*;
use tokio_doca::device::contract::{
    Adapter, Armed, Completion, Job, KeepAlive, Queue, QueueConfig, Registrar, Submit, Submitted,
    Token,
};
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{BufPool, Device, Dma, ErrorKind, Mmap, Mode, Result, WorkQ, device::DevInfo};

const SPIN: Duration = Duration::from_micros(30);

fn all_modes() -> [Mode; 4] {
    let spin = |spin| Mode::Hybrid { spin };
    [
        Mode::EventDriven,
        Mode::BusyPoll,
        spin(SPIN),
        spin(Duration::ZERO),
    ]
}

#[test]
fn an_event_driven_workq_is_built_outside_a_runtime_and_used_in_one() {
    for mode in [Mode::EventDriven, Mode::Hybrid { spin: SPIN }] {
        let bench = Bench::new(Config::new(true, mode));
        assert_eq!(bench.workq.mode(), mode);
        run(bench.works());
        workers().block_on(bench.works());
    }
}

#[test]
fn block_on_runs_every_mode_without_a_runtime() {
    for mode in all_modes() {
        let bench = Bench::new(Config::new(true, mode).depth(2));
        bench.workq.block_on(async {
            bench.works().await;
            futures::future::join_all((0..8).map(|_| bench.works())).await;
        });
        bench.workq.block_on(bench.workq.shutdown()).unwrap();
    }
}

/// Polls while the operation wakes itself, which it does until it sleeps. Returns the number of
/// polls.
fn until_asleep(mut op: Pin<&mut impl Future>, count: &Arc<Count>) -> usize {
    let waker = count.waker();
    let mut polls = 0;
    while count.wakes() == polls {
        let polled = op.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        polls += 1;
        assert!(polls < 100_000, "it never sleeps");
    }
    polls
}

#[test]
fn a_hybrid_op_polls_for_its_time_and_sleeps_then_until_the_event() {
    let bench = Bench::new(Config::new(true, Mode::Hybrid { spin: SPIN }));
    run(async {
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let (mut copy, count) = (Box::pin(bench.dma.copy(&src, &dst)), Count::new());
        let polls = until_asleep(copy.as_mut(), &count);
        assert!(polls > 2, "it did not poll at all");
        let arms = bench.workq.stats().arms;
        assert!(arms > 0, "it sleeps without an event");
        // A spurious poll does not start the spin again.
        let woken = count.wakes();
        let waker = count.waker();
        let polled = copy.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert_eq!(count.wakes(), woken);
        drop(hold);
        until("it is woken", || count.wakes() > woken).await;
        assert_eq!(poll(copy.as_mut()), Poll::Ready(Ok(3)));
    });
}

#[test]
fn each_of_several_that_sleep_in_hybrid_mode_has_its_event() {
    for spin in [Duration::ZERO, SPIN] {
        let bench = Bench::new(Config::new(true, Mode::Hybrid { spin }));
        let pairs = [(); 5].map(|()| (bench.filled(b"abc"), bench.empty()));
        let [sleepers @ .., (src, dst)] = &pairs;
        run(async {
            // Delays each copy until one of the jobs below is done. These are submitted once all
            // copies sleep.
            for at in 0..sleepers.len() as u32 {
                bench.soft.faults().push(Fault::Behind(2 * at + 1));
            }
            let mut copies: Vec<_> = sleepers
                .iter()
                .map(|(src, dst)| (Box::pin(bench.dma.copy(src, dst)), Count::new()))
                .collect();
            for (copy, count) in &mut copies {
                until_asleep(copy.as_mut(), count);
            }
            for (copy, count) in &mut copies {
                let (woken, before) = (count.wakes(), bench.workq.stats());
                // No task polls, and a posted job arms nothing: the reaper of the event before must
                // have armed for the next one.
                dst.reset_data_len().unwrap();
                bench.dma.copy(src, dst).post(0).unwrap();
                until("it is woken", || count.wakes() > woken).await;
                assert!(bench.workq.stats().wake_ups > before.wake_ups);
                assert_eq!(poll(copy.as_mut()), Poll::Ready(Ok(3)));
            }
        });
    }
}

#[test]
fn a_short_job_in_hybrid_mode_needs_no_event() {
    let spin = Duration::from_secs(1);
    let bench = Bench::new(Config::new(true, Mode::Hybrid { spin }));
    run(async {
        for _ in 0..200 {
            let (before, start) = (bench.workq.stats(), Instant::now());
            bench.works().await;
            let (stats, took) = (bench.workq.stats(), start.elapsed());
            // If the engine got no CPU for that long, the job was no short one.
            if took < spin {
                let events = (stats.arms - before.arms, stats.wake_ups - before.wake_ups);
                assert_eq!(events, (0, 0), "{stats:?}");
            }
        }
    });
}

#[test]
fn in_hybrid_mode_the_other_tasks_of_the_thread_go_on() {
    let spin = Duration::from_secs(1);
    let bench = Bench::new(Config::new(true, Mode::Hybrid { spin }));
    run(async {
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let copy = tokio::spawn(bench.dma.copy(src, dst).owned());
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!copy.is_finished());
        drop(hold);
        assert_eq!(copy.await.unwrap(), Ok(3));
    });
}

#[test]
fn a_spin_beyond_a_second_is_refused_and_the_mode_stays() {
    let long = Mode::Hybrid {
        spin: Duration::from_millis(1001),
    };
    let text = rejected(WorkQ::builder().mode(long).build(), ErrorKind::InvalidValue);
    assert!(text.contains("1.001s"), "{text}");
    let workq = WorkQ::builder().build().unwrap();
    rejected(workq.set_mode(long), ErrorKind::InvalidValue);
    assert_eq!(workq.mode(), Mode::EventDriven);
    let longest = Mode::Hybrid {
        spin: Duration::from_secs(1),
    };
    workq.set_mode(longest).unwrap();
    assert_eq!(workq.mode(), longest);
}

/// A software device that declares that it cannot signal.
struct Mute(DevInfo, Device);

#[expect(unsafe_code, reason = "implements Adapter")]
// SAFETY: the inner device keeps the adapter duties; each queue is a new queue of it.
unsafe impl Adapter for Mute {
    fn info(&self) -> &DevInfo {
        &self.0
    }

    fn registrar(&self) -> &dyn Registrar {
        self.1.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        self.1.adapter().open_queue(config)
    }
}

/// A software queue that sets another mode during a submission.
struct SetsMode {
    inner: Arc<dyn Queue>,
    workq: Arc<OnceLock<(WorkQ, Mode)>>,
}

#[expect(unsafe_code, reason = "implements a queue")]
// SAFETY: the inner queue keeps the duties; every call is passed to it unchanged.
unsafe impl Submit for SetsMode {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let (workq, mode) = self.workq.get().unwrap();
        workq.set_mode(*mode).unwrap();
        // SAFETY: the caller keeps the promises of `submit`.
        unsafe { self.inner.submit(jobs) }
    }
}

#[expect(unsafe_code, reason = "implements a queue")]
// SAFETY: as above for `Submit`.
unsafe impl Queue for SetsMode {
    fn ready(&self) -> bool {
        self.inner.ready()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        // SAFETY: the caller keeps the promises of `reap`.
        unsafe { self.inner.reap(out) }
    }

    fn arm(&self) -> Armed {
        self.inner.arm()
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: the caller keeps the promises of `retire`.
        unsafe { self.inner.retire(keep, outstanding) };
    }
}

struct SetsModes(Device, Arc<OnceLock<(WorkQ, Mode)>>);

#[expect(unsafe_code, reason = "implements Adapter")]
// SAFETY: the inner device keeps the adapter duties; each queue wraps a new queue of it.
unsafe impl Adapter for SetsModes {
    fn info(&self) -> &DevInfo {
        self.0.info()
    }

    fn registrar(&self) -> &dyn Registrar {
        self.0.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        let (inner, workq) = (self.0.adapter().open_queue(config)?, Arc::clone(&self.1));
        Ok(Arc::new(SetsMode { inner, workq }))
    }
}

/// A queue that returns more completions whenever it is reaped, all of jobs that do not exist.
struct Endless(Arc<dyn Queue>);

#[expect(unsafe_code, reason = "implements a queue")]
// SAFETY: as for `SetsMode`; this queue has no jobs of its own.
unsafe impl Submit for Endless {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // SAFETY: the caller keeps the promises of `submit`.
        unsafe { self.0.submit(jobs) }
    }
}

#[expect(unsafe_code, reason = "implements a queue")]
// SAFETY: as above for `Submit`.
unsafe impl Queue for Endless {
    fn ready(&self) -> bool {
        true
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        out.fill(Completion::new(Token::new(0, 0, u32::MAX), Ok(0)));
        out.len()
    }

    fn arm(&self) -> Armed {
        Armed::Ready
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: the caller keeps the promises of `retire`.
        unsafe { self.0.retire(keep, outstanding) };
    }
}

struct EndlessDevice(Device);

#[expect(unsafe_code, reason = "implements Adapter")]
// SAFETY: the inner device keeps the adapter duties; each queue wraps a new queue of it.
unsafe impl Adapter for EndlessDevice {
    fn info(&self) -> &DevInfo {
        self.0.info()
    }

    fn registrar(&self) -> &dyn Registrar {
        self.0.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(Endless(self.0.adapter().open_queue(config)?)))
    }
}

/// A device that fills each poll with completions does not block the device behind it.
#[test]
fn a_device_that_always_has_something_to_say_starves_no_other() {
    for mode in all_modes() {
        let soft = Soft::builder().defer(true).build();
        let busy = EndlessDevice(soft.open("pf0").unwrap());
        let busy = Device::from_adapter(Arc::new(busy));
        let device = Soft::builder().defer(true).build().open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(1 << 14).unwrap();
        let pool = BufPool::builder(&mmap).build().unwrap();
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let _first = Dma::builder(&busy).attach(&workq).unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        run(async {
            let (src, dst) = (pool.alloc().await, pool.alloc().await);
            src.extend_from_slice(b"abc").unwrap();
            assert_eq!(in_time("the copy", dma.copy(&src, &dst)).await, Ok(3));
        });
    }
}

/// The mode changes during the submission of an `Op`: the `Op` must complete also if the old mode
/// lets no task sleep, and the new mode lets it sleep.
#[test]
fn a_mode_that_is_set_amid_a_submission_leaves_nobody_asleep() {
    for before in all_modes() {
        for mode in all_modes() {
            let soft = Soft::builder().defer(true).build();
            let inner = soft.open("pf0").unwrap();
            let late = Arc::new(OnceLock::new());
            let adapter = SetsModes(inner, Arc::clone(&late));
            let device = Device::from_adapter(Arc::new(adapter));
            let mmap = Mmap::builder().device(&device).alloc(1 << 14).unwrap();
            let pool = BufPool::builder(&mmap).build().unwrap();
            let workq = WorkQ::builder().mode(before).build().unwrap();
            assert!(late.set((workq.clone(), mode)).is_ok());
            let dma = Dma::builder(&device).attach(&workq).unwrap();
            run(async {
                let (src, dst) = (pool.alloc().await, pool.alloc().await);
                src.extend_from_slice(b"abc").unwrap();
                let hold = soft.faults().hold();
                let copy = tokio::spawn(dma.copy(src, dst).owned());
                tokio::task::yield_now().await;
                drop(hold);
                assert_eq!(in_time("the copy", copy).await.unwrap(), Ok(3));
            });
            // Leaked, because it refers to itself through its device.
            std::mem::forget(late);
        }
    }
}

#[test]
fn a_device_that_cannot_ring_takes_busy_polling_only() {
    let inner = Soft::builder().build().open("pf0").unwrap();
    let mut caps = inner.info().caps().clone();
    caps.dma.as_mut().unwrap().event_driven = false;
    let info = inner.info();
    let info = DevInfo::new("mute", "mute0", info.pci_addr(), info.function(), caps);
    let device = Device::from_adapter(Arc::new(Mute(info, inner)));
    let workq = WorkQ::builder().build().unwrap();
    let hybrid = Mode::Hybrid { spin: SPIN };
    for mode in [Mode::EventDriven, hybrid] {
        workq.set_mode(mode).unwrap();
        let attached = Dma::builder(&device).attach(&workq);
        let text = rejected(attached.map(drop), ErrorKind::NotSupported);
        assert!(text.contains("mute0"), "{text}");
    }
    workq.set_mode(Mode::BusyPoll).unwrap();
    let _dma = Dma::builder(&device).attach(&workq).unwrap();
    for mode in [Mode::EventDriven, hybrid] {
        let text = rejected(workq.set_mode(mode), ErrorKind::NotSupported);
        assert!(text.contains("mute0"), "{text}");
        assert_eq!(workq.mode(), Mode::BusyPoll);
    }
}

#[test]
fn set_mode_wakes_who_sleeps_in_flight_in_line_and_in_shutdown_once() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven).depth(1));
    run(async {
        let hold = bench.hold();
        let pairs = [(); 2].map(|()| (bench.filled(b"abc"), bench.empty()));
        let mut ops = pairs
            .each_ref()
            .map(|(src, dst)| Box::pin(bench.dma.copy(src, dst)));
        let counts = [(); 3].map(|()| Count::new());
        for (op, count) in ops.iter_mut().zip(&counts) {
            let waker = count.waker();
            assert!(
                op.as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        // No waker is called before the first change; each change calls each of them once.
        assert!(counts.iter().all(|count| count.wakes() == 0));
        bench
            .workq
            .set_mode(Mode::Hybrid {
                spin: Duration::ZERO,
            })
            .unwrap();
        assert_eq!([0, 1].map(|at| counts[at].wakes()), [1, 1]);
        let mut shutdown = Box::pin(bench.workq.shutdown());
        let waker = counts[2].waker();
        let polled = shutdown.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let before = counts[2].wakes();
        bench.workq.set_mode(Mode::EventDriven).unwrap();
        assert_eq!(counts[2].wakes(), before + 1);
        drop(hold);
        let [first, second] = ops;
        assert_eq!(in_time("the first", first).await, Ok(3));
        refused(in_time("the second", second).await, ErrorKind::Shutdown);
        in_time("the shutdown", shutdown).await.unwrap();
    });
}

/// 64 tasks share 16 slots, while another thread keeps changing the mode.
#[test]
fn set_mode_in_a_loop_under_64_tasks_leaves_nobody_asleep() {
    for workers in [1, 2] {
        let bench = Bench::new(Config::new(true, Mode::EventDriven).depth(16));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let changes = Arc::new(AtomicUsize::new(0));
        let setter = {
            let (workq, stop) = (bench.workq.clone(), Arc::clone(&stop));
            let changes = Arc::clone(&changes);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for mode in all_modes() {
                        workq.set_mode(mode).unwrap();
                        changes.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                }
            })
        };
        runtime.block_on(async {
            let task = |at: usize| {
                let (dma, faults) = (bench.dma.clone(), bench.soft.faults().clone());
                // The bench's pool is too small for 64 pairs, so each task has its own memory.
                let mmap = bench.mmap(2 * 64);
                let pool = tokio_doca::BufPool::builder(&mmap).element_size(64).build();
                let pool = pool.unwrap();
                let changes = Arc::clone(&changes);
                tokio::spawn(async move {
                    let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
                    src.extend_from_slice(&pattern(at as u8, 32)).unwrap();
                    for round in 0.. {
                        // Each mode has been set at least twice.
                        if round >= 100 && changes.load(Ordering::Relaxed) >= 6 {
                            break;
                        }
                        dst.reset_data_len().unwrap();
                        if (at + round).is_multiple_of(16) {
                            // Long enough for waiting tasks to sleep.
                            faults.push(Fault::Delay(Duration::from_micros(200)));
                        }
                        assert_eq!(dma.copy(&src, &dst).await, Ok(32));
                        assert_eq!(bytes(&dst), pattern(at as u8, 32));
                    }
                })
            };
            let tasks: Vec<_> = (0..64).map(task).collect();
            for task in tasks {
                in_time("a task", task).await.unwrap();
            }
        });
        stop.store(true, Ordering::Relaxed);
        setter.join().unwrap();
        assert!(changes.load(Ordering::Relaxed) > 4);
        assert_eq!(bench.workq.in_flight(), 0);
    }
}

#[test]
fn the_stats_tell_what_was_done() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let stats = || bench.workq.stats();
    assert_eq!(stats(), tokio_doca::workq::Stats::default());
    run(async {
        // Inline jobs: the device counts them all the same.
        for _ in 0..5 {
            bench.works().await;
        }
        let seen = stats();
        assert_eq!((seen.submitted, seen.completed, seen.in_flight), (5, 5, 0));
        assert_eq!((seen.polls, seen.arms, seen.wake_ups), (0, 0, 0));

        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        let seen = stats();
        assert_eq!((seen.submitted, seen.completed, seen.in_flight), (6, 5, 1));
        assert!(seen.arms > 0);
        drop(hold);
        until("it is collected", || stats().unfetched == 1).await;
        let seen = stats();
        assert_eq!((seen.submitted, seen.completed, seen.in_flight), (6, 6, 0));
        assert!(seen.polls > 0 && seen.wake_ups > 0, "{seen:?}");
        // A forgotten future leaves its slot occupied, and the statistics show that.
        std::mem::forget(copy);
        assert_eq!((stats().unfetched, bench.workq.in_flight()), (1, 1));

        bench
            .soft
            .faults()
            .push(Fault::Error(ErrorKind::IoFailed, 1));
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        refused(bench.dma.copy(&src, &dst).await, ErrorKind::IoFailed);
        bench.soft.faults().push(Fault::QueueFull);
        refused(
            bench.dma.copy(&src, &dst).start().map(drop),
            ErrorKind::Again,
        );
        let seen = stats();
        assert_eq!((seen.submitted, seen.completed, seen.failed), (7, 7, 1));
        assert_eq!((seen.inline, seen.flushed, seen.received), (5, 0, 0));
        // There is nothing to reap.
        assert_eq!(bench.workq.progress(|_, _| {}), 0);
        let idle = stats();
        let polls = (idle.polls - seen.polls, idle.empty_polls - seen.empty_polls);
        assert_eq!(polls, (1, 1), "{idle:?}");
    });
    // Another WorkQ of the same device counts separately.
    let other = WorkQ::builder().build().unwrap();
    let dma = bench.dma.attach(&other).unwrap();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    assert_eq!(futures::executor::block_on(dma.copy(&src, &dst)), Ok(3));
    assert_eq!((other.stats().completed, stats().completed), (1, 7));
    let jobs = bench.device.jobs().unwrap();
    assert_eq!(jobs, 8);
    drop((dma, other));
    assert_eq!(bench.device.jobs(), Some(jobs), "nothing is forgotten");
}

#[test]
fn stats_count_every_inline_job_of_many_threads() {
    let bench = Bench::new(Config::new(false, Mode::BusyPoll));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (src, dst) = (bench.filled(b"abc"), bench.empty());
                for _ in 0..500 {
                    dst.reset_data_len().unwrap();
                    bench.workq.block_on(bench.dma.copy(&src, &dst)).unwrap();
                }
            });
        }
    });
    assert_eq!(bench.workq.stats().completed, 4_000);
}
