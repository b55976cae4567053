//! The statistics of an `Rdma` and its WorkQ: flushed receives do not count as failures.

use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::{Mode, rdma::RdmaState, workq::Stats};

#[test]
fn receives_that_are_flushed_at_a_regular_end_are_no_failures() {
    for mode in modes() {
        run(async {
            let setup = Setup::new(false, mode);
            let (one, other) = (Side::new(setup), Side::new(setup));
            connect(&one.rdma, &other.rdma);
            let bufs: Vec<_> = (0..8).map(|_| one.empty()).collect();
            let start = |buf| one.rdma.recv(buf).start().unwrap();
            let started: Vec<_> = bufs.iter().map(start).collect();
            let seen = one.rdma.stats();
            assert_eq!((seen.connects, seen.errors), (1, 0));
            let receives = (seen.receives_posted, seen.receives_in_use);
            assert_eq!((receives, seen.receives_dropped), ((8, 8), 0));
            drop(started);
            assert_eq!(one.rdma.stats().receives_dropped, 8);
            other.send(b"one").await.unwrap();
            assert_eq!(one.recv().await.unwrap(), b"one");
            let seen = one.rdma.stats();
            assert_eq!((seen.receives_in_use, seen.receives_dropped), (7, 7));

            other.rdma.reset().unwrap();
            one.failed().await;
            until("all are flushed", || {
                look(&one);
                one.rdma.stats().receives_in_use == 0
            })
            .await;
            let seen = one.workq.stats();
            assert_eq!(
                (seen.received, seen.flushed, seen.failed),
                (1, 7, 0),
                "{mode:?}"
            );
            assert_eq!(one.rdma.stats().errors, 1);
            let found = |seen: Stats| seen.polls - seen.empty_polls;
            assert!(found(seen) > 0, "{seen:?}");
            assert_eq!(one.workq.progress(|_, _| {}), 0);
            let idle = one.workq.stats();
            assert!(idle.empty_polls > seen.empty_polls, "{idle:?}");
            assert_eq!(found(idle), found(seen), "{idle:?}");
        });
    }
}

/// Polls the device if its WorkQ is busy-polling, since nothing else does.
fn look(side: &Side) {
    if side.workq.mode() == Mode::BusyPoll {
        side.rdma.state();
    }
}

#[test]
fn receives_that_wait_for_a_place_are_counted() {
    let setup = Setup {
        receives: 2,
        ..Setup::new(false, Mode::EventDriven)
    };
    run(async {
        let (one, other) = (Side::new(setup), Side::new(setup));
        connect(&one.rdma, &other.rdma);
        let bufs: Vec<_> = (0..3).map(|_| one.empty()).collect();
        let mut receives: Vec<_> = bufs
            .iter()
            .map(|buf| Box::pin(one.rdma.recv(buf)))
            .collect();
        receives
            .iter_mut()
            .for_each(|recv| poll_pending(recv.as_mut()));
        let seen = one.rdma.stats();
        assert_eq!((seen.receives_in_use, seen.receives_waiting), (2, 1));
    });
}

#[test]
fn an_end_that_a_look_has_found_counts() {
    run(async {
        let setup = Setup::new(false, Mode::BusyPoll);
        let (one, other) = (Side::new(setup), Side::new(setup));
        connect(&one.rdma, &other.rdma);
        other.rdma.reset().unwrap();
        let error = || matches!(one.rdma.state(), RdmaState::Error(_));
        until("a look finds it", error).await;
        let seen = one.rdma.stats();
        assert_eq!((seen.connects, seen.errors), (1, 1));
    });
}
