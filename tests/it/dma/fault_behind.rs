//! A job that a script puts behind others comes due, although the device could do those others
//! inside the call.

use futures::FutureExt;
use support::*;
use tokio_doca::Mode;
use tokio_doca::soft::Soft;

fn devices() -> [Soft; 2] {
    let inline = Soft::builder().defer(false);
    [inline.build(), Soft::builder().engines(0).build()]
}

fn benches(soft: fn() -> [Soft; 2]) -> Vec<Bench> {
    let each = |mode| {
        let bench = move |soft| Bench::with_soft(Config::new(false, mode), soft);
        soft().into_iter().map(bench)
    };
    modes().into_iter().flat_map(each).collect()
}

/// Whether a copy is done inside its first poll.
fn is_inline(bench: &Bench) -> bool {
    let copy = bench
        .dma
        .copy(bench.filled(b"abc"), bench.empty())
        .owned()
        .now_or_never();
    copy.is_some_and(|copied| copied == Ok(3))
}

#[test]
fn a_job_behind_others_is_done_after_so_many_and_then_jobs_are_inline_again() {
    for bench in benches(devices) {
        run(async {
            assert!(is_inline(&bench));
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            let after = bench.empty();
            bench.soft.faults().push_script("behind:2").unwrap();
            let mut first = Box::pin(bench.dma.copy(&src, &dst));
            poll_pending(first.as_mut());
            for _ in 0..2 {
                poll_pending(first.as_mut());
                after.reset_data_len().unwrap();
                let copy = bench.dma.copy(&src, &after);
                assert_eq!(in_time("one that is not put aside", copy).await, Ok(3));
            }
            let first = in_time("the one that was put aside", first).await;
            assert_eq!(first, Ok(3), "{:?}", bench.config);
            assert!(is_inline(&bench));
        });
    }
}

#[test]
fn a_job_behind_others_that_never_came_stops_nothing_once_its_queue_is_gone() {
    for bench in benches(devices) {
        run(async {
            bench.soft.faults().push_script("behind:9*3").unwrap();
            let copies: Vec<_> = (0..3)
                .map(|_| {
                    let mut copy =
                        Box::pin(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned());
                    poll_pending(copy.as_mut());
                    copy
                })
                .collect();
            drop(copies);
            let Bench {
                soft,
                device,
                config,
                workq,
                dma,
                ..
            } = bench;
            drop((dma, workq));
            let next = Bench::with_soft(config, soft);
            until("jobs are inline again", || is_inline(&next)).await;
            drop(device);
        });
    }
}

#[test]
fn a_job_behind_others_in_a_queue_that_breaks_down_is_counted_no_more() {
    for soft in devices() {
        run(async {
            let bench = Bench::with_soft(Config::new(false, Mode::EventDriven), soft);
            bench
                .soft
                .faults()
                .push_script("behind:9 queue behind:9")
                .unwrap();
            let copy = || bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned();
            let all = async { tokio::join!(copy(), copy(), copy()) };
            let (first, second, third) = in_time("all fail", all).await;
            assert!(first.is_err() && second.is_err() && third.is_err());
            let Bench {
                soft,
                workq,
                dma,
                config,
                ..
            } = bench;
            drop((dma, workq));
            let next = Bench::with_soft(config, soft);
            next.soft.faults().clear();
            until("jobs are inline again", || is_inline(&next)).await;
        });
    }
}
