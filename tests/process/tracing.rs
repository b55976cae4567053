//! What an operator reads: an event of each kind, by docs/guide/tracing.md. A subscriber hears of
//! what other threads write only if it is the whole process's, so that each test is `alone`, or in
//! a process of its own.

use std::time::Duration;

use support::channel::pair;
use support::peer::{Peer, hear, hex, role, say, unhex};
use support::rdma::{Setup, Side, connect};
use support::subscriber::Lines;
use support::{test_name, *};
use tokio_doca::soft::Fault;
use tokio_doca::stream::StreamOptions;
use tokio_doca::{Device, Dma, ErrorKind, Mode, WorkQ, mem::RemoteMmap};

const RDMA: &str = "tokio_doca::rdma";

#[test]
fn a_device_a_context_and_a_shutdown_are_told() {
    if !alone(test_name!(a_device_a_context_and_a_shutdown_are_told)) {
        return;
    }
    let lines = Lines::everywhere();
    let device = Device::open("pf0").unwrap();
    lines.has(&[
        "DEBUG tokio_doca::device device opened",
        "device=\"pf0\"",
        "provider=\"soft\"",
    ]);
    let workq = WorkQ::builder().depth(7).build().unwrap();
    let _dma = Dma::builder(&device).attach(&workq).unwrap();
    let call = "call=\"DmaBuilder::attach\"";
    lines.has(&[
        "DEBUG tokio_doca::workq context attached",
        "device=\"pf0\"",
        call,
        "depth=7",
    ]);
    run(async { workq.shutdown().await.unwrap() });
    let shutdown = ["DEBUG tokio_doca::workq shutdown", "in_flight=0"];
    assert_eq!(lines.with(&shutdown).len(), 1);
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        let hold = bench.hold();
        poll_pending(copy.as_mut());
        drop(hold);
        // It has its Slot until the result is fetched.
        until("it is over", || bench.workq.stats().unfetched == 1).await;
        bench.workq.shutdown().await.unwrap();
    });
    assert_eq!(lines.with(&shutdown).len(), 2);
    Dma::builder(&device).attach(&workq).unwrap_err();
    lines.has(&["WARN tokio_doca::workq context refused", call, "shut down"]);
}

#[test]
fn a_broken_queue_is_told_once() {
    if !alone(test_name!(a_broken_queue_is_told_once)) {
        return;
    }
    let lines = Lines::everywhere();
    for (number, config) in configs().into_iter().enumerate() {
        let bench = Bench::new(config);
        run(async {
            bench.soft.faults().push(Fault::Queue);
            for _ in 0..3 {
                let (src, dst) = (bench.filled(b"abc"), bench.empty());
                bench.dma.copy(&src, &dst).await.unwrap_err();
            }
        });
        let told = lines.with(&["ERROR tokio_doca::workq queue broken", "[\"pf0\"]"]);
        assert_eq!(told.len(), number + 1, "{told:?}");
    }
}

#[test]
fn a_connection_is_told_from_its_begin_to_its_end() {
    if !alone(test_name!(a_connection_is_told_from_its_begin_to_its_end)) {
        return;
    }
    let lines = Lines::everywhere();
    let setup = Setup::new(false, Mode::EventDriven);
    run(async {
        let (one, other) = (Side::new(setup), Side::new(setup));
        assert_eq!(lines.with(&[RDMA, "opened", "device="]).len(), 2);
        one.rdma.connect(b"nonsense").await.unwrap_err();
        lines.has(&["WARN", RDMA, "connect refused", "rdma=1", "error="]);
        connect(&one.rdma, &other.rdma);
        for number in ["rdma=1", "rdma=2"] {
            lines.has(&["DEBUG tokio_doca::rdma connect ", number]);
            lines.has(&["DEBUG tokio_doca::rdma connected", number]);
            lines.has(&["DEBUG tokio_doca::rdma state", number, "state=Connected"]);
        }
        other.rdma.reset().unwrap();
        lines.has(&["DEBUG tokio_doca::rdma reset", "rdma=2"]);
        lines.has(&["DEBUG tokio_doca::rdma state", "rdma=2", "state=Init"]);
        one.failed().await;
        lines.has(&[
            "WARN tokio_doca::rdma state",
            "rdma=1",
            "state=\"Error\"",
            "cause=",
        ]);
    });
    assert_eq!(lines.with(&["DEBUG tokio_doca::rdma closed"]).len(), 2);
}

