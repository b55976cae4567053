//! Injected faults: errors keep their kind and code, delays change the order, a hold stops
//! everything, and each job is counted.

use std::time::{Duration, Instant};

use futures::FutureExt;

use support::events::between;
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{
    Buf, Dma, ErrorKind, Mode, WorkQ,
    error::{JobError, Reason},
};

#[test]
fn a_scripted_error_keeps_its_kind_and_the_vendors_code() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        for (kind, vendor) in [
            (ErrorKind::IoFailed, 0x88),
            (ErrorKind::NotPermitted, 0),
            (ErrorKind::ConnectionReset, u64::MAX),
            (ErrorKind::Other(77), 1 << 60),
            (ErrorKind::Again, 3),
        ] {
            bench.soft.faults().push(Fault::Error(kind, vendor));
            let error = bench.dma.copy(&src, &dst).await.unwrap_err();
            assert_eq!((error.kind(), error.vendor_code()), (kind, Some(vendor)));
            assert!(
                error.to_string().contains(&format!("{vendor:#x}")),
                "{error}"
            );
        }
        dst.extend_from_slice(b"-").unwrap();
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(3));
        assert_eq!(bytes(&dst), b"-abc");
        drop((src, dst));
        bench.all_back().await;
    });
}

#[test]
fn the_script_is_taken_in_order_one_entry_a_job() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let faults = bench.soft.faults();
        faults.push(Fault::Pass);
        faults.push(Fault::Error(ErrorKind::IoFailed, 1));
        faults.push(Fault::Pass);
        faults.push(Fault::Error(ErrorKind::Driver, 2));
        let mut results = Vec::new();
        for _ in 0..6 {
            let result = bench.dma.copy(&src, &dst).await;
            results.push(result.map_err(|error| error.kind()));
        }
        let (io, driver) = (Err(ErrorKind::IoFailed), Err(ErrorKind::Driver));
        assert_eq!(results, [Ok(3), io, Ok(3), driver, Ok(3), Ok(3)]);
        assert_eq!(bytes(&dst), b"abcabcabcabc");
    });
}

#[test]
fn a_delayed_job_holds_up_nobody_behind_it() {
    each(async |bench| {
        let faults = bench.soft.faults();
        let hold = bench.hold();
        faults.push(Fault::Delay(Duration::from_secs(3600)));
        faults.push(Fault::Delay(Duration::from_millis(10)));
        let pairs: Vec<_> = (0..4u8)
            .map(|i| (bench.filled(&[i; 100]), bench.empty()))
            .collect();
        let mut copies: Vec<_> = pairs
            .iter()
            .map(|(src, dst)| Box::pin(bench.dma.copy(src, dst)))
            .collect();
        for copy in &mut copies {
            poll_pending(copy.as_mut());
        }
        let start = Instant::now();
        drop(hold);
        let mut late = copies.remove(0);
        for copy in copies {
            assert_eq!(in_time("behind it", copy).await, Ok(100));
        }
        assert!(start.elapsed() >= Duration::from_millis(10));
        for (i, (_, dst)) in pairs.iter().enumerate().skip(1) {
            assert_eq!(bytes(dst), [i as u8; 100]);
        }
        poll_pending(late.as_mut());
        refused(pairs[0].1.data(), ErrorKind::InUse);
    });
}

#[test]
fn delayed_jobs_all_complete() {
    each(async |bench| {
        for delay in [30, 1, 20, 5, 10] {
            let delay = Duration::from_millis(delay);
            bench.soft.faults().push(Fault::Delay(delay));
        }
        let copies = (0..10u8).map(async |i| {
            let (src, dst) = (bench.filled(&[i; 100]), bench.empty());
            assert_eq!(bench.dma.copy(&src, &dst).await, Ok(100));
            assert_eq!(bytes(&dst), [i; 100]);
        });
        in_time("all of them", futures::future::join_all(copies)).await;
        bench.all_back().await;
    });
}

