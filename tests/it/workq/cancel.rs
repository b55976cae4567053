//! A copy in flight that is dropped, timed out, aborted or unwound by a panic completes; its memory
//! stays leased until then, and its slot, leases and Bufs are returned exactly once.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{join_all, select_all};
use futures::stream::{FuturesUnordered, StreamExt};
use support::*;
use tokio_doca::soft::Fault;
use tokio_doca::{Buf, ErrorKind};

/// Returns a source, and a destination filled with a canary.
fn pair(bench: &Bench) -> (Buf, Buf) {
    let dst = bench.filled(&[0xca; ELEMENT]);
    dst.set_data(0, 0).unwrap();
    (bench.filled(&pattern(5, ELEMENT)), dst)
}

/// Asserts that the Bufs are leased by a job in flight, which has not written yet.
fn assert_in_flight(src: &Buf, dst: &Buf) {
    refused(dst.data(), ErrorKind::InUse);
    refused(dst.set_data(0, ELEMENT), ErrorKind::InUse);
    refused(src.data_mut(), ErrorKind::InUse);
    assert_eq!(rooms(dst), (0, 0, ELEMENT));
    assert_eq!(&src.data().unwrap()[..], &pattern(5, ELEMENT)[..]);
}

/// Waits until the job has completed, and checks what it wrote.
async fn assert_done(bench: &Bench, src: Buf, dst: Buf) {
    until("the Leases come back", || dst.data().is_ok()).await;
    assert_eq!(bytes(&dst), pattern(5, ELEMENT));
    src.data_mut().unwrap().fill(0);
    drop((src, dst));
    bench.all_back().await;
    bench.works().await;
    assert_eq!(bench.workq.in_flight(), 0);
}

#[test]
fn dropped_copy_keeps_memory_until_completion() {
    each(async |bench| {
        let (src, dst) = pair(bench);
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        assert_in_flight(&src, &dst);
        drop(copy);
        assert_in_flight(&src, &dst);
        assert_eq!(bench.workq.in_flight(), 1);
        drop(hold);
        assert_done(bench, src, dst).await;
    });
}

#[test]
fn dropped_copy_keeps_bufs_that_nobody_else_has() {
    each(async |bench| {
        let (src, dst) = pair(bench);
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(src, dst).owned());
        poll_pending(copy.as_mut());
        drop(copy);
        let all = bench.pool.elements();
        assert_eq!(bench.free_bufs(), all - 2);
        // Writes all other Bufs of the pool; the two that are in flight are not among them.
        let rest: Vec<Buf> = std::iter::from_fn(|| bench.pool.try_alloc().ok()).collect();
        for buf in &rest {
            buf.extend_from_slice(&[0xee; ELEMENT]).unwrap();
        }
        drop(hold);
        until("the two come home", || bench.free_bufs() == 2).await;
        for buf in &rest {
            assert_eq!(bytes(buf), [0xee; ELEMENT]);
        }
        drop(rest);
        bench.all_back().await;
    });
}

#[test]
fn timed_out_copy_goes_on() {
    each(async |bench| {
        let (src, dst) = pair(bench);
        let hold = bench.hold();
        let copy = bench.dma.copy(&src, &dst);
        let late = tokio::time::timeout(Duration::from_millis(2), copy).await;
        assert!(late.is_err());
        assert_in_flight(&src, &dst);
        drop(hold);
        assert_done(bench, src, dst).await;
    });
}