/// A pool that is empty, two handshakes in turn, and a listener that nobody asks.
#[test]
fn what_waits_for_somebody_is_told() {
    if !alone(test_name!(what_waits_for_somebody_is_told)) {
        return;
    }
    let lines = Lines::everywhere();
    let setup = Setup::new(false, Mode::EventDriven);
    run(async {
        let (one, other) = (Side::new(setup), Side::new(setup));
        let elements = format!("elements={}", one.pool.elements());
        let waits = ["TRACE tokio_doca::mem waits for a Buf", &elements];
        let mut all = Vec::new();
        while let Ok(buf) = one.pool.try_alloc() {
            all.push(buf);
        }
        let mut alloc = Box::pin(one.pool.alloc());
        assert_eq!(lines.with(&waits).len(), 0);
        for _ in 0..2 {
            poll_pending(alloc.as_mut());
            assert_eq!(lines.with(&waits).len(), 1);
        }
        let (mut here, mut there) = tokio::io::duplex(4096);
        let mut first = Box::pin(one.rdma.handshake(&mut here));
        let waits = ["DEBUG tokio_doca::rdma waits for the blob", "rdma=1"];
        for _ in 0..2 {
            poll_pending(first.as_mut());
            assert_eq!(lines.with(&waits).len(), 1);
        }
        let second = other.rdma.handshake(&mut there);
        let (first, second) = tokio::join!(first, second);
        first.and(second).unwrap();
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = StreamOptions::new()
            .connections(1)
            .timeout(Duration::from_millis(1200));
        let connector = connector.connector(one.rdma.device(), &one.workq).unwrap();
        let connected = connector.connect(socket.local_addr().unwrap()).await;
        assert_eq!(connected.unwrap_err().kind(), ErrorKind::TimedOut);
        let call = "call=\"RdmaConnector::connect\"";
        let waits = ["DEBUG tokio_doca::stream waits for its peer", call];
        assert_eq!(lines.with(&waits).len(), 1);
    });
}

#[test]
fn exports_imports_and_what_is_revoked_are_told() {
    if !alone(test_name!(exports_imports_and_what_is_revoked_are_told)) {
        return;
    }
    let lines = Lines::everywhere();
    run(async {
        let side = Side::new(Setup::new(false, Mode::EventDriven));
        let blob = side.memory();
        let bytes = "bytes=1048576";
        lines.has(&["DEBUG tokio_doca::mem exported", "audience=", bytes]);
        let mut remote = Some(side.import(&blob));
        lines.has(&["DEBUG tokio_doca::mem imported", bytes]);
        remote.take();
        let Side {
            mmap,
            shared,
            device,
            ..
        } = side;
        drop(shared);
        mmap.stop().unwrap();
        lines.has(&["DEBUG tokio_doca::mem revoked", "exports=1"]);
        RemoteMmap::from_export(&device, &blob).await.unwrap_err();
        lines.has(&["WARN tokio_doca::mem import refused", "error="]);
    });
}

#[test]
fn channels_are_told_when_they_are_accepted_and_closed() {
    if !alone(test_name!(
        channels_are_told_when_they_are_accepted_and_closed
    )) {
        return;
    }
    let lines = Lines::everywhere();
    run(async {
        let (client, server) = pair().await;
        lines.has(&[
            "DEBUG tokio_doca::channel connected",
            "device=\"pf0\"",
            "peer=",
        ]);
        lines.has(&["DEBUG tokio_doca::channel accepted", "peer="]);
        client.disconnect().await;
        lines.has(&[
            "DEBUG tokio_doca::channel closed",
            "cause=\"this side has disconnected\"",
        ]);
        server.recv().await.unwrap_err();
        lines.has(&[
            "DEBUG tokio_doca::channel closed",
            "cause=\"the peer has disconnected",
        ]);
        drop(pair().await);
    });
    assert_eq!(lines.with(&["tokio_doca::channel closed"]).len(), 4);
}

#[test]
fn the_end_of_a_peer_that_is_killed_is_told() {
    const NAME: &str = test_name!(the_end_of_a_peer_that_is_killed_is_told);
    let setup = Setup::new(false, Mode::EventDriven);
    match role().as_deref() {
        None => Peer::start(NAME, "service").ends(),
        Some("victim") => {
            let side = Side::new(setup);
            side.meet_parent(true);
            say(&hex(&side.memory()));
            hear();
        }
        Some(_) => {
            let lines = Lines::everywhere();
            let mut victim = Peer::start(NAME, "victim");
            run(async {
                let side = Side::new(setup);
                side.meet_child(&mut victim, false);
                // As long as there is memory in common, its process is watched.
                let _remote = side.import(&unhex(&victim.hear()));
                let pid = format!("pid={}", victim.pid());
                victim.kill();
                side.failed().await;
                until("it is told", || {
                    !lines.with(&["peer process ended", &pid]).is_empty()
                })
                .await;
                lines.has(&["WARN tokio_doca::rdma state", "rdma=1", "state=\"Error\""]);
            });
        }
    }
}
