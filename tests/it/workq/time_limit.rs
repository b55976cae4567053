//! Time limits of operations: what is late goes on without its future, and nothing else is held up.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{join, join_all};
use support::events::between;
use support::loopback::Loopback;
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::error::{JobError, Reason};
use tokio_doca::soft::{Hold, Limits, Soft};
use tokio_doca::{Buf, Dma, ErrorKind, Mode, WorkQ};

const SHORT: Duration = Duration::from_millis(5);

fn assert_late(result: Result<usize, JobError>) {
    let error = result.unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::TimedOut, Reason::TimeLimit)
    );
    assert!(error.to_string().contains("await Buf::released"), "{error}");
}

fn pair(bench: &Bench) -> (Buf, Buf) {
    (bench.filled(b"hello"), bench.empty())
}

/// A late copy goes on, and its memory can be had afterwards.
async fn goes_on(bench: &Bench, hold: Hold, dst: &Buf) {
    refused(dst.data(), ErrorKind::InUse);
    assert_eq!(bench.workq.in_flight(), 1);
    drop(hold);
    in_time("its end", dst.released()).await;
    assert_eq!(bytes(dst), b"hello");
    until("the Slot is free", || bench.workq.in_flight() == 0).await;
}

#[test]
fn a_late_copy_fails_and_goes_on() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = pair(bench);
        let copy = bench.dma.copy(&src, &dst).time_limit(SHORT);
        assert_late(in_time("the limit", copy).await);
        goes_on(bench, hold, &dst).await;
    });
}

#[test]
fn what_was_started_or_is_owned_has_the_limit_too() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = pair(bench);
        let copy = bench.dma.copy(&src, &dst).time_limit(SHORT);
        assert_late(in_time("started", copy.start().unwrap()).await);
        goes_on(bench, hold, &dst).await;

        let hold = bench.hold();
        let (src, dst) = pair(bench);
        let copy = bench.dma.copy(&src, &dst).time_limit(SHORT).owned();
        assert_late(in_time("owned", tokio::spawn(copy)).await.unwrap());
        goes_on(bench, hold, &dst).await;
    });
}

#[test]
fn a_future_that_is_over_keeps_no_waker() {
    each(async |bench| {
        for (limit, late) in [(LIMIT, false), (SHORT, true)] {
            let mut hold = Some(bench.hold());
            let (src, dst) = pair(bench);
            let count = Count::new();
            let waker = count.waker();
            let cx = &mut Context::from_waker(&waker);
            let mut copy = Box::pin(bench.dma.copy(&src, &dst).time_limit(limit));
            assert!(copy.as_mut().poll(cx).is_pending());
            hold.take_if(|_| !late);
            let mut ended = None;
            until("it is over", || {
                if let Poll::Ready(end) = copy.as_mut().poll(cx) {
                    ended = Some(end);
                }
                ended.is_some()
            })
            .await;
            assert_eq!(ended.unwrap().is_err(), late);
            drop((waker, hold));
            if late {
                // The Slot of the job that goes on has the last waker until its end.
                in_time("its end", dst.released()).await;
                until("its Slot is free", || bench.workq.in_flight() == 0).await;
            }
            assert_eq!(Arc::strong_count(&count), 1, "it is not dropped");
            drop(copy);
        }
    });
}

#[test]
fn a_poll_that_spins_sets_no_timer() {
    let spin = Duration::from_secs(1);
    let bench = Bench::new(Config::new(true, Mode::Hybrid { spin }));
    run(async {
        let hold = bench.hold();
        let (src, dst) = pair(&bench);
        let count = Count::new();
        let waker = count.waker();
        let cx = &mut Context::from_waker(&waker);
        let mut copy = Box::pin(bench.dma.copy(&src, &dst).time_limit(LIMIT));
        assert!(copy.as_mut().poll(cx).is_pending());
        assert_eq!(count.wakes(), 1, "it polls again by itself");
        drop(waker);
        assert_eq!(
            Arc::strong_count(&count),
            1,
            "nor is it in the timer's line"
        );
        drop(hold);
        assert_eq!(in_time("the copy", copy).await, Ok(5));
    });
}

#[test]
fn what_is_over_in_time_is_not_late() {
    each(async |bench| {
        let pairs: Vec<_> = (0..16).map(|_| pair(bench)).collect();
        for _ in 0..20 {
            let copies = pairs.iter().map(|(src, dst)| {
                dst.reset_data_len().unwrap();
                bench.dma.copy(src, dst).time_limit(LIMIT)
            });
            let copied = in_time("all of them", join_all(copies)).await;
            assert!(copied.into_iter().all(|copied| copied == Ok(5)));
        }
    });
}

