//! A full queue is no error: tasks that await wait for their turn, in order, and a future that is
//! not polled does not block the others.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use support::*;
use tokio_doca::soft::Fault;
use tokio_doca::{Buf, BufPool, ErrorKind, Mode, error::JobError};

/// Returns all four configurations with this depth.
fn deep(depth: u32) -> Vec<Config> {
    configs().iter().map(|c| c.depth(depth)).collect()
}

/// Returns the configurations in which all jobs go through the engine.
fn deferred(depth: u32) -> Vec<Config> {
    deep(depth).into_iter().filter(|c| c.defer).collect()
}

type Copying<'a> = Pin<Box<dyn Future<Output = Result<usize, JobError>> + Send + 'a>>;

fn copying(bench: &Bench) -> Copying<'static> {
    Box::pin(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned())
}

#[test]
fn a_thousand_tasks_pass_through_a_shallow_queue() {
    for depth in [1, 2, 3, 8] {
        for config in deep(depth) {
            let bench = Bench::new(config);
            let mmap = bench.mmap(2000 * 64);
            let pool = BufPool::builder(&mmap).element_size(64).build().unwrap();
            workers().block_on(async {
                let tasks: Vec<_> = (0..1000u32)
                    .map(|i| {
                        let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
                        src.extend_from_slice(&i.to_le_bytes()).unwrap();
                        let (dma, workq) = (bench.dma.clone(), bench.workq.clone());
                        tokio::spawn(async move {
                            let copied = dma.copy(&src, &dst).await;
                            assert!(workq.in_flight() <= depth as usize);
                            assert_eq!(copied, Ok(4));
                            assert_eq!(bytes(&dst), i.to_le_bytes());
                        })
                    })
                    .collect();
                for task in tasks {
                    in_time("a task", task).await.unwrap();
                }
            });
            assert_eq!(bench.workq.in_flight(), 0, "{config:?}");
            assert_eq!(free_bufs(&pool), 2000);
            assert_eq!(bench.device.jobs(), Some(1000));
        }
    }
}

/// Queues 25 copies behind `depth` others, and returns the order in which they end. The engine
/// works in order, so this is the order of submission, except among copies that are in flight
/// together.
async fn order_of_ends(bench: &Bench) -> Vec<usize> {
    let depth = bench.workq.depth();
    let hold = bench.hold();
    let fill: Vec<_> = (0..depth).map(|_| tokio::spawn(copying(bench))).collect();
    until("the queue is full", || {
        bench.workq.in_flight() == depth as usize
    })
    .await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..25)
        .map(|i| {
            let (copy, order) = (copying(bench), Arc::clone(&order));
            tokio::spawn(async move {
                copy.await.unwrap();
                order.lock().unwrap().push(i);
            })
        })
        .collect();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    drop(hold);
    for task in fill {
        in_time("the first", task).await.unwrap().unwrap();
    }
    for task in tasks {
        in_time("a task", task).await.unwrap();
    }
    let order = order.lock().unwrap();
    order.clone()
}

/// Returns by how many others a copy was passed at most.
fn passed(order: &[usize]) -> usize {
    let place = |(place, i): (usize, &usize)| place.saturating_sub(*i);
    order.iter().enumerate().map(place).max().unwrap()
}

#[test]
fn who_waits_is_served_in_order() {
    for depth in [1, 2, 3] {
        each_of(&deferred(depth)[..1], async |bench| {
            for _ in 0..20 {
                let order = order_of_ends(bench).await;
                assert!(passed(&order) < depth as usize, "{order:?}");
            }
        });
    }
}

#[test]
fn two_waiters_on_one_queue_are_both_served() {
    each_of(&deep(1), async |bench| {
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        let (second, third) = (tokio::spawn(copying(bench)), tokio::spawn(copying(bench)));
        tokio::task::yield_now().await;
        assert_eq!(bench.workq.in_flight(), 1);
        drop(hold);
        assert_eq!(in_time("the first", first).await, Ok(3));
        assert_eq!(in_time("the second", second).await.unwrap(), Ok(3));
        assert_eq!(in_time("the third", third).await.unwrap(), Ok(3));
    });
}

