//! Hybrid mode with several waiting operations: the last to begin spins, and leaves nothing behind
//! however it ends.

use std::future::Future;
use std::mem::forget;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use support::*;
use tokio_doca::{
    Mode,
    graph::Graph,
    sync_event::{Location, SyncEvent},
};

/// Longer than any test needs for a few polls.
const LONG: Duration = Duration::from_secs(1);

fn bench(depth: u32) -> Bench {
    Bench::new(Config::new(true, Mode::Hybrid { spin: LONG }).depth(depth))
}

/// Polls once. Returns true if the future has woken itself, that is, if it spins.
fn wakes_itself(waits: Pin<&mut impl Future>, count: &Arc<Count>) -> bool {
    let (before, waker) = (count.wakes(), count.waker());
    assert!(waits.poll(&mut Context::from_waker(&waker)).is_pending());
    count.wakes() > before
}

/// Returns true if the future keeps spinning: from the second poll on, only the one that began last
/// does.
fn spins(mut waits: Pin<&mut impl Future>) -> bool {
    let count = Count::new();
    (0..5).all(|_| wakes_itself(waits.as_mut(), &count))
}

/// Returns true if a copy that begins to wait now spins.
fn next_spins(bench: &Bench) -> bool {
    let hold = bench.hold();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let mut copy = pin!(bench.dma.copy(&src, &dst));
    let spins = spins(copy.as_mut());
    drop(hold);
    assert_eq!(bench.workq.block_on(copy), Ok(3));
    spins
}

#[test]
fn of_eight_that_wait_the_last_to_begin_spins_and_the_others_have_their_event() {
    let bench = bench(16);
    let pairs = [(); 8].map(|()| (bench.filled(b"abc"), bench.empty()));
    run(async {
        let hold = bench.hold();
        let copy = |(src, dst)| (Box::pin(bench.dma.copy(src, dst)), Count::new());
        let mut copies: Vec<_> = pairs.iter().map(|(src, dst)| copy((src, dst))).collect();
        let mut round = || -> Vec<usize> {
            let polled = copies.iter_mut().enumerate();
            let spins = polled
                .filter_map(|(at, (copy, count))| wakes_itself(copy.as_mut(), count).then_some(at));
            spins.collect()
        };
        // When a copy is first polled, it is the last to have begun, so each one spins once.
        assert_eq!(round(), Vec::from_iter(0..8));
        for _ in 0..10 {
            assert_eq!(round(), [7]);
        }
        drop(hold);
        let (spinner, sleepers) = copies.split_last_mut().unwrap();
        for (copy, count) in sleepers {
            until("it is woken", || count.wakes() > 1).await;
            assert_eq!(copy.as_mut().await, Ok(3));
        }
        assert_eq!(spinner.0.as_mut().await, Ok(3));
    });
}

#[test]
fn a_spinner_that_is_dropped_or_forgotten_leaves_the_spin_to_the_next() {
    let bench = bench(8);
    run(async {
        for forgotten in [false, true] {
            let hold = bench.hold();
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            let mut copy = Box::pin(bench.dma.copy(src, dst).owned());
            assert!(spins(copy.as_mut()));
            match forgotten {
                false => drop(copy),
                true => forget(copy),
            }
            drop(hold);
            assert!(next_spins(&bench));
        }
    });
}

#[test]
fn a_wait_for_a_value_that_spun_leaves_the_spin_to_the_next() {
    let bench = bench(8);
    run(async {
        let cpu = Location::Cpu(&bench.device);
        let event = SyncEvent::builder().publisher(cpu).subscriber(cpu);
        let event = event.attach(&bench.workq).unwrap();
        for value in 1..5 {
            let mut wait = pin!(event.wait_gt(value - 1));
            assert!(spins(wait.as_mut()));
            event.set(value).await.unwrap();
            assert_eq!(wait.await, Ok(value));
            assert!(next_spins(&bench));
        }
    });
}

#[test]
fn a_copy_that_spun_in_line_leaves_the_spin_to_the_next() {
    let bench = bench(1);
    run(async {
        for _ in 0..5 {
            let hold = bench.hold();
            let pairs = [(); 2].map(|()| (bench.filled(b"abc"), bench.empty()));
            let [mut first, mut second] = pairs
                .each_ref()
                .map(|(src, dst)| Box::pin(bench.dma.copy(src, dst)));
            assert!(spins(first.as_mut()));
            assert!(spins(second.as_mut()), "it stands in line");
            assert!(!spins(first.as_mut()), "the other one spins");
            drop(hold);
            assert_eq!(first.await, Ok(3));
            assert_eq!(second.await, Ok(3));
            assert!(next_spins(&bench));
        }
    });
}

#[test]
fn a_run_that_spun_leaves_the_spin_to_the_next() {
    let bench = bench(8);
    run(async {
        let mut graph = Graph::builder();
        let copy = graph.dma_copy(&bench.dma);
        let mut instance = graph.build().unwrap().instance().unwrap();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        instance.set(copy, (&src, &dst)).unwrap();
        for _ in 0..5 {
            let hold = bench.hold();
            let mut going = pin!(instance.run());
            assert!(spins(going.as_mut()));
            drop(hold);
            going.await.unwrap();
            dst.reset_data_len().unwrap();
            assert!(next_spins(&bench));
        }
    });
}

/// After many long waits an operation sleeps at once, and spins only now and then.
#[test]
fn after_many_spins_in_vain_most_waits_sleep_at_once() {
    let spin = Duration::from_micros(10);
    let bench = Bench::new(Config::new(true, Mode::Hybrid { spin }).depth(8));
    run(async {
        let mut spun = 0;
        for _ in 0..400 {
            let hold = bench.hold();
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            let (mut copy, count) = (pin!(bench.dma.copy(&src, &dst)), Count::new());
            spun += usize::from(wakes_itself(copy.as_mut(), &count));
            while wakes_itself(copy.as_mut(), &count) {}
            drop(hold);
            assert_eq!(copy.as_mut().await, Ok(3));
        }
        assert!((3..40).contains(&spun), "{spun} of 400 waits spun");
    });
}
