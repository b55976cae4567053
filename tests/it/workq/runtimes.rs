//! Which runtime polls which operation: none, one, several, and one that is idle, blocked or gone.
//! No copy waits for another copy's runtime, and nothing is left behind.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt;

use support::*;
use tokio::runtime::Runtime;
use tokio::task::coop;
use tokio_doca::soft::Soft;
use tokio_doca::{
    ErrorKind, Mode,
    error::{JobError, Reason},
};

type Copying = Pin<Box<dyn Future<Output = Result<usize, JobError>> + Send>>;

fn copying(bench: &Bench) -> Copying {
    Box::pin(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned())
}

fn event() -> Bench {
    Bench::new(Config::new(true, Mode::EventDriven))
}

/// Awaits a copy on another runtime, on another thread: it must complete in time.
fn on_another_thread(copy: Copying) -> Result<usize, JobError> {
    thread::spawn(|| run(copy)).join().unwrap()
}

#[test]
fn a_runtime_that_is_blocked_holds_up_nobody() {
    let bench = event();
    let hold = bench.hold();
    let (blocked, is_blocked) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let mut copy = copying(&bench);
    let first = thread::spawn(move || {
        run(async {
            poll_pending(copy.as_mut());
            blocked.send(()).unwrap();
            // Blocks the thread, and with it the driver of this runtime.
            wait.recv().unwrap();
            copy.await
        })
    });
    is_blocked.recv().unwrap();
    let second = copying(&bench);
    let second = thread::spawn(|| run(second));
    block_until("both are in flight", || bench.workq.in_flight() == 2);
    drop(hold);
    assert_eq!(second.join().unwrap(), Ok(3));
    assert_eq!(on_another_thread(copying(&bench)), Ok(3));
    go.send(()).unwrap();
    assert_eq!(first.join().unwrap(), Ok(3));
}

#[test]
fn a_runtime_that_is_idle_holds_up_nobody() {
    let bench = event();
    let idle = runtime();
    let mut copy = copying(&bench);
    let hold = bench.hold();
    idle.block_on(async { poll_pending(copy.as_mut()) });
    let second = copying(&bench);
    let second = thread::spawn(|| run(second));
    block_until("both are in flight", || bench.workq.in_flight() == 2);
    drop(hold);
    assert_eq!(second.join().unwrap(), Ok(3));
    for _ in 0..100 {
        assert_eq!(run(copying(&bench)), Ok(3));
    }
    assert_eq!(idle.block_on(copy), Ok(3));
}

#[test]
fn two_runtimes_await_on_one_workq_at_once() {
    let bench = event();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                run(async {
                    for _ in 0..500 {
                        assert_eq!(in_time("a copy", copying(&bench)).await, Ok(3));
                    }
                });
            });
        }
    });
    assert_eq!(bench.workq.in_flight(), 0);
}

/// Two runtimes share a full queue: the slot that one of them frees goes to the task that waits on
/// the other.
#[test]
fn two_runtimes_share_a_queue_of_one() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven).depth(1));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                run(async {
                    for _ in 0..50 {
                        let copies = (0..4).map(|_| copying(&bench));
                        let results = in_time("four", futures::future::join_all(copies)).await;
                        assert_eq!(results, [Ok(3); 4]);
                    }
                });
            });
        }
    });
    assert_eq!(bench.workq.in_flight(), 0);
}

#[test]
fn four_runtimes_are_served_and_a_fifth_is_told() {
    let bench = event();
    let runtimes: Vec<Runtime> = (0..4).map(|_| runtime()).collect();
    for runtime in &runtimes {
        assert_eq!(runtime.block_on(copying(&bench)), Ok(3));
    }
    let fifth = runtime();
    let error = fifth.block_on(copying(&bench)).unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::BadState, Reason::TooManyRuntimes)
    );
    mentions(&error.to_string(), &[4]);
    assert_eq!(bench.workq.in_flight(), 0);
    assert_eq!(bench.free_bufs(), bench.pool.elements());
    for runtime in &runtimes {
        assert_eq!(runtime.block_on(copying(&bench)), Ok(3));
    }
    // Once a runtime has ended, another one can be registered.
    drop(runtimes.into_iter().next_back());
    assert_eq!(fifth.block_on(copying(&bench)), Ok(3));
}

#[test]
fn many_runtimes_come_and_go() {
    let bench = event();
    for _ in 0..50 {
        assert_eq!(run(copying(&bench)), Ok(3));
    }
}