#[test]
fn a_task_that_panics_leaves_an_orphan_and_no_damage() {
    each(async |bench| {
        let (src, dst) = pair(bench);
        let hold = bench.hold();
        let copy = bench.dma.copy(src.clone(), dst.clone()).owned();
        let task = tokio::spawn(async move {
            let mut copy = Box::pin(copy);
            poll_pending(copy.as_mut());
            panic!("in flight");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert_in_flight(&src, &dst);
        drop(hold);
        assert_done(bench, src, dst).await;
    });
}

#[test]
fn an_aborted_task_leaves_an_orphan_and_no_damage() {
    each(async |bench| {
        let (src, dst) = pair(bench);
        let hold = bench.hold();
        let task = tokio::spawn(bench.dma.copy(src.clone(), dst.clone()).owned());
        until("it is in flight", || bench.workq.in_flight() == 1).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_in_flight(&src, &dst);
        drop(hold);
        assert_done(bench, src, dst).await;
    });
}

#[test]
fn a_try_copy_that_nobody_polls_is_an_orphan_too() {
    each(async |bench| {
        let (src, dst) = pair(bench);
        let hold = bench.hold();
        drop(bench.dma.copy(&src, &dst).start().unwrap());
        assert_in_flight(&src, &dst);
        drop(hold);
        assert_done(bench, src, dst).await;
    });
}

#[test]
fn an_orphan_that_fails_leaves_the_rooms() {
    each(async |bench| {
        let (src, dst) = pair(bench);
        let fault = Fault::Error(ErrorKind::IoFailed, 1);
        bench.soft.faults().push(fault);
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        drop(copy);
        drop(hold);
        until("the Leases come back", || dst.data_mut().is_ok()).await;
        dst.set_data(0, ELEMENT).unwrap();
        assert_eq!(bytes(&dst), [0xca; ELEMENT]);
        drop((src, dst));
        bench.all_back().await;
    });
}

#[test]
fn thirty_two_in_flight_are_dropped_in_any_mixture() {
    each(async |bench| {
        for round in 0..20_u32 {
            let hold = bench.hold();
            let pairs: Vec<(Buf, Buf)> = (0..32u8)
                .map(|i| (bench.filled(&pattern(i, 100)), bench.empty()))
                .collect();
            let mut copies: Vec<_> = pairs
                .iter()
                .map(|(src, dst)| Box::pin(bench.dma.copy(src, dst)))
                .collect();
            for copy in &mut copies {
                poll_pending(copy.as_mut());
            }
            assert_eq!(bench.workq.in_flight(), 32);
            let again = bench.dma.copy(&pairs[0].0, &pairs[0].1).start();
            refused(again, ErrorKind::InUse);
            let mut place = 0;
            copies.retain(|_| {
                place += 1;
                (round.wrapping_mul(2_654_435_761) >> (place % 32)) & 1 == 0
            });
            drop(hold);
            for result in join_all(copies).await {
                assert_eq!(result, Ok(100));
            }
            for (i, (_, dst)) in pairs.iter().enumerate() {
                until("each is over", || dst.data().is_ok()).await;
                assert_eq!(bytes(dst), pattern(i as u8, 100));
            }
            drop(pairs);
            bench.all_back().await;
        }
    });
}

#[test]
fn a_copy_may_be_dropped_in_every_state() {
    let depth_one: Vec<Config> = configs().iter().map(|c| c.depth(1)).collect();
    each_of(&depth_one, async |bench| {
        let dma = &bench.dma;
        // Dropped before it was polled.
        let (src, dst) = pair(bench);
        drop(dma.copy(&src, &dst));
        src.data_mut().unwrap()[0] = pattern(5, 1)[0];

        // Dropped while it waits for a slot, with nothing leased; and dropped after it was notified
        // of a slot.
        let (other_src, other_dst) = pair(bench);
        let hold = bench.hold();
        let mut first = Box::pin(dma.copy(&src, &dst));
        poll_pending(first.as_mut());
        let mut queued = Box::pin(dma.copy(&other_src, &other_dst));
        let mut told = Box::pin(dma.copy(&other_src, &other_dst));
        poll_pending(queued.as_mut());
        poll_pending(told.as_mut());
        other_dst.set_data(0, 0).unwrap();
        drop(queued);
        assert_eq!(bench.workq.in_flight(), 1);
        drop(hold);
        assert_eq!(first.await, Ok(ELEMENT));
        drop(told);
        assert_eq!(bench.workq.in_flight(), 0);

        // Dropped after the job has completed, before the result was fetched.
        let hold = bench.hold();
        dst.reset_data_len().unwrap();
        let mut done = Box::pin(dma.copy(&src, &dst));
        poll_pending(done.as_mut());
        drop(hold);
        if bench.config.mode == tokio_doca::Mode::EventDriven {
            until("it is over", || dst.data().is_ok()).await;
            assert_eq!(bench.workq.in_flight(), 1);
        }
        drop(done);
        until("the Slot is free", || bench.workq.in_flight() == 0).await;

        // Dropped after the result was fetched.
        dst.reset_data_len().unwrap();
        let mut finished = Box::pin(dma.copy(&src, &dst));
        assert_eq!(finished.as_mut().await, Ok(ELEMENT));
        drop(finished);

        // Dropped after it was refused.
        let mut refusal = Box::pin(dma.copy(&src, &dst));
        refused(refusal.as_mut().await, ErrorKind::InvalidValue);
        drop(refusal);

        drop((src, dst, other_src, other_dst));
        bench.all_back().await;
        bench.works().await;
    });
}

#[test]
fn losers_of_a_select_are_orphans() {
    each(async |bench| {
        for round in 0..50 {
            bench.soft.faults().push(Fault::Pass);
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            tokio::select! {
                biased;
                result = bench.dma.copy(&src, &dst) => assert_eq!(result, Ok(3)),
                () = tokio::task::yield_now() => {}
            }
            drop((src, dst));
            let pairs: Vec<_> = (0..4)
                .map(|_| (bench.filled(b"abc"), bench.empty()))
                .collect();
            let all = pairs
                .iter()
                .map(|(src, dst)| Box::pin(bench.dma.copy(src, dst)));
            let (first, _, losers) = select_all(all).await;
            assert_eq!(first, Ok(3), "{round}");
            drop(losers);
            drop(pairs);
            bench.all_back().await;
        }
    });
}

#[test]
fn an_unordered_set_is_dropped_half_way() {
    each(async |bench| {
        for take in [0, 1, 5, 20] {
            let set: FuturesUnordered<_> = (0..20)
                .map(|_| bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned())
                .collect();
            let got: Vec<_> = set.take(take).collect().await;
            assert_eq!(got, vec![Ok(3); take]);
            bench.all_back().await;
        }
    });
}

#[test]
fn orphans_race_with_their_completions() {
    for config in configs() {
        let bench = Arc::new(Bench::new(config));
        workers().block_on(async {
            let tasks: Vec<_> = (0..16u64)
                .map(|seed| {
                    let bench = Arc::clone(&bench);
                    tokio::spawn(async move {
                        for i in 0..100 {
                            let (src, dst) = (bench.pool.alloc().await, bench.pool.alloc().await);
                            src.extend_from_slice(&pattern(seed as u8, 512)).unwrap();
                            let mut copy = Box::pin(bench.dma.copy(&src, &dst));
                            // Polls as often as the round says, then drops the future in whatever
                            // state it is.
                            for _ in 0..(seed + i) % 4 {
                                if let Poll::Ready(result) = poll(copy.as_mut()) {
                                    assert_eq!(result, Ok(512));
                                    break;
                                }
                                tokio::task::yield_now().await;
                            }
                            drop(copy);
                        }
                    })
                })
                .collect();
            for task in tasks {
                in_time("a task", task).await.unwrap();
            }
            bench.all_back().await;
            bench.works().await;
        });
    }
}

#[test]
fn a_dropped_workq_gives_the_bufs_back_after_its_last_job() {
    for config in configs() {
        run(async {
            let Bench {
                soft,
                pool,
                workq,
                dma,
                ..
            } = Bench::new(config);
            let hold = soft.faults().hold();
            let all = pool.elements();
            let mut copies: Vec<_> = (0..8)
                .map(|_| {
                    let src = pool.try_alloc().unwrap();
                    src.extend_from_slice(b"abc").unwrap();
                    Box::pin(dma.copy(src, pool.try_alloc().unwrap()).owned())
                })
                .collect();
            for copy in &mut copies {
                poll_pending(copy.as_mut());
            }
            drop((dma, workq));
            // The futures keep the WorkQ; dropping the last one does not wait either.
            drop(copies);
            assert_eq!(free_bufs(&pool), all - 16, "{config:?}");
            drop(hold);
            until("all are home", || free_bufs(&pool) == all).await;
        });
    }
}

// The only runtime with which the WorkQ was registered has gone, and the `Op` is dropped on another
// one without a poll.
#[test]
fn an_op_dropped_after_its_runtime_has_gone_gives_its_bufs_back() {
    for config in configs() {
        let bench = Bench::new(config);
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned());
        runtime().block_on(async { poll_pending(copy.as_mut()) });
        run(async {
            drop(copy);
            drop(hold);
            bench.all_back().await;
        });
    }
}

#[test]
fn a_dropped_op_wakes_nobody() {
    each_of(&configs()[..2], async |bench| {
        let (src, dst) = pair(bench);
        let hold = bench.hold();
        let count = Count::new();
        let waker = count.waker();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        let mut cx = Context::from_waker(&waker);
        assert!(copy.as_mut().poll(&mut cx).is_pending());
        let before = count.wakes();
        drop(copy);
        drop(hold);
        assert_done(bench, src, dst).await;
        assert_eq!(count.wakes(), before);
        assert_eq!(Arc::strong_count(&count), 2, "and its waker was dropped");
    });
}
