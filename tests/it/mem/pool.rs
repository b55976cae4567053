//! Waiting for a Buf: each returned Buf wakes the first waiter, and a future that is not polled
//! does not block the others.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Context;

use futures::stream::{self, StreamExt};
use support::*;
use tokio::task::JoinHandle;
use tokio_doca::mem::Alloc;
use tokio_doca::soft::Soft;
use tokio_doca::{BufPool, Device, ErrorKind, Mmap, Mode};

fn pool(elements: usize) -> BufPool {
    let device = Device::open_default().unwrap();
    let mmap = Mmap::builder().device(&device).alloc(elements * 64);
    let mmap = mmap.unwrap();
    BufPool::builder(&mmap).element_size(64).build().unwrap()
}

#[test]
fn an_empty_pool_says_again_with_its_numbers() {
    let pool = pool(3);
    let bufs: Vec<_> = (0..3).map(|_| pool.try_alloc().unwrap()).collect();
    mentions(&refused(pool.try_alloc(), ErrorKind::Again), &[3, 64]);
    drop(bufs);
    assert_eq!(free_bufs(&pool), 3);
}

#[test]
fn a_waiter_gets_what_is_returned() {
    run(async {
        let pool = pool(1);
        let buf = pool.alloc().await;
        let count = Count::new();
        let mut waiting = Box::pin(pool.alloc());
        let waker = count.waker();
        let mut cx = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert_eq!(count.wakes(), 0);
        drop(buf.clone());
        assert_eq!(count.wakes(), 0, "the last handle has not gone");
        drop(buf);
        assert_eq!(count.wakes(), 1);
        waiting.await;
    });
}

#[test]
fn a_guard_or_a_job_keeps_a_waiter_waiting() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let rest: Vec<_> = std::iter::from_fn(|| bench.pool.try_alloc().ok()).collect();
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(src, dst).owned());
        poll_pending(copy.as_mut());
        drop(copy);
        let mut waiting = Box::pin(bench.pool.alloc());
        assert!(poll(waiting.as_mut()).is_pending());
        drop(hold);
        in_time("the orphan's Bufs come home", waiting).await;
        drop(rest);
        bench.all_back().await;
    });
}

#[test]
fn waiters_are_served_in_order() {
    run(async {
        let pool = pool(2);
        let mut held: VecDeque<_> = (0..2).map(|_| pool.try_alloc().unwrap()).collect();
        let order = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let (pool, order) = (pool.clone(), order.clone());
                tokio::spawn(async move {
                    let buf = pool.alloc().await;
                    let place = order.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    drop(buf);
                    place
                })
            })
            .collect();
        // One turn of the runtime is 61 polls.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        held.clear();
        for (i, task) in tasks.into_iter().enumerate() {
            let place = in_time("a waiter", task).await.unwrap();
            // Under load, a task that is not polled for 10 ms may be passed.
            if std::env::var_os("TOKIO_DOCA_TEST_QUIET").is_some() {
                assert_eq!(place, i);
            }
        }
        assert_eq!(free_bufs(&pool), 2);
    });
}

#[test]
fn a_thousand_tasks_share_a_small_pool() {
    for elements in [1, 2, 7] {
        let pool = pool(elements);
        let out = Arc::new(AtomicUsize::new(0));
        workers().block_on(async {
            let tasks: Vec<_> = (0..1000)
                .map(|i| {
                    let (pool, out) = (pool.clone(), out.clone());
                    tokio::spawn(async move {
                        for _ in 0..5 {
                            let buf = pool.alloc().await;
                            assert!(out.fetch_add(1, Ordering::SeqCst) < elements);
                            if i % 3 == 0 {
                                tokio::task::yield_now().await;
                            }
                            out.fetch_sub(1, Ordering::SeqCst);
                            drop(buf);
                        }
                    })
                })
                .collect();
            for task in tasks {
                in_time("a task", task).await.unwrap();
            }
        });
        assert_eq!(free_bufs(&pool), elements);
    }
}