#[test]
fn a_copy_pending_on_a_runtime_that_goes_ends_on_another() {
    for workers_of_two in [false, true] {
        let bench = event();
        let hold = bench.hold();
        let first = match workers_of_two {
            true => workers(),
            false => runtime(),
        };
        let mut copy = copying(&bench);
        // The WorkQ is registered only with the first runtime.
        first.block_on(async { poll_pending(copy.as_mut()) });
        let count = Count::new();
        let waker = count.waker();
        let mut cx = std::task::Context::from_waker(&waker);
        let _context = first.enter();
        assert!(copy.as_mut().poll(&mut cx).is_pending());
        drop(_context);
        drop(first);
        assert_eq!(count.wakes(), 1, "told that the runtime has gone");
        let second = thread::spawn(|| run(copy));
        drop(hold);
        assert_eq!(second.join().unwrap(), Ok(3));
    }
}

/// The copy is awaited on one runtime, while its WorkQ is registered only with another one, which
/// ends.
#[test]
fn a_copy_awaited_elsewhere_is_told_that_its_runtime_has_gone() {
    let bench = event();
    let hold = bench.hold();
    let home = runtime();
    let handle = home.handle().clone();
    let mut copy = copying(&bench);
    let (polled, is_polled) = mpsc::channel();
    let waiting = thread::spawn(move || {
        run(async move {
            std::future::poll_fn(|cx| {
                // The first poll happens in the context of the other runtime.
                let context = handle.enter();
                let polled = copy.as_mut().poll(cx);
                drop(context);
                assert!(polled.is_pending());
                Poll::Ready(())
            })
            .await;
            polled.send(()).unwrap();
            copy.await
        })
    });
    is_polled.recv().unwrap();
    drop(home);
    drop(hold);
    assert_eq!(waiting.join().unwrap(), Ok(3));
}

#[test]
fn without_a_runtime_it_is_bad_state_and_nothing_is_taken() {
    let bench = event();
    let check = |result: Result<usize, JobError>| {
        let error = result.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::BadState, Reason::NoRuntime)
        );
        assert_eq!(bench.workq.in_flight(), 0);
        assert_eq!(bench.free_bufs(), bench.pool.elements());
    };
    check(futures::executor::block_on(copying(&bench)));
    assert_eq!(run(copying(&bench)), Ok(3));
}

#[test]
fn a_job_in_flight_whose_op_is_polled_without_a_runtime_is_not_lost() {
    let bench = event();
    let home = runtime();
    let hold = bench.hold();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let mut copy = Box::pin(bench.dma.copy(&src, &dst));
    home.block_on(async { poll_pending(copy.as_mut()) });
    match poll(copy.as_mut()) {
        Poll::Ready(result) => refused(result, ErrorKind::BadState),
        Poll::Pending => panic!("nobody would wake it"),
    };
    drop(copy);
    refused(dst.data(), ErrorKind::InUse);
    drop(hold);
    home.block_on(until("its memory comes back", || dst.data().is_ok()));
    assert_eq!(bytes(&dst), b"abc");
    assert_eq!(bench.workq.in_flight(), 0);
}

#[test]
fn an_inline_copy_needs_no_runtime() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    assert_eq!(futures::executor::block_on(copying(&bench)), Ok(3));
}

#[test]
fn busy_mode_needs_no_runtime() {
    for defer in [false, true] {
        let bench = Bench::new(Config::new(defer, Mode::BusyPoll));
        assert_eq!(bench.workq.block_on(copying(&bench)), Ok(3));
        assert_eq!(futures::executor::block_on(copying(&bench)), Ok(3));
        let nested = bench
            .workq
            .block_on(async { bench.workq.block_on(copying(&bench)) });
        assert_eq!(nested, Ok(3));
        bench.workq.block_on(bench.workq.shutdown()).unwrap();
    }
}

#[test]
fn block_on_sleeps_and_is_woken_by_another_thread() {
    let bench = Bench::new(Config::new(true, Mode::BusyPoll));
    let (send, receive) = tokio::sync::oneshot::channel();
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        send.send(7).unwrap();
    });
    assert_eq!(bench.workq.block_on(receive), Ok(7));
    other.join().unwrap();
    assert_eq!(bench.workq.block_on(copying(&bench)), Ok(3));
}

#[test]
fn a_future_moves_between_runtimes() {
    for config in configs() {
        let bench = Bench::new(config);
        let hold = bench.hold();
        let mut copy = copying(&bench);
        let (one, two, three) = (runtime(), workers(), runtime());
        one.block_on(async { poll_pending(copy.as_mut()) });
        two.block_on(async { poll_pending(copy.as_mut()) });
        one.block_on(async { poll_pending(copy.as_mut()) });
        drop(hold);
        assert_eq!(three.block_on(async { in_time("it", copy).await }), Ok(3));
    }
}

