//! The events that an operator sees, one of each kind in docs/guide/tracing.md. Only a subscriber
//! of the whole process receives events of other threads, so each test is `alone`, or in its own
//! process.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures::{FutureExt, future::join};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::channel::{Raw, pair, service, unique};
use support::device::under_test;
use support::loopback::Loopback;
use support::peer::{Peer, hear, hex, role, say, unhex};
use support::rdma::{Setup, Side, connect};
use support::stream::{self, Net, offer, small};
use support::subscriber::Lines;
use support::{test_name, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_doca::channel::Channel;
use tokio_doca::soft::Fault;
use tokio_doca::stream::StreamOptions;
use tokio_doca::{Device, Dma, ErrorKind, Mode, WorkQ, mem::RemoteMmap};

use crate::stream::descriptors_are_short;

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
        // The job keeps its slot until the result is fetched.
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
        // A peer that leaves is not reported as a fault.
        lines.has(&[
            "DEBUG tokio_doca::rdma state",
            "rdma=1",
            "state=\"Error\"",
            "cause=",
        ]);
        one.rdma.reset().unwrap();
        connect(&one.rdma, &other.rdma);
        let received = join(one.rdma.send(one.filled(b"long")), other.rdma.recv(())).await;
        received.1.unwrap_err();
        for number in ["rdma=1", "rdma=2"] {
            lines.has(&[
                "WARN tokio_doca::rdma state",
                number,
                "state=\"Error\"",
                "cause=",
            ]);
        }
    });
    assert_eq!(lines.with(&["DEBUG tokio_doca::rdma closed"]).len(), 2);
}

const STREAM: &str = "tokio_doca::stream";

#[test]
fn streams_are_told_with_their_peers_and_warn_of_faults_alone() {
    if !alone(test_name!(
        streams_are_told_with_their_peers_and_warn_of_faults_alone
    )) {
        return;
    }
    let lines = Lines::everywhere();
    let device = Device::open_default().unwrap();
    run(async {
        let net = Net::new(&device, Mode::EventDriven, small().connections(1)).await;
        let addr = format!("addr={}", net.addr);
        lines.has(&["DEBUG", STREAM, "bound", &addr]);
        let (mut here, mut there) = net.pair().await;
        lines.has(&["DEBUG", STREAM, " connected", &addr]);
        lines.has(&["DEBUG", STREAM, " accepted", "peer=127.0.0.1:"]);

        // An orderly end.
        here.write_all(b"hello").await.unwrap();
        here.shutdown().await.unwrap();
        let mut came = Vec::new();
        in_time("its end", there.read_to_end(&mut came))
            .await
            .unwrap();
        there.shutdown().await.unwrap();
        in_time("the other end", here.read_to_end(&mut came))
            .await
            .unwrap();
        drop((here, there));
        assert_eq!(lines.with(&["DEBUG", STREAM, " ended", "peer="]).len(), 2);
        until("both are closed", || {
            lines.with(&["tokio_doca::rdma closed"]).len() == 2
        })
        .await;
        for peer in [&format!("peer={}", net.addr), "peer=127.0.0.1:"] {
            lines.has(&["DEBUG tokio_doca::rdma closed", "rdma=", peer]);
        }
        assert_eq!(lines.with(&["WARN"]), [""; 0]);

        // Refusals with and without a reason.
        let refuse = async { net.listener.accept().await?.refuse("not you").await };
        let (connected, refused) = join(net.connector.connect(net.addr), refuse).await;
        refused.and(connected.map(drop)).unwrap_err();
        lines.has(&["DEBUG", STREAM, " refused", "peer=", "reason=\"not you\""]);
        let text = "the peer refuses: not you";
        lines.has(&["WARN", STREAM, "not connected", &addr, text]);
        let drops = async { net.listener.accept().await.map(drop) };
        let (connected, dropped) = join(net.connector.connect(net.addr), drops).await;
        dropped.and(connected.map(drop)).unwrap_err();
        let refused = lines.with(&["DEBUG", STREAM, " refused", "peer=127.0.0.1:"]);
        assert_eq!(refused.len(), 2, "{refused:?}");
        let _busy = net.pair_once_there_is_memory().await;
        let other = small()
            .connector(&device, &WorkQ::builder().build().unwrap())
            .unwrap();
        let accept = async { net.listener.accept().await?.accept(b"").await };
        let (connected, accepted) = join(other.connect(net.addr), accept).await;
        connected.unwrap_err();
        accepted.unwrap_err();
        lines.has(&[
            "DEBUG",
            STREAM,
            "not accepted",
            "peer=",
            "all memory for 1 streams",
        ]);

        // A stranger that speaks HTTP.
        let mut curl = tokio::net::TcpStream::connect(net.addr).await.unwrap();
        curl.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let heard = async {
            loop {
                if !lines
                    .with(&["DEBUG", STREAM, "no peer", "peer=127.0.0.1:"])
                    .is_empty()
                {
                    break;
                }
                assert!(
                    net.listener.accept().now_or_never().is_none(),
                    "it is no peer"
                );
                tokio::task::yield_now().await;
            }
        };
        in_time("the stranger", heard).await;
        assert_eq!(net.listener.drain(Duration::ZERO).await, 1);
        lines.has(&["DEBUG", STREAM, "drained", &addr, "left=1"]);
    });
}