#[test]
fn a_copy_that_is_started_on_a_full_workq_says_again_and_takes_nothing() {
    each_of(&deep(2), async |bench| {
        let hold = bench.hold();
        let pairs: Vec<(Buf, Buf)> = (0..3)
            .map(|_| (bench.filled(b"abc"), bench.empty()))
            .collect();
        let copy = |i: usize| bench.dma.copy(&pairs[i].0, &pairs[i].1);
        let (one, two) = (copy(0).start().unwrap(), copy(1).start().unwrap());
        mentions(&refused(copy(2).start(), ErrorKind::Again), &[2]);
        pairs[2].0.data_mut().unwrap()[0] = b'x';
        assert_eq!(rooms(&pairs[2].1), (0, 0, ELEMENT));
        drop(hold);
        assert_eq!((one.await, two.await), (Ok(3), Ok(3)));
        assert_eq!(copy(2).start().unwrap().await, Ok(3));
        assert_eq!(bytes(&pairs[2].1), b"xbc");
    });
}

#[test]
fn a_queue_that_is_full_for_long_loses_nobody() {
    each_of(&deep(4), async |bench| {
        let hold = bench.hold();
        let tasks: Vec<_> = (0..30).map(|_| tokio::spawn(copying(bench))).collect();
        // Sleeps, so that every task has many chances to go wrong.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(bench.workq.in_flight(), 4);
        assert!(tasks.iter().all(|task| !task.is_finished()));
        drop(hold);
        for task in tasks {
            assert_eq!(in_time("a task", task).await.unwrap(), Ok(3));
        }
    });
}

#[test]
fn waiting_takes_no_leases() {
    each_of(&deep(1), async |bench| {
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut waiting = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(waiting.as_mut());
        src.data_mut().unwrap()[0] = b'x';
        dst.extend_from_slice(b"0").unwrap();
        drop(hold);
        assert_eq!(first.await, Ok(3));
        // The copy gets the free slot, but is refused because its destination is in use by then.
        let guard = dst.data_mut().unwrap();
        refused(waiting.await, ErrorKind::InUse);
        drop(guard);
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(3));
        assert_eq!(bytes(&dst), b"0xbc");
    });
}

#[test]
fn a_woken_waiter_that_is_dropped_passes_it_on() {
    each_of(&deferred(2), async |bench| {
        // The other job stays in flight, so that its end does not make up for a slot that is not
        // passed on.
        let hour = Duration::from_secs(3600);
        bench.soft.faults().push(Fault::Delay(hour));
        let mut long = copying(bench);
        poll_pending(long.as_mut());
        assert_eq!(copying(bench).await, Ok(3));
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        let (mut dropped, count) = (copying(bench), Count::new());
        let waker = count.waker();
        let mut cx = Context::from_waker(&waker);
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        let live = tokio::spawn(copying(bench));
        tokio::task::yield_now().await;
        drop(hold);
        assert_eq!(first.await, Ok(3));
        until("it was told", || count.wakes() > 0).await;
        drop(dropped);
        assert_eq!(in_time("the next", live).await.unwrap(), Ok(3));
    });
}