#[test]
fn a_workq_built_outside_serves_every_kind_of_runtime() {
    for config in configs() {
        let bench = Bench::new(config);
        for runtime in [runtime(), workers()] {
            assert_eq!(runtime.block_on(copying(&bench)), Ok(3));
            let task = runtime.spawn(copying(&bench));
            assert_eq!(runtime.block_on(task).unwrap(), Ok(3));
        }
    }
}

/// Uses up this task's cooperative budget.
async fn spend_budget() {
    std::future::poll_fn(|cx| {
        while coop::has_budget_remaining() {
            if let Poll::Ready(unit) = coop::poll_proceed(cx) {
                unit.made_progress();
            }
        }
        Poll::Ready(())
    })
    .await;
}

/// The WorkQ is first registered while the task has no budget: `poll_read_ready` then wakes the
/// waker at once, which must not make the task poll without end.
#[test]
fn a_spent_budget_does_not_recurse() {
    let config = Config::new(false, Mode::EventDriven);
    let story = async |bench: &Bench| {
        let (small, large) = (bench.filled(b"abc"), bench.filled(&[1; 4096]));
        let dst = bench.empty();
        for round in 0..3 {
            // Small copies run inline, and the large one goes through the engine. These numbers of
            // small copies come from experiments: the large copy begins when Tokio's budget is used
            // up, and the last unit of it pays for more or fewer further jobs.
            for _ in 0..[128, 1, 2000][round] {
                dst.reset_data_len().unwrap();
                assert_eq!(bench.dma.copy(&small, &dst).await, Ok(3));
            }
            spend_budget().await;
            dst.reset_data_len().unwrap();
            let copy = bench.dma.copy(&large, &dst);
            assert_eq!(copy.await, Ok(4096));
        }
    };
    let bench = move || Bench::with_soft(config, Soft::builder().inline_limit(64).build());
    runtime().block_on(story(&bench()));
    workers().block_on(story(&bench()));
    workers().block_on(async {
        let task = tokio::spawn(async move {
            let bench = bench();
            story(&bench).await;
        });
        task.await.unwrap();
    });
}

#[test]
fn many_tasks_on_many_workers() {
    for config in configs() {
        let bench = Bench::new(config.depth(8));
        workers().block_on(async {
            let tasks: Vec<_> = (0..16)
                .map(|i| {
                    let (dma, src, dst) = (bench.dma.clone(), bench.empty(), bench.empty());
                    src.extend_from_slice(&pattern(i, 512)).unwrap();
                    tokio::spawn(async move {
                        for _ in 0..200 {
                            dst.reset_data_len().unwrap();
                            assert_eq!(in_time("a copy", dma.copy(&src, &dst)).await, Ok(512));
                            assert_eq!(bytes(&dst), pattern(i, 512));
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(bench.device.jobs(), Some(16 * 200), "{config:?}");
        assert_eq!(bench.workq.in_flight(), 0);
    }
}

/// A job in flight that is polled outside of any runtime continues, and its future returns an
/// error.
#[test]
fn a_job_that_nobody_can_wait_for_says_that_it_goes_on() {
    let bench = event();
    let hold = bench.hold();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let mut copy = Box::pin(bench.dma.copy(&src, &dst));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async { assert!(copy.as_mut().now_or_never().is_none()) });
    let error = copy.as_mut().now_or_never().unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::BadState, Reason::CannotWake)
    );
    assert!(dst.data().is_err(), "still leased");
    drop(copy);
    drop(hold);
    runtime.block_on(async { bench.workq.shutdown().await.unwrap() });
    assert_eq!(&dst.data().unwrap()[..], b"abc");
}

/// A forgotten future leaves its slot occupied; `block_on` sleeps all the same while it waits for
/// another operation.
#[test]
fn block_on_sleeps_beside_a_result_that_nobody_fetches() {
    let bench = Bench::new(Config::new(true, Mode::BusyPoll));
    let (workq, dst) = (&bench.workq, bench.empty());
    let copy = bench.dma.copy(bench.filled(b"abc"), dst.clone()).owned();
    let copy = Box::leak(Box::new(copy));
    // The future is leaked, so it is pinned for ever.
    let mut copy = std::pin::Pin::static_mut(copy);
    let mut hold = Some(bench.hold());
    let deadline = Instant::now() + LIMIT;
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
        // Sleeps for the time that is measured.
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

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = stat.split_whitespace().next().unwrap().parse().unwrap();
    Duration::from_nanos(nanoseconds)
}
