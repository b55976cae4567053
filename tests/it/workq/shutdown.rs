//! Shutting a WorkQ down: jobs in flight complete, waiting operations fail, and new ones are
//! refused.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use support::subscriber::OnEvent;
use support::*;
use tokio_doca::soft::Fault;
use tokio_doca::{ErrorKind, Mode, error::JobError};

type Copying = Pin<Box<dyn Future<Output = Result<usize, JobError>> + Send>>;

fn copying(bench: &Bench) -> Copying {
    Box::pin(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned())
}

fn kind(result: Result<usize, JobError>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn it_waits_for_what_is_in_flight_and_refuses_what_is_new() {
    each(async |bench| {
        let hold = bench.hold();
        let mut copies: Vec<_> = (0..8).map(|_| copying(bench)).collect();
        for copy in &mut copies {
            poll_pending(copy.as_mut());
        }
        let mut shutdown = Box::pin(bench.workq.shutdown());
        poll_pending(shutdown.as_mut());
        assert_eq!(kind(copying(bench).await), ErrorKind::Shutdown);
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        refused(bench.dma.copy(&src, &dst).start(), ErrorKind::Shutdown);
        poll_pending(shutdown.as_mut());
        drop(hold);
        in_time("shutdown", shutdown).await.unwrap();
        // The results can be fetched afterwards.
        for copy in copies {
            assert_eq!(copy.await, Ok(3));
        }
        drop((src, dst));
        bench.all_back().await;
    });
}

#[test]
fn who_waits_for_the_end_is_woken_before_the_log_hears_that_the_queue_broke() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        bench.soft.faults().push(Fault::Queue);
        let hold = bench.hold();
        let mut copy = copying(&bench);
        poll_pending(copy.as_mut());
        let (mut shutdown, count) = (Box::pin(bench.workq.shutdown()), Count::new());
        let waker = count.waker();
        let polled = shutdown.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let (told, heard) = std::sync::mpsc::channel();
        let hears = OnEvent::new(move |level| {
            if level == tracing::Level::ERROR {
                told.send(count.wakes()).unwrap();
            }
        });
        let guard = tracing::subscriber::set_default(hears);
        drop(hold);
        assert_eq!(kind(copy.await), ErrorKind::Driver);
        drop(guard);
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn an_idle_workq_is_shut_down_at_once() {
    for config in configs() {
        let bench = Bench::new(config);
        // If nothing is waited for, no runtime is needed.
        futures::executor::block_on(bench.workq.shutdown()).unwrap();
        futures::executor::block_on(bench.workq.shutdown()).unwrap();
        assert_eq!(
            kind(futures::executor::block_on(copying(&bench))),
            ErrorKind::Shutdown
        );
    }
}

#[test]
fn who_waits_for_a_slot_is_told() {
    let shallow: Vec<_> = configs().iter().map(|c| c.depth(1)).collect();
    each_of(&shallow, async |bench| {
        let hold = bench.hold();
        let mut first = copying(bench);
        poll_pending(first.as_mut());
        let queued: Vec<_> = (0..20).map(|_| tokio::spawn(copying(bench))).collect();
        tokio::task::yield_now().await;
        let mut shutdown = Box::pin(bench.workq.shutdown());
        poll_pending(shutdown.as_mut());
        for task in queued {
            let result = in_time("who waits", task).await.unwrap();
            assert_eq!(kind(result), ErrorKind::Shutdown);
        }
        assert_eq!(bench.workq.in_flight(), 1);
        drop(hold);
        assert_eq!(first.await, Ok(3));
        in_time("shutdown", shutdown).await.unwrap();
        bench.all_back().await;
    });
}

#[test]
fn dropped_it_can_be_called_again() {
    each(async |bench| {
        let hold = bench.hold();
        let mut copy = copying(bench);
        poll_pending(copy.as_mut());
        let short = Duration::from_millis(2);
        for _ in 0..3 {
            let shutdown = tokio::time::timeout(short, bench.workq.shutdown()).await;
            assert!(shutdown.is_err(), "nothing moves");
        }
        assert_eq!(kind(copying(bench).await), ErrorKind::Shutdown);
        drop(hold);
        in_time("again", bench.workq.shutdown()).await.unwrap();
        assert_eq!(copy.await, Ok(3));
    });
}

#[test]
fn several_at_once_all_end() {
    each(async |bench| {
        let hold = bench.hold();
        let mut copy = copying(bench);
        poll_pending(copy.as_mut());
        let mut abandoned = Box::pin(bench.workq.shutdown());
        poll_pending(abandoned.as_mut());
        let all: Vec<_> = (0..40)
            .map(|_| tokio::spawn(bench.workq.shutdown()))
            .collect();
        tokio::task::yield_now().await;
        drop(hold);
        assert_eq!(copy.await, Ok(3));
        for task in all {
            in_time("each", task).await.unwrap().unwrap();
        }
        drop(abandoned);
    });
}

#[test]
fn it_waits_for_orphans() {
    each(async |bench| {
        let hold = bench.hold();
        let mut copies: Vec<_> = (0..4).map(|_| copying(bench)).collect();
        for copy in &mut copies {
            poll_pending(copy.as_mut());
        }
        drop(copies);
        let mut shutdown = Box::pin(bench.workq.shutdown());
        poll_pending(shutdown.as_mut());
        drop(hold);
        in_time("shutdown", shutdown).await.unwrap();
        // All slots and Bufs are free as soon as the shutdown has completed.
        assert_eq!(bench.workq.in_flight(), 0);
        assert_eq!(bench.free_bufs(), bench.pool.elements());
    });
}

#[test]
fn it_waits_for_the_jobs_of_forgotten_copies() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        std::mem::forget(copy);
        let mut shutdown = Box::pin(bench.workq.shutdown());
        poll_pending(shutdown.as_mut());
        drop(hold);
        in_time("shutdown", shutdown).await.unwrap();
        assert_eq!(bytes(&dst), b"abc");
        assert_eq!(bench.workq.in_flight(), 1, "a result that nobody fetched");
    });
}

