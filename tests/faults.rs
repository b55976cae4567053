//! Faults on request: errors keep their kind and code, delays reorder, a Hold stops everything, and each job is counted.

mod common;

use std::time::{Duration, Instant};

use common::*;
use tokio_doca::ErrorKind;
use tokio_doca::soft::Fault;

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
        let delay = Duration::from_millis(5);
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
        // Refused before it was submitted.
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
            let copy = bench.dma.copy_owned(bench.filled(b"abc"), bench.empty());
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
