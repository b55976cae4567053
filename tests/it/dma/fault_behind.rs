//! A job that a fault script puts behind others comes due, even if the device could run those
//! others inline.

use futures::FutureExt;
use futures::future::{join_all, select};
use support::*;
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{BufPool, Dma, Mmap, Mode, WorkQ};

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

/// Returns true if a copy completes in its first poll.
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

/// Returns a WorkQ of four slots with contexts of two devices, each with a pool.
fn two_on_a_workq(soft: &Soft, mode: Mode) -> (WorkQ, [(Dma, BufPool); 2]) {
    let workq = WorkQ::builder().depth(4).mode(mode).build().unwrap();
    let sides = ["pf0", "pf1"].map(|name| {
        let device = soft.open(name).unwrap();
        let mmap = Mmap::builder().device(&device).alloc(64 * ELEMENT).unwrap();
        let pool = BufPool::builder(&mmap).element_size(ELEMENT).build();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        (dma, pool.unwrap())
    });
    (workq, sides)
}

async fn copy((dma, pool): &(Dma, BufPool)) {
    let (src, dst) = (pool.alloc().await, pool.alloc().await);
    src.extend_from_slice(b"abc").unwrap();
    assert_eq!(dma.copy(&src, &dst).await, Ok(3));
}

/// Makes four copies on each device. Each bit of `mix` puts one of them behind others.
async fn all_end(soft: &Soft, sides: &[(Dma, BufPool); 2], mix: u32) {
    for at in 0..8 {
        let behind = mix >> at & 1 == 1;
        let fault = [Fault::Pass, Fault::Behind(9)][usize::from(behind)];
        soft.faults().push(fault);
    }
    let all = join_all((0..8).map(|at| copy(&sides[at % 2])));
    // A copy that is behind others needs some that follow it.
    let more = async {
        loop {
            copy(&sides[0]).await;
            copy(&sides[1]).await;
            tokio::task::yield_now().await;
        }
    };
    let (all, more) = (std::pin::pin!(all), std::pin::pin!(more));
    in_time("all copies", select(all, more)).await;
}

#[test]
fn jobs_behind_others_on_two_devices_do_not_stop_their_workq() {
    for mode in modes() {
        for soft in devices() {
            run(async {
                let (workq, sides) = two_on_a_workq(&soft, mode);
                for mix in 0..1 << 8 {
                    all_end(&soft, &sides, mix).await;
                }
                until("nothing is in flight", || workq.in_flight() == 0).await;
            });
        }
    }
}

#[test]
fn a_job_behind_others_is_done_once_lost_jobs_of_another_device_have_all_other_slots() {
    for mode in modes() {
        for soft in devices() {
            run(async {
                let (workq, sides) = two_on_a_workq(&soft, mode);
                let mut copies = Vec::new();
                for (at, script) in [(0, "behind:9"), (1, "lost"), (1, "lost"), (1, "lost")] {
                    soft.faults().push_script(script).unwrap();
                    let mut one = Box::pin(copy(&sides[at]));
                    poll_pending(one.as_mut());
                    copies.push(one);
                }
                let one = copies.remove(0);
                // Without engines a device runs its jobs when one of them is polled.
                let others = join_all(copies);
                in_time("the one behind others", select(one, others)).await;
                assert_eq!(workq.in_flight(), 3);
            });
        }
    }
}