#[test]
fn a_hold_stops_everything_and_two_stop_it_until_the_second_is_dropped() {
    each(async |bench| {
        let (one, two) = (bench.hold(), bench.hold());
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let jobs = bench.device.jobs();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        drop(one);
        tokio::time::sleep(Duration::from_millis(10)).await;
        poll_pending(copy.as_mut());
        assert_eq!(bench.device.jobs(), jobs);
        drop(two);
        assert_eq!(copy.await, Ok(3));
        assert_eq!(bench.device.jobs(), jobs.map(|jobs| jobs + 1));
    });
}

#[test]
fn a_delay_that_comes_due_under_a_hold_waits_for_it() {
    each(async |bench| {
        // Longer than this thread may lack a CPU before it holds the device.
        let delay = Duration::from_millis(200);
        bench.soft.faults().push(Fault::Delay(delay));
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        let hold = bench.hold();
        tokio::time::sleep(delay * 2).await;
        drop(hold);
        assert_eq!(in_time("it", copy).await, Ok(3));
    });
}

#[test]
fn every_job_is_counted_once() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        assert_eq!(bench.device.jobs(), Some(0));
        for i in 1..=100 {
            dst.reset_data_len().unwrap();
            assert_eq!(bench.dma.copy(&src, &dst).await, Ok(3));
            assert_eq!(bench.device.jobs(), Some(i));
        }
        bench
            .soft
            .faults()
            .push(Fault::Error(ErrorKind::IoFailed, 0));
        bench.dma.copy(&src, &dst).await.unwrap_err();
        assert_eq!(bench.device.jobs(), Some(101), "failed is finished");
        // This copy is refused before it is submitted, so it is not counted.
        bench.dma.copy(&src, &src).await.unwrap_err();
        assert_eq!(bench.device.jobs(), Some(101));
        assert_eq!(bench.soft.open("pf1").unwrap().jobs(), Some(0));
    });
}

#[test]
fn a_hold_may_be_dropped_after_everything_else() {
    for config in configs() {
        let bench = Bench::new(config);
        let pool = bench.pool.clone();
        let hold = bench.hold();
        run(async {
            let copy = bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned();
            let mut copy = Box::pin(copy);
            poll_pending(copy.as_mut());
        });
        drop(bench);
        drop(hold);
        block_until("all Bufs are home", || free_bufs(&pool) == pool.elements());
    }
}

#[test]
fn sizes_around_the_inline_limit_copy_alike() {
    for config in configs() {
        let soft = tokio_doca::soft::Soft::builder()
            .defer(config.defer)
            .inline_limit(1000)
            .build();
        let bench = Bench::with_soft(config, soft);
        run(async {
            for len in [999, 1000, 1001, 4096] {
                let (src, dst) = (bench.filled(&pattern(7, len)), bench.empty());
                assert_eq!(bench.dma.copy(&src, &dst).await, Ok(len));
                assert_eq!(bytes(&dst), pattern(7, len));
            }
        });
        assert_eq!(bench.device.jobs(), Some(4));
    }
}

/// Starts a copy of each pair, in order, while the device is held.
async fn in_flight<'a>(
    bench: &'a Bench,
    pairs: &'a [(Buf, Buf)],
    faults: &[Fault],
) -> Vec<std::pin::Pin<Box<dyn Future<Output = Result<usize, tokio_doca::error::JobError>> + 'a>>> {
    let hold = bench.hold();
    for &fault in faults {
        bench.soft.faults().push(fault);
    }
    let mut copies = Vec::new();
    for (src, dst) in pairs {
        let mut copy: std::pin::Pin<Box<dyn Future<Output = _> + 'a>> =
            Box::pin(bench.dma.copy(src, dst));
        poll_pending(copy.as_mut());
        copies.push(copy);
    }
    drop(hold);
    copies
}