/// A peer that sends nothing, a peer that does not report that it is connected, and streams that
/// are dropped before all data was sent.
#[test]
fn peers_that_are_too_slow_and_streams_that_linger_are_told() {
    if !alone(test_name!(
        peers_that_are_too_slow_and_streams_that_linger_are_told
    )) {
        return;
    }
    let lines = Lines::everywhere();
    let device = under_test(true);
    run(async {
        let options = small().timeout(Duration::from_millis(50));
        let net = Net::new(&device, Mode::EventDriven, options).await;
        let silent = TcpStream::connect(net.addr).await.unwrap();
        let peer = format!("peer={}", silent.local_addr().unwrap());
        let out = ["DEBUG tokio_doca::stream timed out", &peer, "50ms"];
        until_with(pin!(net.listener.accept()), || !lines.with(&out).is_empty()).await;

        let rdma = Side::new(Setup::new(false, Mode::EventDriven)).rdma;
        let mut slow = TcpStream::connect(net.addr).await.unwrap();
        let hello = offer(0, 0, &rdma.export().unwrap());
        stream::say(&mut slow, &hello).await.unwrap();
        let incoming = in_time("the hello", net.listener.accept()).await.unwrap();
        in_time("the end", incoming.accept(b"")).await.unwrap_err();
        let peer = format!("peer={}", slow.local_addr().unwrap());
        lines.has(&["DEBUG tokio_doca::stream timed out", &peer, "50ms"]);

        let net = Net::new(&device, Mode::EventDriven, small().linger(LIMIT)).await;
        let (mut here, mut there) = net.pair().await;
        here.write_all(b"hello").await.unwrap();
        drop(here);
        let peer = format!("peer={}", net.addr);
        let lingered = ["DEBUG tokio_doca::stream lingered", &peer];
        assert_eq!(lines.with(&lingered).len(), 0);
        let mut came = Vec::new();
        let read = there.read_to_end(&mut came);
        in_time("the end", read).await.unwrap();
        until("it is told", || lines.with(&lingered).len() == 1).await;
    });
}

/// The side that found no RDMA logs a warning with the reason.
#[test]
fn streams_that_go_on_without_rdma_are_told() {
    if !alone(test_name!(streams_that_go_on_without_rdma_are_told)) {
        return;
    }
    let lines = Lines::everywhere();
    let (none, soft) = (Loopback::without_rdma(), under_test(false));
    run(async {
        for (devices, at) in [([&none, &soft], 0), ([&soft, &none], 1)] {
            let options = small().or_tcp(true);
            let net = Net::between(devices, 64, Mode::EventDriven, options).await;
            let (here, there) = net.pair().await;
            assert_eq!(
                lines
                    .with(&["WARN tokio_doca::stream no RDMA", "has no RDMA"])
                    .len(),
                at + 1
            );
            let peers = [&here, &there].map(|stream| format!("peer={}", stream.peer()));
            for (side, peer) in peers.iter().enumerate() {
                let (level, why) = match side == at {
                    true => ("WARN", "has no RDMA"),
                    false => ("INFO", ""),
                };
                let told = lines.with(&[level, STREAM, " fell back", peer, why]);
                assert_eq!(told.len(), 1, "{level} {peer}");
                let made = if side == 0 { " connected" } else { " accepted" };
                lines.has(&["DEBUG", STREAM, made, peer, "transport=Tcp"]);
            }
        }
    });
}

/// Polls a pending future until a condition holds, each time that the future's waker is called.
async fn until_with<F: Future>(mut future: Pin<&mut F>, done: impl Fn() -> bool) {
    let wait = poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        if done() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    in_time("the event", wait).await;
}

/// An empty pool, two handshakes one after the other, and a listener that nothing polls.
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
        let begun = std::time::Instant::now();
        until_with(first.as_mut(), || !lines.with(&waits).is_empty()).await;
        assert!(begun.elapsed() >= Duration::from_secs(1));
        poll_pending(first.as_mut());
        assert_eq!(lines.with(&waits).len(), 1);
        let second = other.rdma.handshake(&mut there);
        let (first, second) = tokio::join!(first, second);
        first.and(second).unwrap();
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = StreamOptions::new()
            .connections(1)
            .timeout(Duration::from_millis(1200));
        let connector = connector.connector(one.rdma.device(), &one.workq).unwrap();
        let addr = socket.local_addr().unwrap();
        let connected = connector.connect(addr).await;
        assert_eq!(connected.unwrap_err().kind(), ErrorKind::TimedOut);
        let addr = format!("addr={addr}");
        lines.has(&["WARN tokio_doca::stream timed out", &addr, "1.2s"]);
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

/// The event is logged each time that descriptors run short, and not at each attempt.
#[test]
fn clients_and_peers_that_wait_for_a_descriptor_are_told_once() {
    if !alone(test_name!(
        clients_and_peers_that_wait_for_a_descriptor_are_told_once
    )) {
        return;
    }
    let lines = Lines::everywhere();
    run(async {
        let name = unique("short");
        let service = service(Channel::builder(), &name);
        let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
        let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let clients_wait = ["WARN tokio_doca::channel clients wait", &name, "error="];
        let peers_wait = ["WARN tokio_doca::stream peers wait", "error="];
        for times in 1..=2 {
            let mut client = Raw::of_pf0(&name);
            client.greet(&name, 4080);
            let mut peer = TcpStream::connect(net.addr).await.unwrap();
            stream::say(&mut peer, &offer(0, 0, b"blob")).await.unwrap();
            descriptors_are_short();
            let tries = Duration::from_millis(250);
            let both = join(service.accept(), net.listener.accept());
            tokio::time::timeout(tries, both).await.unwrap_err();
            assert_eq!(lines.with(&clients_wait).len(), times);
            assert_eq!(lines.with(&peers_wait).len(), times);
            setrlimit(Resource::RLIMIT_NOFILE, limits.0, limits.1).unwrap();
            let both = join(service.accept(), net.listener.accept());
            let (client, peer) = in_time("both", both).await;
            drop((client.unwrap(), peer.unwrap()));
        }
    });
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
                // While memory is shared with a process, its end is watched.
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