/// The dead futures are at the front of the queue: they were polled once, and are neither polled
/// again nor dropped.
#[test]
fn a_queued_future_that_nobody_polls_stops_nobody() {
    for depth in [1, 2, 8] {
        for dead in [1, 2, 12] {
            for told_before in [false, true] {
                each_of(&deep(depth), async |bench| {
                    let hold = bench.hold();
                    let mut fill: Vec<_> = (0..depth).map(|_| copying(bench)).collect();
                    for copy in &mut fill {
                        poll_pending(copy.as_mut());
                    }
                    let mut stale: Vec<_> = (0..dead).map(|_| copying(bench)).collect();
                    for copy in &mut stale {
                        poll_pending(copy.as_mut());
                    }
                    let live = (!told_before).then(|| tokio::spawn(copying(bench)));
                    tokio::task::yield_now().await;
                    drop(hold);
                    for copy in fill {
                        assert_eq!(in_time("in flight", copy).await, Ok(3));
                    }
                    if let Some(live) = live {
                        assert_eq!(in_time("another task", live).await.unwrap(), Ok(3));
                    }
                    bench.soft.faults().push(Fault::Pass);
                    assert_eq!(in_time("the same task", copying(bench)).await, Ok(3));
                    let other = tokio::spawn(copying(bench));
                    assert_eq!(in_time("after they were told", other).await.unwrap(), Ok(3));
                    drop(stale);
                    bench.all_back().await;
                });
            }
        }
    }
}

// A slot whose result was not fetched stays occupied, although nothing is in flight; the notified
// waiter that is not polled must not count for ever.
#[test]
fn a_forgotten_copy_and_a_waiter_that_nobody_polls_stop_nobody() {
    each_of(&deep(2), async |bench| {
        let hold = bench.hold();
        let (mut forgotten, mut first) = (copying(bench), copying(bench));
        poll_pending(forgotten.as_mut());
        std::mem::forget(forgotten);
        poll_pending(first.as_mut());
        let mut dead = copying(bench);
        poll_pending(dead.as_mut());
        let live = tokio::spawn(copying(bench));
        tokio::task::yield_now().await;
        drop(hold);
        assert_eq!(in_time("in flight", first).await, Ok(3));
        assert_eq!(in_time("the live one", live).await.unwrap(), Ok(3));
        drop(dead);
    });
}

// A waiter that is not polled, beside a job in flight that takes long.
#[test]
fn a_long_job_and_a_waiter_that_nobody_polls_stop_nobody() {
    each_of(&deferred(2), async |bench| {
        let hour = Duration::from_secs(3600);
        bench.soft.faults().push(Fault::Delay(hour));
        let (mut long, mut first) = (copying(bench), copying(bench));
        poll_pending(long.as_mut());
        // Jobs begin in order, so the long job has begun when this one completes.
        assert_eq!(copying(bench).await, Ok(3));
        let hold = bench.hold();
        poll_pending(first.as_mut());
        let mut dead = copying(bench);
        poll_pending(dead.as_mut());
        let live = tokio::spawn(copying(bench));
        tokio::task::yield_now().await;
        drop(hold);
        assert_eq!(in_time("the short one", first).await, Ok(3));
        assert_eq!(in_time("the live one", live).await.unwrap(), Ok(3));
        drop(dead);
    });
}

// An operation that does not wait passes waiters that were notified and are not polled.
#[test]
fn a_copy_can_be_started_beside_a_waiter_that_nobody_polls() {
    each_of(&deferred(1), async |bench| {
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        let mut dead = copying(bench);
        poll_pending(dead.as_mut());
        drop(hold);
        assert_eq!(first.await, Ok(3));
        assert_eq!(bench.workq.in_flight(), 0);
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        until("all Slots are free", || {
            bench.dma.copy(&src, &dst).start().is_ok()
        })
        .await;
        drop(dead);
    });
}

/// The futures of a stream are polled only while the stream is: here they wait, are notified, and
/// do nothing.
#[test]
fn buffered_streams_that_stand_in_line_stop_nobody() {
    for depth in [1, 2, 3] {
        each_of(&deep(depth), async |bench| {
            let copies = stream::iter(0..20).map(|_| copying(bench)).buffered(8);
            let mut copies = std::pin::pin!(copies);
            let hold = bench.hold();
            let mut fill: Vec<_> = (0..depth).map(|_| copying(bench)).collect();
            for copy in &mut fill {
                poll_pending(copy.as_mut());
            }
            assert!(poll(std::pin::pin!(copies.next())).is_pending());
            drop(hold);
            for copy in fill {
                assert_eq!(in_time("in flight", copy).await, Ok(3));
            }
            for _ in 0..10 {
                bench.soft.faults().push(Fault::Pass);
                assert_eq!(in_time("beside the stream", copying(bench)).await, Ok(3));
            }
            let rest: Vec<_> = in_time("the stream", copies.collect()).await;
            assert_eq!(rest, [Ok(3); 20]);
        });
    }
}

