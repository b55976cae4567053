//! Wakers that panic, drop values or poll again, and which of several waiting tasks is woken.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures::stream::{StreamExt, iter};
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::graph::RunError;
use tokio_doca::soft::Soft;
use tokio_doca::{BufPool, Mode, error::JobError, graph::Graph};

type Running = Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>>;
type Copying = Pin<Box<dyn Future<Output = Result<usize, JobError>> + Send>>;

fn copying(bench: &Bench) -> Copying {
    Box::pin(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned())
}

fn poll_with(copy: &mut Copying, waker: &Waker) -> Poll<Result<usize, JobError>> {
    copy.as_mut().poll(&mut Context::from_waker(waker))
}

/// Returns event-driven configurations, in which the device wakes the tasks.
fn event(depth: u32) -> [Config; 2] {
    [false, true].map(|defer| Config::new(defer, Mode::EventDriven).depth(depth))
}

#[test]
fn a_waker_that_panics_stops_nobody_else() {
    each_of(&event(32), async |bench| {
        let hold = bench.hold();
        let panics = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&panics);
        let bad = Call::waker(move || {
            seen.fetch_add(1, Ordering::SeqCst);
            panic!("a waker of the user's");
        });
        let mut bad_ones: Vec<_> = (0..3).map(|_| copying(bench)).collect();
        let mut good_ones = Vec::new();
        for copy in &mut bad_ones {
            assert!(poll_with(copy, &bad).is_pending());
            good_ones.push(tokio::spawn(copying(bench)));
            tokio::task::yield_now().await;
        }
        drop(hold);
        for copy in good_ones {
            assert_eq!(in_time("a good one", copy).await.unwrap(), Ok(3));
        }
        until("all were woken", || panics.load(Ordering::SeqCst) == 3).await;
        for copy in bad_ones {
            assert_eq!(in_time("a bad one", copy).await, Ok(3));
        }
        bench.all_back().await;
        bench.engine_works().await;
    });
}

#[test]
fn a_waker_in_line_that_panics_stops_nobody_else() {
    each_of(&event(1), async |bench| {
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        let mut queued = copying(bench);
        let bad = Call::waker(|| panic!("a waker of the user's"));
        assert!(poll_with(&mut queued, &bad).is_pending());
        let next = tokio::spawn(copying(bench));
        tokio::task::yield_now().await;
        drop(hold);
        assert_eq!(in_time("the first", first).await, Ok(3));
        assert_eq!(in_time("the next", next).await.unwrap(), Ok(3));
        assert_eq!(in_time("the bad one", queued).await, Ok(3));
    });
}

#[test]
fn a_waiter_for_a_buf_whose_waker_panics_stops_nobody_else() {
    each_of(&configs()[..1], async |bench| {
        let mut all: Vec<_> = std::iter::from_fn(|| bench.pool.try_alloc().ok()).collect();
        let mut waiting = Box::pin(bench.pool.alloc());
        let bad = Call::waker(|| panic!("a waker of the user's"));
        let mut cx = Context::from_waker(&bad);
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(all.pop());
        in_time("the waiter", waiting).await;
        drop(all);
        assert_eq!(bench.free_bufs(), bench.pool.elements());
    });
}

/// A watcher's waker runs in the middle of a poll, on the thread that polls: if it panics, the
/// other operations of the WorkQ are notified all the same.
#[test]
fn a_watcher_of_a_state_whose_waker_panics_stops_nobody_else() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        run(async {
            let setup = Setup::new(false, mode);
            let (one, other) = (Side::new(setup), Side::new(setup));
            let mut watch = one.rdma.watch();
            let mut changed = Box::pin(watch.changed());
            let panics = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&panics);
            let bad = Call::waker(move || {
                seen.fetch_add(1, Ordering::SeqCst);
                panic!("a waker of the user's");
            });
            let mut cx = Context::from_waker(&bad);
            assert!(changed.as_mut().poll(&mut cx).is_pending());
            connect(&one.rdma, &other.rdma);
            let both = async { tokio::join!(one.send(b"abc"), other.recv()) };
            assert_eq!(
                in_time("a message", both).await,
                (Ok(()), Ok(b"abc".to_vec()))
            );
            assert_eq!(panics.load(Ordering::SeqCst), 1);
        });
    }
}