fn pairs(bench: &Bench, count: u8) -> Vec<(Buf, Buf)> {
    (0..count)
        .map(|i| (bench.filled(&[i; 100]), bench.empty()))
        .collect()
}

#[test]
fn a_job_behind_others_completes_after_them() {
    each(async |bench| {
        let pairs = pairs(bench, 3);
        let mut copies = in_flight(bench, &pairs[..2], &[Fault::Behind(2)]).await;
        assert_eq!(in_time("not held up", copies.remove(1)).await, Ok(100));
        let mut first = copies.remove(0);
        poll_pending(first.as_mut());
        bench.soft.faults().push(Fault::Pass);
        let (src, dst) = &pairs[2];
        assert_eq!(
            in_time("the second", bench.dma.copy(src, dst)).await,
            Ok(100)
        );
        assert_eq!(in_time("after two", first).await, Ok(100));
        drop(copies);
        drop(pairs);
        bench.all_back().await;
    });
}

/// No other job can follow, because the WorkQ has no free slot.
#[test]
fn of_jobs_behind_others_that_have_all_slots_the_first_is_done() {
    let story = async |bench: Bench| {
        let pairs = pairs(&bench, 4);
        let never = Fault::Delay(Duration::MAX);
        let faults = [Fault::Behind(9), Fault::Behind(9), Fault::Lost, never];
        let mut copies = in_flight(&bench, &pairs, &faults).await;
        let first = in_time("behind others", copies.remove(0)).await;
        assert_eq!(first, Ok(100));
        // Now a slot is free: the second copy keeps waiting, and is the first of those that wait.
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        bench.soft.faults().push(Fault::Behind(9));
        let third = bench.dma.copy(&src, &dst).start().unwrap();
        let second = in_time("behind others", copies.remove(0)).await;
        assert_eq!(second, Ok(100));
        drop(third);
    };
    for mode in modes() {
        for defer in [false, true] {
            run(story(Bench::new(Config::new(defer, mode).depth(4))));
        }
    }
}

/// A job behind others is also done if a sync event or an `Rdma` has lost the other job.
#[test]
fn of_jobs_behind_others_the_first_is_done_where_other_contexts_lost_theirs() {
    let story = async |bench: Bench, of_event: bool| {
        let copy_is_done = async {
            bench.soft.faults().push(Fault::Behind(9));
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            let copy = in_time("behind others", bench.dma.copy(&src, &dst)).await;
            assert_eq!(copy, Ok(3), "{:?}", bench.config);
        };
        bench.soft.faults().push(Fault::Lost);
        if of_event {
            let event = between(&bench.device).attach(&bench.workq).unwrap();
            let mut lost = Box::pin(event.get());
            poll_pending(lost.as_mut());
            copy_is_done.await;
        } else {
            let setup = Setup::new(bench.config.defer, bench.config.mode);
            let side = |workq| Side::on(&bench.device, workq, setup);
            let other = WorkQ::builder().mode(setup.mode).build().unwrap();
            let (here, there) = (side(&bench.workq), side(&other));
            connect(&here.rdma, &there.rdma);
            let mut lost = Box::pin(here.rdma.send(here.filled(b"lost")));
            poll_pending(lost.as_mut());
            copy_is_done.await;
        }
    };
    for mode in modes() {
        for defer in [false, true] {
            for of_event in [false, true] {
                let config = Config::new(defer, mode).depth(2);
                run(story(Bench::new(config), of_event));
            }
        }
    }
}

