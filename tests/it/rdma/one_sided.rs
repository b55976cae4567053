//! One-sided operations do not wake the responder, and atomics from several sides add up.

use std::time::Duration;

use support::device::{defers, needs_soft};
use support::rdma::{Setup, Side, connect};
use support::{in_time, run};
use tokio_doca::Mode;

/// Runs `body` with two event-driven sides.
fn each(body: impl AsyncFn(Side, Side)) {
    for &defer in defers() {
        let setup = Setup::new(defer, Mode::EventDriven);
        run(async {
            let (one, other) = (Side::new(setup), Side::new(setup));
            connect(&one.rdma, &other.rdma);
            body(one, other).await;
        });
    }
}

#[test]
fn the_responder_sleeps_on() {
    each(async |one, other| {
        let there = one.import(&other.memory()).buf(..64).unwrap();
        let (full, empty) = (one.filled(&[7; 64]), one.empty());
        let posted = other.rdma.recv(());
        tokio::pin!(posted);
        // The responder sleeps, and is armed for messages.
        let asleep = tokio::time::timeout(Duration::from_millis(1), &mut posted);
        assert!(asleep.await.is_err());
        // Lets the task handle earlier events, such as that of the connection.
        tokio::task::yield_now().await;
        let before = other.workq.stats();
        for _ in 0..200 {
            one.rdma.write(&full, &there).await.unwrap();
            one.rdma.read(&there, &empty).await.unwrap();
            empty.reset_data_len().unwrap();
            one.rdma.fetch_add(&there, 1).await.unwrap();
            one.rdma.compare_swap(&there, 0, 1).await.unwrap();
        }
        let after = other.workq.stats();
        assert_eq!(
            (after.wake_ups, after.completed),
            (before.wake_ups, before.completed)
        );
        one.rdma.send(()).await.unwrap();
        in_time("the message", posted).await.unwrap();
        assert!(other.workq.stats().wake_ups > before.wake_ups);
    });
}

#[test]
fn atomics_are_so_beside_those_of_the_owner() {
    if needs_soft("atomics are so among the adapter's own alone") {
        return;
    }
    const ADDS: u64 = 20_000;
    each(async |one, other| {
        let there = one.import(&other.memory()).buf(..8).unwrap();
        let own = other.shared.clone();
        let before = own.load(0).unwrap();
        let adder = std::thread::spawn(move || {
            for _ in 0..ADDS {
                own.fetch_add(0, 1).unwrap();
            }
        });
        for _ in 0..ADDS {
            one.rdma.fetch_add(&there, 1).await.unwrap();
        }
        adder.join().unwrap();
        assert_eq!(other.shared.load(0).unwrap(), before + 2 * ADDS);
    });
}