/// Returns a run of some copies, one after the other, that owns its instance.
fn running(bench: &Bench, copies: usize) -> Running {
    let mut g = Graph::builder();
    let nodes: Vec<_> = (0..copies).map(|_| g.dma_copy(&bench.dma)).collect();
    nodes
        .windows(2)
        .for_each(|pair| g.depends(pair[1], pair[0]));
    let mut instance = g.build().unwrap().instance().unwrap();
    for node in nodes {
        let operands = (bench.filled(b"abc"), bench.empty());
        instance.set(node, operands).unwrap();
    }
    Box::pin(async move { instance.run().await })
}

#[test]
fn a_run_whose_waker_panics_goes_on_and_stops_nobody_else() {
    each_of(&event(32), async |bench| {
        let hold = bench.hold();
        let panics = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&panics);
        let bad = Call::waker(move || {
            seen.fetch_add(1, Ordering::SeqCst);
            panic!("a waker of the user's");
        });
        let mut bad_one = running(bench, 3);
        let polled = bad_one.as_mut().poll(&mut Context::from_waker(&bad));
        assert!(polled.is_pending());
        let good_one = tokio::spawn(running(bench, 3));
        tokio::task::yield_now().await;
        drop(hold);
        in_time("the good one", good_one).await.unwrap().unwrap();
        until("it was woken", || panics.load(Ordering::SeqCst) == 1).await;
        in_time("the bad one", bad_one).await.unwrap();
        bench.all_back().await;
    });
}

#[test]
fn a_waker_may_drop_the_run_that_it_wakes() {
    each_of(&event(32), async |bench| {
        let hold = bench.hold();
        let place = Arc::new(Mutex::new(None::<Running>));
        let mine = Arc::clone(&place);
        let waker = Call::waker(move || drop(mine.lock().unwrap().take()));
        let mut run = running(bench, 2);
        let polled = run.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        *place.lock().unwrap() = Some(run);
        drop(hold);
        until("it was dropped", || place.lock().unwrap().is_none()).await;
        in_time("a copy afterwards", bench.engine_works()).await;
        bench.all_back().await;
    });
}

struct PanicsOnDrop(Arc<AtomicBool>);

impl Wake for PanicsOnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        if !std::thread::panicking() {
            panic!("a waker of the user's, dropped");
        }
    }
}

// The thread that reaps an orphan drops its waker: a panic there must not block later polls.
#[test]
fn a_waker_that_panics_when_it_is_dropped_leaves_the_workq_alive() {
    each_of(&event(32), async |bench| {
        let hold = bench.hold();
        let dropped = Arc::new(AtomicBool::new(false));
        let mut copy = copying(bench);
        {
            let waker = Waker::from(Arc::new(PanicsOnDrop(Arc::clone(&dropped))));
            assert!(poll_with(&mut copy, &waker).is_pending());
            // Now the slot has the last clone of the waker.
        }
        drop(copy);
        drop(hold);
        let dma = bench.dma.clone();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        bench.soft.faults().push(tokio_doca::soft::Fault::Pass);
        // The reaping task may get the panic, so a separate task reaps.
        let other = tokio::spawn(async move { dma.copy(&src, &dst).await });
        let _ = in_time("who reaps", other).await;
        until("the waker was dropped", || dropped.load(Ordering::SeqCst)).await;
        in_time("a copy afterwards", bench.engine_works()).await;
        bench.all_back().await;
    });
}

#[test]
fn a_waker_may_drop_the_workq_and_all_that_is_left() {
    for flavour in [runtime(), workers()] {
        for config in event(32) {
            let pool = flavour.block_on(async {
                let bench = Bench::new(config);
                let pool = bench.pool.clone();
                let hold = bench.hold();
                let mut copy = copying(&bench);
                let last = Arc::new(Mutex::new(None));
                let woken = Count::new();
                let waker = Call::waker({
                    let (last, woken) = (Arc::clone(&last), Arc::clone(&woken));
                    move || {
                        // The lock must be free when the values that it guards are dropped.
                        let all = last.lock().unwrap().take();
                        drop(all);
                        woken.wake_by_ref();
                    }
                });
                assert!(poll_with(&mut copy, &waker).is_pending());
                *last.lock().unwrap() = Some((copy, bench));
                drop(hold);
                until("it was woken", || woken.wakes() > 0).await;
                pool
            });
            block_until("all Bufs are home", || free_bufs(&pool) == pool.elements());
        }
    }
}