#[test]
fn a_lost_completion_keeps_its_bufs_until_the_workq_is_gone() {
    let story = async |bench: Bench| {
        let pairs = pairs(&bench, 2);
        let mut copies = in_flight(&bench, &pairs, &[Fault::Lost]).await;
        let lost = copies.remove(0);
        assert_eq!(in_time("the next", copies.remove(0)).await, Ok(100));
        assert!(
            tokio::time::timeout(Duration::from_millis(20), lost)
                .await
                .is_err(),
            "nobody hears of it"
        );
        let error = pairs[0].1.data_mut().err().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::InUse), "in doubt the memory is kept");
        assert_eq!(bench.workq.in_flight(), 1);
        drop(copies);
        let Bench { workq, dma, .. } = bench;
        drop((dma, workq));
        let (src, dst) = &pairs[0];
        let end = Instant::now() + LIMIT;
        while dst.data_mut().is_err() || src.data_mut().is_err() {
            assert!(Instant::now() < end, "a queue that is gone gives back");
            tokio::task::yield_now().await;
        }
        assert!(bytes(dst).is_empty(), "it never grew");
    };
    for config in configs() {
        run(story(Bench::new(config)));
    }
}

#[test]
fn a_broken_queue_fails_what_is_in_flight_and_refuses_what_comes() {
    each(async |bench| {
        let pairs = pairs(bench, 4);
        let faults = [Fault::Pass, Fault::Behind(100), Fault::Queue];
        let mut copies = in_flight(bench, &pairs, &faults).await.into_iter();
        assert_eq!(copies.next().unwrap().await, Ok(100), "before it broke");
        for copy in copies {
            let error = in_time("in flight", copy).await.unwrap_err();
            assert_eq!(error.reason(), Reason::QueueFailed);
            assert_eq!(
                (error.kind(), error.vendor_code()),
                (ErrorKind::Driver, None)
            );
        }
        let (src, dst) = &pairs[0];
        for _ in 0..3 {
            let error = bench.dma.copy(src, dst).await.unwrap_err();
            assert_eq!(error.reason(), Reason::QueueBroken);
            assert_eq!(error.kind(), ErrorKind::BadState);
        }
        assert_eq!(bytes(dst), [0; 100], "nothing was copied");
        // Another WorkQ of the same device works, and so does the shutdown of this one.
        let workq = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        let dma = Dma::builder(&bench.device).attach(&workq).unwrap();
        assert_eq!(dma.copy(src, dst).await, Ok(100));
        workq.shutdown().await.unwrap();
        drop(pairs);
        bench.all_back().await;
    });
}

/// Jobs that were put aside come due in the very last step of a poll, after which nothing else
/// would run them.
#[test]
fn without_an_engine_jobs_that_come_due_at_the_end_of_a_look_are_done() {
    for mode in modes() {
        let soft = Soft::builder().inline_limit(0).engines(0).build();
        let bench = Bench::with_soft(Config::new(false, mode), soft);
        run(async {
            // A poll runs up to sixteen jobs; too few have completed by then to cause another poll.
            let pairs = pairs(&bench, 16);
            let copies = in_flight(&bench, &pairs, &[Fault::Behind(6); 10]).await;
            for copy in copies {
                assert_eq!(in_time("put aside", copy).await, Ok(100));
            }
        });
    }
}

#[tokio::test]
async fn a_delay_beyond_the_clock_delays_that_job_alone() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven).depth(4));
    bench.soft.faults().push(Fault::Delay(Duration::MAX));
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let mut never = Box::pin(bench.dma.copy(&src, &dst));
    assert!(never.as_mut().now_or_never().is_none());
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    assert_eq!(bench.dma.copy(&src, &dst).await, Ok(3));
}

#[tokio::test]
async fn a_script_is_taken_in_the_order_of_submission() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven).depth(4));
    let error = Fault::Error(ErrorKind::IoFailed, 7);
    for fault in [error, Fault::QueueFull, Fault::Pass, error] {
        bench.soft.faults().push(fault);
    }
    let pairs = [(); 3].map(|()| (bench.filled(b"abc"), bench.empty()));
    let copies = pairs.iter().map(|(src, dst)| bench.dma.copy(src, dst));
    let results = futures::future::join_all(copies).await;
    let failed = Err(JobError::device(ErrorKind::IoFailed, 7));
    assert_eq!(results, [failed, Ok(3), failed]);
}