#[test]
fn jobs_that_fail_or_come_late_end_it_too() {
    each(async |bench| {
        let faults = bench.soft.faults();
        let hold = bench.hold();
        faults.push(Fault::Delay(Duration::from_millis(20)));
        faults.push(Fault::Error(ErrorKind::IoFailed, 1));
        let mut copies: Vec<_> = (0..3).map(|_| copying(bench)).collect();
        for copy in &mut copies {
            poll_pending(copy.as_mut());
        }
        drop(hold);
        in_time("shutdown", bench.workq.shutdown()).await.unwrap();
        let mut results = Vec::new();
        for copy in copies {
            results.push(copy.await.map_err(|error| error.kind()));
        }
        assert_eq!(results, [Ok(3), Err(ErrorKind::IoFailed), Ok(3)]);
    });
}

#[test]
fn in_busy_mode_it_needs_no_runtime() {
    let bench = Bench::new(Config::new(true, Mode::BusyPoll));
    let hold = bench.hold();
    let mut copies: Vec<_> = (0..8).map(|_| copying(&bench)).collect();
    for copy in &mut copies {
        poll_pending(copy.as_mut());
    }
    copies.truncate(4);
    drop(hold);
    bench.workq.block_on(bench.workq.shutdown()).unwrap();
    assert_eq!(bench.workq.in_flight(), 4);
    for copy in copies {
        assert_eq!(bench.workq.block_on(copy), Ok(3));
    }
    assert_eq!(bench.workq.in_flight(), 0);
    assert_eq!(bench.free_bufs(), bench.pool.elements());
}

#[test]
fn in_event_mode_without_a_runtime_it_says_so_and_can_be_awaited_later() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let hold = bench.hold();
    let home = runtime();
    let mut copy = copying(&bench);
    home.block_on(async { poll_pending(copy.as_mut()) });
    let result = futures::executor::block_on(bench.workq.shutdown());
    rejected(result, ErrorKind::BadState);
    drop(hold);
    home.block_on(async { in_time("shutdown", bench.workq.shutdown()).await })
        .unwrap();
    assert_eq!(home.block_on(copy), Ok(3));
}

#[test]
fn other_workqs_of_the_device_go_on() {
    each(async |bench| {
        let other = bench.dma.attach(
            &tokio_doca::WorkQ::builder()
                .mode(bench.config.mode)
                .build()
                .unwrap(),
        );
        bench.workq.shutdown().await.unwrap();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        assert_eq!(other.unwrap().copy(&src, &dst).await, Ok(3));
    });
}

#[test]
fn submissions_race_with_it_and_each_is_done_or_refused() {
    for config in configs() {
        let bench = Bench::new(config.depth(4));
        workers().block_on(async {
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    let (dma, src, dst) = (bench.dma.clone(), bench.filled(b"abc"), bench.empty());
                    tokio::spawn(async move {
                        for done in 0..u64::MAX {
                            dst.reset_data_len().unwrap();
                            match dma.copy(&src, &dst).await {
                                Ok(3) => assert_eq!(bytes(&dst), b"abc"),
                                Err(error) if error.kind() == ErrorKind::Shutdown => return done,
                                other => panic!("{other:?}"),
                            }
                        }
                        unreachable!()
                    })
                })
                .collect();
            until("copies run", || bench.device.jobs() > Some(100)).await;
            in_time("shutdown", bench.workq.shutdown()).await.unwrap();
            let mut done = 0;
            for task in tasks {
                done += in_time("a task", task).await.unwrap();
            }
            assert_eq!(bench.device.jobs(), Some(done), "{config:?}");
            bench.all_back().await;
        });
    }
}