#[test]
fn a_waker_may_poll_its_op_at_once() {
    each_of(&event(32), async |bench| {
        let hold = bench.hold();
        let slot: Arc<Mutex<Option<Copying>>> = Arc::new(Mutex::new(None));
        let result = Arc::new(Mutex::new(None));
        let waker = Call::waker({
            let (slot, result) = (Arc::clone(&slot), Arc::clone(&result));
            move || {
                // If the waker runs while the copy is polled, the lock is taken.
                let Ok(mut slot) = slot.try_lock() else {
                    return;
                };
                if let Some(mut copy) = slot.take() {
                    match poll(copy.as_mut()) {
                        Poll::Ready(done) => *result.lock().unwrap() = Some(done),
                        Poll::Pending => *slot = Some(copy),
                    }
                }
            }
        });
        let mut copy = copying(bench);
        assert!(poll_with(&mut copy, &waker).is_pending());
        *slot.lock().unwrap() = Some(copy);
        drop(hold);
        until("it was polled to its end", || {
            *result.lock().unwrap() == Some(Ok(3))
        })
        .await;
        bench.all_back().await;
    });
}

#[test]
fn a_waker_may_submit_the_next_copy() {
    each_of(&event(1), async |bench| {
        let done = Arc::new(AtomicUsize::new(0));
        let bench_parts = (bench.dma.clone(), bench.pool.clone());
        struct Chain {
            parts: (tokio_doca::Dma, tokio_doca::BufPool),
            copy: Mutex<Option<Copying>>,
            done: Arc<AtomicUsize>,
        }
        impl Wake for Chain {
            fn wake(self: Arc<Self>) {
                let Some(mut copy) = self.copy.try_lock().ok().and_then(|mut copy| copy.take())
                else {
                    return;
                };
                let waker = Waker::from(Arc::clone(&self));
                for _ in 0..1000 {
                    if poll_with(&mut copy, &waker).is_pending() {
                        *self.copy.lock().unwrap() = Some(copy);
                        return;
                    }
                    if self.done.fetch_add(1, Ordering::SeqCst) + 1 == 200 {
                        return;
                    }
                    copy = self.next();
                }
            }
        }
        impl Chain {
            fn next(&self) -> Copying {
                let (dma, pool) = &self.parts;
                let src = pool.try_alloc().unwrap();
                src.extend_from_slice(b"abc").unwrap();
                Box::pin(dma.copy(src, pool.try_alloc().unwrap()).owned())
            }
        }
        let chain = Arc::new(Chain {
            parts: bench_parts,
            copy: Mutex::new(None),
            done: Arc::clone(&done),
        });
        let first = chain.next();
        *chain.copy.lock().unwrap() = Some(first);
        let kick = Arc::clone(&chain);
        kick.wake();
        // A waker that ran while the copy was being polled did nothing, so the test tries again.
        until("the chain has run", || {
            if done.load(Ordering::SeqCst) < 200 {
                Arc::clone(&chain).wake();
            }
            done.load(Ordering::SeqCst) >= 200
        })
        .await;
        drop(chain);
        bench.all_back().await;
    });
}

#[test]
fn only_the_last_waker_is_woken() {
    each_of(&event(32), async |bench| {
        let hold = bench.hold();
        let mut copy = copying(bench);
        let counts: Vec<_> = (0..5).map(|_| Count::new()).collect();
        for count in &counts {
            assert!(poll_with(&mut copy, &count.waker()).is_pending());
        }
        for count in &counts[..4] {
            assert_eq!(Arc::strong_count(count), 1, "an old waker is let go");
        }
        drop(hold);
        until("it was woken", || counts[4].wakes() == 1).await;
        assert!(counts[..4].iter().all(|count| count.wakes() == 0));
        assert_eq!(poll_with(&mut copy, Waker::noop()), Poll::Ready(Ok(3)));
    });
}

#[test]
fn only_the_last_waker_in_line_is_woken() {
    each_of(&event(1), async |bench| {
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        let mut queued = copying(bench);
        let (old, new) = (Count::new(), Count::new());
        assert!(poll_with(&mut queued, &old.waker()).is_pending());
        assert!(poll_with(&mut queued, &new.waker()).is_pending());
        assert_eq!(Arc::strong_count(&old), 1);
        drop(hold);
        assert_eq!(first.await, Ok(3));
        until("it was woken", || new.wakes() > 0).await;
        assert_eq!(old.wakes(), 0);
        assert_eq!(in_time("it", queued).await, Ok(3));
    });
}