#[test]
fn a_woken_waiter_that_is_dropped_passes_it_on() {
    run(async {
        // The other Buf stays out, so that no later return makes up for one that is not passed on.
        let pool = pool(2);
        let _kept = pool.try_alloc().unwrap();
        let buf = pool.try_alloc().unwrap();
        let (mut first, mut second) = (Box::pin(pool.alloc()), Box::pin(pool.alloc()));
        assert!(poll(first.as_mut()).is_pending());
        let count = Count::new();
        let waker = count.waker();
        let mut cx = Context::from_waker(&waker);
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(buf);
        drop(first);
        assert!(count.wakes() > 0);
        in_time("the second", second).await;
    });
}

/// Starts `count` futures that are not polled again, and a task that waits behind them.
async fn behind_idle_ones(
    pool: &BufPool,
    count: usize,
) -> (Vec<Pin<Box<Alloc<'_>>>>, JoinHandle<()>) {
    let mut waiting: Vec<_> = (0..count).map(|_| Box::pin(pool.alloc())).collect();
    for future in &mut waiting {
        assert!(poll(future.as_mut()).is_pending());
    }
    let live = pool.clone();
    let live = tokio::spawn(async move { drop(live.alloc().await) });
    tokio::task::yield_now().await;
    (waiting, live)
}

#[test]
fn a_waiter_that_nobody_polls_stops_nobody() {
    for elements in [1, 2, 5] {
        for dead in [1, 2, 40] {
            run(async {
                let pool = pool(elements);
                let bufs: Vec<_> = (0..elements).map(|_| pool.try_alloc().unwrap()).collect();
                let (waiting, live) = behind_idle_ones(&pool, dead).await;
                drop(bufs);
                in_time("behind those that nobody polls", live)
                    .await
                    .unwrap();
                in_time("after they were woken", pool.alloc()).await;
                drop(waiting);
                assert_eq!(free_bufs(&pool), elements);
            });
        }
    }
}

/// Another element is out for good, so that no later return makes up for waiters that are not
/// polled.
#[test]
fn waiters_that_nobody_polls_stop_nobody_while_another_buf_is_out_for_good() {
    for idle in [1, 2, 3, 100] {
        run(async {
            let pool = pool(2);
            let _kept = pool.try_alloc().unwrap();
            let buf = pool.try_alloc().unwrap();
            let (waiting, live) = behind_idle_ones(&pool, idle).await;
            drop(buf);
            in_time("behind those that nobody polls", live)
                .await
                .unwrap();
            in_time("one that came later", pool.alloc()).await;
            drop(waiting);
        });
    }
}

#[test]
fn buffered_streams_that_hold_waiters_do_not_lock_up() {
    run(async {
        let pool = pool(3);
        let total = stream::iter(0..200)
            .map(|_| async {
                let buf = pool.alloc().await;
                tokio::task::yield_now().await;
                drop(buf);
                1
            })
            .buffered(16)
            .fold(0, async |sum, one| {
                // While this waits, the stream is not polled, and so its other waiters are not.
                drop(pool.alloc().await);
                sum + one
            });
        assert_eq!(in_time("the stream", total).await, 200);
    });
}

#[test]
fn a_waiters_place_may_be_given_up_in_every_state() {
    run(async {
        let pool = pool(1);
        drop(pool.alloc());
        let buf = pool.try_alloc().unwrap();
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(pool.alloc())).collect();
        for future in &mut waiting {
            assert!(poll(future.as_mut()).is_pending());
            assert!(poll(future.as_mut()).is_pending(), "twice");
        }
        drop(waiting.remove(2));
        drop(waiting.remove(3));
        drop(buf);
        drop(waiting.remove(0));
        let got = in_time("the first that is left", waiting.remove(0)).await;
        drop(got);
        drop(waiting);
        assert_eq!(free_bufs(&pool), 1);
    });
}

#[test]
fn elements_returned_on_other_threads_wake_waiters() {
    let pool = pool(4);
    workers().block_on(async {
        for _ in 0..2000 {
            let buf = in_time("a Buf", pool.alloc()).await;
            std::mem::drop(tokio::spawn(async move { drop(buf) }));
        }
    });
    block_until("all are home", || free_bufs(&pool) == 4);
}

#[test]
fn the_pool_may_go_before_its_bufs() {
    let pool = pool(2);
    let (a, b) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
    let mmap = pool.mmap().clone();
    drop(pool);
    a.extend_from_slice(b"abc").unwrap();
    drop(a);
    let build = || BufPool::builder(&mmap).element_size(64).build();
    rejected(build(), ErrorKind::InUse);
    drop(b);
    build().unwrap();
}