/// `in_flight` counts results that were not fetched, which occupy slots. A caller must not await
/// more copies than there are other slots.
#[test]
fn a_result_that_nobody_fetched_keeps_its_slot() {
    each_of(&deferred(1), async |bench| {
        let (src, kept_dst) = (bench.filled(b"abc"), bench.empty());
        let hold = bench.hold();
        let mut kept = Box::pin(bench.dma.copy(src, kept_dst.clone()).start().unwrap());
        poll_pending(kept.as_mut());
        drop(hold);
        if bench.config.mode == Mode::EventDriven {
            until("it is over", || kept_dst.data().is_ok()).await;
            assert_eq!(bench.workq.in_flight(), 1);
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            refused(bench.dma.copy(&src, &dst).start(), ErrorKind::Again);
        }
        assert_eq!(kept.await, Ok(3));
        assert_eq!(bench.workq.in_flight(), 0);
    });
}

#[test]
fn slots_freed_on_another_thread_reach_who_waits() {
    for config in deferred(128) {
        let bench = Bench::new(config);
        let mmap = bench.mmap(1000 * 64);
        let pool = BufPool::builder(&mmap).element_size(64).build().unwrap();
        let copy = || {
            let src = pool.try_alloc().unwrap();
            src.extend_from_slice(b"abc").unwrap();
            Box::pin(bench.dma.copy(src, pool.try_alloc().unwrap()).owned())
        };
        let hold = bench.hold();
        // Submits from four threads, so that the slots come from many magazines.
        let fill: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let runtime = runtime();
                        let _context = runtime.enter();
                        let mut copies: Vec<_> = (0..32).map(|_| copy()).collect();
                        for copy in &mut copies {
                            poll_pending(copy.as_mut());
                        }
                        (runtime, copies)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(bench.workq.in_flight(), 128);
        // The four runtimes end, so that this runtime can be registered. Other threads free the
        // slots.
        let (runtimes, copies): (Vec<_>, Vec<_>) = fill.into_iter().unzip();
        drop(runtimes);
        run(async {
            let waiting: Vec<_> = (0..100).map(|_| tokio::spawn(copy())).collect();
            tokio::task::yield_now().await;
            assert!(waiting.iter().all(|task| !task.is_finished()));
            drop(hold);
            let threads: Vec<_> = copies
                .into_iter()
                .map(|copies| tokio::task::spawn_blocking(move || drop(copies)))
                .collect();
            for thread in threads {
                thread.await.unwrap();
            }
            for task in waiting {
                assert_eq!(in_time("who waits", task).await.unwrap(), Ok(3));
            }
            until("nothing is in flight", || bench.workq.in_flight() == 0).await;
        });
        assert_eq!(free_bufs(&pool), 1000);
    }
}

#[test]
fn a_device_that_says_full_is_asked_again() {
    // The last number is enough for two of the longest pauses, of 100 ms.
    for times in [1, 2, 12] {
        each_of(&deep(4), async |bench| {
            for _ in 0..times {
                bench.soft.faults().push(Fault::QueueFull);
            }
            // Nothing else is in flight.
            assert_eq!(in_time("alone", copying(bench)).await, Ok(3));
            for _ in 0..times {
                bench.soft.faults().push(Fault::QueueFull);
            }
            let tasks: Vec<_> = (0..20).map(|_| tokio::spawn(copying(bench))).collect();
            for task in tasks {
                assert_eq!(in_time("with others", task).await.unwrap(), Ok(3));
            }
            bench.all_back().await;
        });
    }
}