#[test]
fn a_pending_op_is_woken_once() {
    each_of(&event(32), async |bench| {
        for _ in 0..50 {
            let hold = bench.hold();
            let count = Count::new();
            let mut copy = copying(bench);
            assert!(poll_with(&mut copy, &count.waker()).is_pending());
            assert_eq!(count.wakes(), 0);
            drop(hold);
            until("it was woken", || count.wakes() > 0).await;
            assert_eq!(poll_with(&mut copy, Waker::noop()), Poll::Ready(Ok(3)));
            bench.engine_works().await;
            assert_eq!(count.wakes(), 1);
        }
    });
}

/// A task whose results are always ready lets other tasks run (Tokio's cooperative budget).
#[test]
fn a_loop_of_ready_copies_starves_nobody() {
    each(async |bench| {
        let turns = turns_of_another();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        // Small inline copies are cheap: a task yields after some thousand of them, instead of
        // after Tokio's 128.
        for _ in 0..20_000 {
            dst.reset_data_len().unwrap();
            bench.dma.copy(&src, &dst).await.unwrap();
        }
        let while_copying = turns();
        assert!(while_copying >= 5, "{while_copying} turns in 20,000 copies");
        for _ in 0..2000 {
            drop(bench.pool.alloc().await);
        }
        let while_taking = turns() - while_copying;
        assert!(while_taking >= 5, "{while_taking} turns in 2000 Bufs");
    });
}

/// A task whose large copies are done inline yields after some 8 MiB.
#[test]
fn a_loop_of_large_inline_copies_starves_nobody() {
    const LEN: usize = 256 << 10;
    each(async |bench| {
        let mmap = bench.mmap(2 * LEN);
        let pool = BufPool::builder(&mmap).element_size(LEN).build().unwrap();
        let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        src.extend_from_slice(&vec![7; LEN]).unwrap();
        let turns = turns_of_another();
        for _ in 0..200 {
            dst.reset_data_len().unwrap();
            bench.dma.copy(&src, &dst).await.unwrap();
        }
        let turns = turns();
        assert!(turns >= 5, "{turns} turns in 200 copies");
    });
}

/// Copies that are submitted and complete within the same poll let other tasks run too: without
/// engines the poll for the result makes the copy.
#[test]
fn a_loop_of_submitted_copies_starves_nobody() {
    for (mode, depth) in modes().into_iter().flat_map(|mode| [(mode, 1), (mode, 32)]) {
        let config = Config::new(true, mode).depth(depth);
        let soft = Soft::builder().defer(true).engines(0).build();
        let bench = Bench::with_soft(config, soft);
        run(async {
            let turns = turns_of_another();
            let pair = || (bench.filled(b"abc"), bench.empty());
            let pairs: Vec<_> = (0..8).map(|_| pair()).collect();
            for at_once in [1, 4] {
                let before = turns();
                let copies = pairs.iter().cycle().take(5_000).map(|(src, dst)| {
                    dst.reset_data_len().unwrap();
                    bench.dma.copy(src, dst)
                });
                let mut copies = pin!(iter(copies).buffered(at_once));
                while let Some(copied) = copies.next().await {
                    assert_eq!(copied, Ok(3));
                }
                let turns = turns() - before;
                assert!(turns >= 3, "{turns} turns, {at_once} at once, {config:?}");
            }
        });
    }
}

/// A task that retries again and again while another task uses the Buf lets other tasks run too.
#[test]
fn a_loop_of_refused_copies_starves_nobody() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let (held, is_held) = tokio::sync::oneshot::channel();
        let other = tokio::spawn({
            let dst = dst.clone();
            async move {
                let guard = dst.data_mut().unwrap();
                held.send(()).unwrap();
                tokio::task::yield_now().await;
                drop(guard);
            }
        });
        is_held.await.unwrap();
        let end = std::time::Instant::now() + LIMIT;
        while let Err(error) = bench.dma.copy(&src, &dst).await {
            assert_eq!(error.kind(), tokio_doca::ErrorKind::InUse);
            assert!(std::time::Instant::now() < end, "the other task never ran");
        }
        other.await.unwrap();
    });
}

#[test]
#[should_panic(expected = "polled after it had finished")]
fn an_op_that_is_polled_after_its_end_says_so() {
    let bench = Bench::new(configs()[0]);
    let mut copy = copying(&bench);
    assert_eq!(poll(copy.as_mut()), Poll::Ready(Ok(3)));
    let _ = poll(copy.as_mut());
}