#[test]
fn a_pool_that_does_not_fit_is_refused_with_the_numbers() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap(8192);
    let pool = || BufPool::builder(&mmap);
    let invalid = ErrorKind::InvalidValue;
    mentions(
        &rejected(pool().range(0..8193).build(), invalid),
        &[8193, 8192],
    );
    mentions(
        &rejected(pool().element_size(8193).build(), invalid),
        &[8193, 8192],
    );
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for range in [5..5, 6..5, usize::MAX..0, 8192..8193] {
        rejected(pool().range(range).build(), invalid);
    }
    rejected(pool().range(..=usize::MAX).build(), invalid);
    rejected(pool().element_size(0).build(), invalid);
    rejected(pool().element_size(1 << 60).build(), invalid);
    rejected(pool().element_size(usize::MAX).build(), invalid);
    rejected(pool().alignment(0).build(), invalid);
    rejected(pool().alignment(3).build(), invalid);
    rejected(pool().alignment(1 << 63).build(), invalid);
    rejected(
        pool().element_size(usize::MAX).alignment(1 << 63).build(),
        invalid,
    );
    rejected(
        pool().range(1..64).element_size(64).alignment(64).build(),
        invalid,
    );
    // The refused pools have claimed nothing.
    assert_eq!(pool().build().unwrap().elements(), 2);
}

/// A thread that finds the queue empty clears the mark for waiters, at the moment when a waiter
/// arrives.
#[test]
fn a_pools_waiter_that_comes_while_the_mark_is_cleared_is_woken() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
    for _ in 0..2_000 {
        let pool = BufPool::builder(&mmap).range(0..8192).build().unwrap();
        let (first, second) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        // This wait is dropped at once, so the mark for waiters stays set although none waits.
        assert!(poll(Box::pin(pool.alloc()).as_mut()).is_pending());
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
            let count = Count::new();
            let waker = count.waker();
            let mut alloc = Box::pin(pool.alloc());
            let mut cx = Context::from_waker(&waker);
            assert!(alloc.as_mut().poll(&mut cx).is_pending());
            drop(second);
            block_until("the waiter of a free element is woken", || {
                count.wakes() > 0
            });
            drop(taken);
        });
    }
}

/// Two threads return the last Bufs of a dropped pool at once: the last one frees it, and the pool
/// is not read after that (ASan would detect it).
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

#[test]
fn the_most_that_were_out_does_not_fall_while_they_go_home() {
    const BUFS: usize = 4096;
    for _ in 0..8 {
        let pool = pool(BUFS);
        let bufs: Vec<_> = (0..BUFS).map(|_| pool.try_alloc().unwrap()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(bufs));
            while pool.stats().free < BUFS {
                assert_eq!(pool.stats().high_water, BUFS);
            }
        });
    }
}

#[test]
fn the_stats_tell_what_is_free_the_most_that_were_out_and_who_waits() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let pool = BufPool::builder(&bench.mmap(4 * ELEMENT)).build().unwrap();
    let stats = || {
        let stats = pool.stats();
        (stats.free, stats.high_water, stats.waiting)
    };
    assert_eq!(stats(), (4, 0, 0));
    for _ in 0..3 {
        let (_one, _other) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        assert_eq!(stats(), (2, 2, 0));
    }
    assert_eq!(stats(), (4, 2, 0), "two at most, however often");
    let mut all: Vec<_> = (0..4).map(|_| pool.try_alloc().unwrap()).collect();
    let mut waits = Box::pin(pool.alloc());
    run(async { poll_pending(waits.as_mut()) });
    assert_eq!(stats(), (0, 4, 1));
    drop(waits);
    all.truncate(1);
    assert_eq!(stats(), (3, 4, 0));
    // A job, a guard or a `Bytes` holds a Buf as a handle does.
    let bytes = {
        let buf = all.pop().unwrap();
        buf.extend_from_slice(b"abc").unwrap();
        buf.into_bytes().unwrap()
    };
    assert_eq!(stats(), (3, 4, 0));
    drop(bytes);
    assert_eq!(stats(), (4, 4, 0));
}