#[test]
fn a_device_that_says_full_while_jobs_are_in_flight_is_asked_when_one_ends() {
    each_of(&deep(4), async |bench| {
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        for _ in 0..3 {
            bench.soft.faults().push(Fault::QueueFull);
        }
        let second = tokio::spawn(copying(bench));
        let third = tokio::spawn(copying(bench));
        tokio::task::yield_now().await;
        drop(hold);
        assert_eq!(in_time("the first", first).await, Ok(3));
        assert_eq!(in_time("the second", second).await.unwrap(), Ok(3));
        assert_eq!(in_time("the third", third).await.unwrap(), Ok(3));
    });
}

// The refused job is beside a result that was not fetched, so that nothing in flight would wake it.
#[test]
fn a_device_that_says_full_beside_a_forgotten_copy_is_asked_again() {
    each_of(&deferred(4), async |bench| {
        let hold = bench.hold();
        let mut forgotten = copying(bench);
        poll_pending(forgotten.as_mut());
        std::mem::forget(forgotten);
        drop(hold);
        bench.engine_works().await;
        // Waits for late events of earlier copies, which must not wake the next one.
        tokio::time::sleep(Duration::from_millis(10)).await;
        // One poll tries twice.
        for _ in 0..2 {
            bench.soft.faults().push(Fault::QueueFull);
        }
        assert_eq!(in_time("the copy", copying(bench)).await, Ok(3));
    });
}

#[test]
fn a_refused_submission_leaves_everything_as_before() {
    each_of(&deep(2), async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        dst.set_data(5, 5).unwrap();
        bench.soft.faults().push(Fault::QueueFull);
        refused(bench.dma.copy(&src, &dst).start(), ErrorKind::Again);
        assert_eq!(bench.workq.in_flight(), 0);
        assert_eq!(rooms(&dst), (5, 5, ELEMENT - 10));
        src.data_mut().unwrap()[0] = b'x';
        dst.data_mut().unwrap()[0] = b'y';

        // More refusals than one poll can meet: it tries at once, again when it queues, and once
        // more if this thread is so late that the pause between two tries has passed.
        for _ in 0..100 {
            bench.soft.faults().push(Fault::QueueFull);
        }
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        assert!(bench.soft.faults().left() <= 98, "it tries twice");
        assert_eq!(bench.workq.in_flight(), 0);
        src.data_mut().unwrap()[1] = b'x';
        drop(copy);
        bench.soft.faults().clear();
        assert_eq!(rooms(&dst), (5, 5, ELEMENT - 10));
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(3));
        assert_eq!(bytes(&dst)[5..], *b"xxc");
        drop((src, dst));
        bench.all_back().await;
    });
}

#[test]
fn a_waiter_of_a_busy_queue_needs_no_runtime() {
    for defer in [false, true] {
        let bench = Bench::new(Config::new(defer, Mode::BusyPoll).depth(1));
        let done = AtomicUsize::new(0);
        bench.workq.block_on(async {
            let copies = (0..20).map(|_| async {
                bench.soft.faults().push(Fault::Pass);
                assert_eq!(copying(&bench).await, Ok(3));
                done.fetch_add(1, Ordering::Relaxed);
            });
            futures::future::join_all(copies).await;
        });
        assert_eq!(done.into_inner(), 20);
    }
}

#[tokio::test]
async fn a_device_that_is_full_while_the_workq_is_not_burns_no_cpu() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven).depth(4));
    let hold = bench.soft.faults().hold();
    let running = tokio::spawn(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned());
    tokio::task::yield_now().await;
    // The device refuses the others however often they try: each tries once, and waits for a
    // completion.
    for _ in 0..1000 {
        bench.soft.faults().push(Fault::QueueFull);
    }
    let others: Vec<_> = (0..3)
        .map(|_| tokio::spawn(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned()))
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