#[test]
fn a_late_operation_leaves_the_line_to_those_behind_it() {
    let depth_one: Vec<Config> = configs().iter().map(|c| c.depth(1)).collect();
    each_of(&depth_one, async |bench| {
        let hold = bench.hold();
        let pairs: Vec<_> = (0..3).map(|_| pair(bench)).collect();
        let copy = |at: usize| bench.dma.copy(&pairs[at].0, &pairs[at].1);
        let first = copy(0).start().unwrap();
        let mut late = Box::pin(copy(1).time_limit(4 * SHORT));
        poll_pending(late.as_mut());
        let mut behind = Box::pin(copy(2));
        poll_pending(behind.as_mut());
        assert_eq!(bench.workq.stats().waiting, 2);
        assert_late(in_time("in line", late).await);
        assert_eq!(bench.workq.stats().waiting, 1);
        pairs[1].1.reset_data_len().unwrap();
        drop(hold);
        assert_eq!(in_time("the first", first).await, Ok(5));
        assert_eq!(in_time("the one behind", behind).await, Ok(5));
        assert_eq!(pairs[1].1.data_len(), 0, "it was never submitted");
    });
}

#[test]
fn the_limit_of_a_workq_is_for_all_that_say_no_other() {
    each(async |bench| {
        let mode = bench.workq.mode();
        let workq = WorkQ::builder().mode(mode).time_limit(SHORT).build();
        let workq = workq.unwrap();
        let dma = Dma::builder(&bench.device).attach(&workq).unwrap();
        let hold = bench.hold();
        let (src, dst, other) = (bench.filled(b"hello"), bench.empty(), bench.empty());
        let mut patient = Box::pin(dma.copy(&src, &other).time_limit(LIMIT));
        poll_pending(patient.as_mut());
        assert_late(in_time("the limit", dma.copy(&src, &dst)).await);
        poll_pending(patient.as_mut());
        drop(hold);
        assert_eq!(in_time("the patient one", patient).await, Ok(5));
        in_time("the late one", dst.released()).await;
    });
}

/// Jobs on a WorkQ with a limit: the second was begun after the first, and so after all before.
async fn twice_late<T: std::fmt::Debug>(mut job: impl AsyncFnMut() -> Result<T, JobError>) {
    for _ in 0..2 {
        let late = in_time("the limit", job()).await.unwrap_err();
        assert_eq!(late.reason(), Reason::TimeLimit);
    }
}

#[test]
fn a_wait_that_gets_values_has_no_limit_of_its_workq() {
    for mode in modes() {
        let soft = Soft::builder().defer(true).limits(Limits::bluefield2());
        let bench = Bench::with_soft(Config::new(true, mode), soft.build());
        let workq = WorkQ::builder().mode(mode).depth(1).time_limit(SHORT);
        let workq = workq.build().unwrap();
        let event = between(&bench.device).attach(&workq).unwrap();
        assert_eq!(event.caps().max_wait, None);
        let dma = Dma::builder(&bench.device).attach(&workq).unwrap();
        run(async {
            // It has the only Slot.
            let hold = bench.hold();
            let (src, dst) = pair(&bench);
            drop(dma.copy(&src, &dst).start().unwrap());
            let mut wait = Box::pin(event.wait_gt(0));
            poll_pending(wait.as_mut());
            twice_late(async || event.get().await).await;
            poll_pending(wait.as_mut());
            drop(hold);
            dst.released().await;
            assert_eq!(
                in_time("the set", event.set(1).time_limit(LIMIT)).await,
                Ok(())
            );
            assert_eq!(in_time("the wait", wait).await, Ok(1));
        });
    }
}

#[test]
fn a_close_has_no_limit_of_its_workq() {
    for mode in modes() {
        let (device, setup) = (Loopback::device(false).1, Setup::new(true, mode));
        let workq = || WorkQ::builder().mode(mode);
        let limited = workq().time_limit(SHORT).build().unwrap();
        let here = Side::on(&device, &limited, setup);
        let there = Side::on(&device, &workq().build().unwrap(), setup);
        connect(&here.rdma, &there.rdma);
        run(async {
            // The peer has posted no receive.
            drop(here.rdma.send(here.filled(b"first")).start().unwrap());
            let mut close = Box::pin(here.rdma.close());
            poll_pending(close.as_mut());
            twice_late(async || here.rdma.send(here.filled(b"late")).await).await;
            poll_pending(close.as_mut());
            let both = join(there.recv(), close);
            let (received, closed) = in_time("the close", both).await;
            assert_eq!(received.unwrap(), b"first");
            closed.unwrap();
        });
    }
}

#[test]
fn no_runtime_is_needed() {
    let modes = modes()
        .into_iter()
        .chain([Mode::Hybrid { spin: SHORT / 5 }]);
    for mode in modes {
        let bench = Bench::new(Config::new(true, mode));
        bench.workq.block_on(async {
            let hold = bench.hold();
            let (src, dst) = pair(&bench);
            let limits = [3, 1, 2].map(|times| {
                let dst = bench.empty();
                let src = bench.filled(b"hello");
                bench.dma.copy(src, dst).time_limit(times * SHORT).owned()
            });
            for late in join_all(limits).await {
                assert_late(late);
            }
            assert_late(bench.dma.copy(&src, &dst).time_limit(Duration::ZERO).await);
            drop(hold);
            dst.released().await;
            assert_eq!(bytes(&dst), b"hello");
        });
    }
}

#[test]
fn a_runtime_without_a_timer_will_do() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    runtime.block_on(async {
        let hold = bench.hold();
        let (src, dst) = pair(&bench);
        assert_late(bench.dma.copy(&src, &dst).time_limit(SHORT).await);
        drop(hold);
        dst.released().await;
    });
}
