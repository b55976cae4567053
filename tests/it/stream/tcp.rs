//! Streams of sides that have no RDMA in common, which use the TCP connection of the exchange. All
//! tests with `each` also run over TCP; here are the fallback itself and the features of TCP.

use std::io::ErrorKind as IoErrorKind;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{Either, join, join_all, select, try_join};
use support::device::under_test;
use support::loopback::Loopback;
use support::programs::Folder;
use support::stream::{Net, bytes, crosses, hear, offer, say, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Runtime};
use tokio_doca::stream::{RdmaConnector, RdmaStream, StreamOptions, StreamTransport};
use tokio_doca::{Device, Error, ErrorKind, Mode, WorkQ};

/// The maximum payload of a frame on small streams, in bytes.
const MOST: usize = 252;

/// Returns devices of a connector and a listener that have no RDMA in common: devices of two kinds,
/// either way around, and a device without RDMA on either side.
fn strangers() -> [[Device; 2]; 4] {
    let other = || Loopback::device(false).1;
    [
        [other(), under_test(false)],
        [under_test(false), other()],
        [Loopback::without_rdma(), under_test(false)],
        [under_test(false), Loopback::without_rdma()],
    ]
}

/// Makes a listener and a connector on two such devices.
async fn net([here, there]: &[Device; 2], options: StreamOptions) -> Net {
    Net::between([here, there], 64, Mode::EventDriven, options).await
}

/// Returns a pair over TCP.
async fn tcp_pair(options: StreamOptions) -> (Net, RdmaStream, RdmaStream) {
    let net = net(&strangers()[2], options.or_tcp(true)).await;
    let (here, there) = net.pair().await;
    (net, here, there)
}

#[test]
fn sides_without_rdma_in_common_go_on_over_tcp_and_say_so() {
    run(async {
        for devices in strangers() {
            let names = devices.each_ref().map(|device| device.info().name());
            eprintln!("{names:?}");
            let net = net(&devices, small().or_tcp(true)).await;
            let accept = async {
                let incoming = net.listener.accept().await?;
                assert_eq!(incoming.data(), b"version 2");
                let known = incoming.transport();
                Ok::<_, Error>((known, incoming.accept(b"welcome").await?))
            };
            let both = try_join(net.connector.connect_with(net.addr, b"version 2"), accept);
            let met = in_time("the connection", both).await.unwrap();
            let ((mut here, answer), (known, mut there)) = met;
            assert_eq!(answer, b"welcome");
            // A device of another provider may not know in advance which peers it reaches.
            let says =
                devices[1].info().provider() == "soft" || devices[1].info().caps().rdma.is_none();
            let expected = if says {
                StreamTransport::Tcp
            } else {
                StreamTransport::Rdma
            };
            assert_eq!(known, expected);
            for stream in [&here, &there] {
                assert_eq!(stream.transport(), StreamTransport::Tcp);
                assert!(stream.rdma().is_none() && stream.peer_addr().is_some());
            }
            crosses(&mut here, &mut there).await;
            crosses(&mut there, &mut here).await;
            let stats = net.listener.stats();
            assert_eq!((stats.accepted, stats.fell_back, stats.open), (1, 1, 1));
        }
    });
}

#[test]
fn sides_that_have_rdma_use_it_though_they_may_do_without() {
    run(async {
        let device = under_test(false);
        let net = net(&[device.clone(), device], small().or_tcp(true)).await;
        let (here, there) = net.pair().await;
        for stream in [&here, &there] {
            assert_eq!(stream.transport(), StreamTransport::Rdma);
            assert!(stream.rdma().is_some());
        }
        assert_eq!(net.listener.stats().fell_back, 0);
    });
}

#[test]
fn a_side_that_demands_rdma_gets_no_stream_and_a_reason() {
    run(async {
        let addr: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let workq = || WorkQ::builder().build().unwrap();
        let (none, soft) = (Loopback::without_rdma(), under_test(false));
        let may = small().or_tcp(true);
        for (there, here) in [
            ((&soft, small()), (&none, may)),
            ((&none, may), (&soft, small())),
        ] {
            let listener = there.1.bind(there.0, &workq(), addr).await.unwrap();
            let connector = here.1.connector(here.0, &workq()).unwrap();
            let accept = async { listener.accept().await?.accept(b"").await };
            let connect = connector.connect(listener.tcp_addr().unwrap());
            let (connected, accepted) = in_time("both", join(connect, accept)).await;
            rejected(accepted, ErrorKind::NotSupported);
            let text = rejected(connected, ErrorKind::NotSupported);
            assert!(text.contains("one of them demands it"), "{text}");
            assert_eq!(listener.stats().failed, 1);
        }
        // With a device that has no RDMA, such a side is refused before a peer comes.
        let text = rejected(small().connector(&none, &workq()), ErrorKind::NotSupported);
        assert!(text.contains("or_tcp"), "{text}");
        let bound = small().bind(&none, &workq(), addr).await;
        rejected(bound, ErrorKind::NotSupported);
    });
}

#[test]
fn a_stream_goes_on_over_a_unix_socket_as_well() {
    run(async {
        let (folder, [here, there]) = (Folder::new(), &strangers()[2]);
        let (path, options) = (folder.path("socket"), small().or_tcp(true));
        let workq = WorkQ::builder().build().unwrap();
        let listener = options.bind(there, &workq, path.as_path()).await.unwrap();
        let connector = options.connector(here, &workq).unwrap();
        let accept = async { listener.accept().await?.accept(b"").await };
        let both = try_join(connector.connect(path.as_path()), accept);
        let (mut here, mut there) = in_time("the connection", both).await.unwrap();
        assert_eq!(here.transport(), StreamTransport::Tcp);
        assert!(there.peer().user_id().is_some() && there.peer_addr().is_none());
        crosses(&mut here, &mut there).await;
        in_time("the end", here.shutdown()).await.unwrap();
        assert_eq!(there.read(&mut [0; 9]).await.unwrap(), 0);
    });
}

/// Writes until the socket accepts no more. Returns the number of bytes written.
async fn fill(stream: &mut RdmaStream) -> usize {
    let mut len = 0;
    for _ in 0..100 {
        while let Some(written) = stream.write(&bytes(len..len + 100_000)).now_or_never() {
            len += written.unwrap();
        }
        tokio::task::yield_now().await;
    }
    len
}

/// The socket has a part of the last frame.
#[test]
fn what_a_write_has_accepted_goes_on_though_nobody_polls_again() {
    run(async {
        let (_net, mut here, mut there) = tcp_pair(StreamOptions::new()).await;
        let len = fill(&mut here).await;
        assert!(here.stats().resource_waits > 0 && here.stats().bytes_sent == len as u64);
        let mut came = vec![0; len];
        in_time("all of it", there.read_exact(&mut came))
            .await
            .unwrap();
        assert!(came == bytes(0..len));
    });
}

#[test]
fn a_shutdown_fails_if_the_peer_goes_before_its_host_has_all() {
    run(async {
        for shuts_down in [true, false] {
            let (_net, mut here, there) = tcp_pair(StreamOptions::new()).await;
            fill(&mut here).await;
            if shuts_down {
                assert!(here.shutdown().now_or_never().is_none());
            }
            drop(there);
            for _ in 0..2 {
                let ended = in_time("the end", here.shutdown()).await;
                assert_eq!(ended.unwrap_err().kind(), IoErrorKind::ConnectionReset);
            }
        }
    });
}

fn net_connector([here, _]: &[Device; 2]) -> RdmaConnector {
    let workq = WorkQ::builder().build().unwrap();
    small().or_tcp(true).connector(here, &workq).unwrap()
}

#[test]
fn streams_over_tcp_have_the_places_of_connections() {
    run(async {
        for devices in [&strangers()[2], &strangers()[0]] {
            let net = net(devices, small().or_tcp(true).connections(1)).await;
            let (here, there) = net.pair().await;
            // `other` has free memory, and the listener refuses it for lack of its own.
            // `net.connector` has no free memory itself.
            let other = net_connector(devices);
            for (connector, full) in [(&other, "the peer refuses"), (&net.connector, "in use")] {
                let accept = async { net.listener.accept().await?.accept(b"").await.map(drop) };
                let (connects, accept) = (Box::pin(connector.connect(net.addr)), Box::pin(accept));
                let both = select(connects, accept);
                let connected = match in_time("the refusal", both).await {
                    Either::Left((connected, _)) => connected,
                    Either::Right((accepted, connects)) => {
                        rejected(accepted, ErrorKind::Full);
                        connects.await
                    }
                };
                let text = rejected(connected, ErrorKind::Full);
                assert!(text.contains(full), "{text}");
            }
            drop((here, there));
            let (mut here, mut there) = net.pair_once_there_is_memory().await;
            crosses(&mut here, &mut there).await;
        }
    });
}

/// A listener's peer over TCP, written by hand.
struct Raw(TcpStream);

impl Raw {
    async fn hello(net: &Net, flags: u8) -> Raw {
        let mut socket = TcpStream::connect(net.addr).await.unwrap();
        let mut hello = offer(0, 0, b"");
        hello[6..10].copy_from_slice(&(1_u32 << 17).to_be_bytes());
        hello[13] = flags;
        say(&mut socket, &hello).await.unwrap();
        Raw(socket)
    }

    async fn meet(net: &Net) -> (Raw, RdmaStream) {
        let mut raw = Raw::hello(net, 1).await;
        let meet = async {
            let welcome = hear(&mut raw.0).await;
            // The welcome has the flag for TCP, and no blob.
            assert_eq!(&welcome[..6], b"TDST\x02\x01");
            assert_eq!(&welcome[12..], &[0, 1, 0, 0]);
            say(&mut raw.0, b"TDST\x02\x02").await.unwrap();
        };
        let accept = async { net.listener.accept().await?.accept(b"").await };
        let (stream, ()) = in_time("the exchange", join(accept, meet)).await;
        (raw, stream.unwrap())
    }
}

#[test]
fn a_stream_over_tcp_speaks_as_docs_wire_says() {
    run(async {
        let device = under_test(false);
        let net = net(&[device.clone(), device], small().or_tcp(true)).await;
        let (mut raw, mut stream) = Raw::meet(&net).await;
        say(&mut raw.0, b"\x00\x00\x00\x00hello").await.unwrap();
        let mut hello = [0; 5];
        in_time("hello", stream.read_exact(&mut hello))
            .await
            .unwrap();
        assert_eq!(&hello, b"hello");
        stream.write_all(&bytes(0..MOST + 1)).await.unwrap();
        for range in [0..MOST, MOST..MOST + 1] {
            let frame = hear(&mut raw.0).await;
            assert_eq!((&frame[..4], &frame[4..]), (&[0; 4][..], &bytes(range)[..]));
        }
        in_time("the end", stream.shutdown()).await.unwrap();
        assert_eq!(hear(&mut raw.0).await, [1, 0, 0, 0]);
        say(&mut raw.0, &[1, 0, 0, 0]).await.unwrap();
        assert_eq!(stream.read(&mut hello).await.unwrap(), 0);
    });
}

#[test]
fn frames_over_tcp_that_are_none_end_their_stream_alone() {
    run(async {
        let device = under_test(false);
        let net = net(&[device.clone(), device], small().or_tcp(true)).await;
        let (mut here, mut there) = net.pair().await;
        let long = vec![0; 257];
        let none: [&[u8]; 7] = [
            b"",
            b"\x00\x00\x00",
            b"\x00\x00\x00\x00",
            b"\x00\x00\x00\x01data",
            b"\x01\x00\x00\x00data",
            b"\x02\x00\x00\x01",
            &long,
        ];
        for frame in none {
            let (mut raw, mut stream) = Raw::meet(&net).await;
            say(&mut raw.0, frame).await.unwrap();
            for _ in 0..2 {
                let read = in_time("an error", stream.read(&mut [0; 9])).await;
                assert_eq!(read.unwrap_err().kind(), IoErrorKind::ConnectionAborted);
            }
            let write = stream.write(b"more").await.unwrap_err();
            assert_eq!(write.kind(), IoErrorKind::ConnectionAborted);
            assert_eq!(
                raw.0.read(&mut [0; 9]).await.unwrap_or(0),
                0,
                "it has hung up"
            );
        }
        // A peer that disconnects without an orderly end.
        let (raw, mut stream) = Raw::meet(&net).await;
        drop(raw);
        let read = in_time("an error", stream.read(&mut [0; 9])).await;
        let error = read.unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::ConnectionReset);
        assert!(
            error.to_string().contains("connect another stream"),
            "{error}"
        );
        crosses(&mut here, &mut there).await;
    });
}

/// The strangers claim to have no RDMA, or to have a device that does not exist, or send nothing,
/// or connect and vanish; some keep places of streams over TCP.
#[test]
fn strangers_cannot_make_an_honest_pair_fall_back() {
    run(async {
        let device = under_test(false);
        let options = small().connections(16).or_tcp(true).timeout(LIMIT);
        let net = net(&[device.clone(), device], options).await;
        let accept = async {
            let mut tasks = tokio::task::JoinSet::new();
            loop {
                let incoming = net.listener.accept().await.unwrap();
                tasks.spawn(async move { incoming.accept(b"").await });
                while let Some(done) = tasks.try_join_next() {
                    // Keeps the strangers' streams open.
                    if let Ok(stream) = done.unwrap()
                        && stream.transport() == StreamTransport::Tcp
                    {
                        std::mem::forget(stream);
                    }
                }
            }
        };
        let mut kept = Vec::new();
        let honest = async {
            for round in 0..40_u8 {
                let mut blob = vec![round; 200];
                blob[..8].copy_from_slice(b"tkdoca\x00\xb4");
                let mut forged = offer(0, 0, &blob);
                forged[13] = round & 1;
                let mut stranger = TcpStream::connect(net.addr).await.unwrap();
                say(&mut stranger, &forged).await.unwrap();
                if round < 8 {
                    kept.push(Raw::hello(&net, round & 1).await);
                    kept.push(Raw(stranger));
                }
                let connects = join_all([(); 2].map(|()| net.connector.connect(net.addr)));
                for stream in in_time("two streams", connects).await {
                    assert_eq!(stream.unwrap().transport(), StreamTransport::Rdma);
                }
            }
        };
        tokio::select! {
            never = accept => never,
            () = honest => {}
        }
    });
}

#[test]
fn a_thread_that_polls_takes_no_stream_over_tcp() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let net = net(&strangers()[2], small().or_tcp(true)).await;
        let workq = WorkQ::builder().build().unwrap();
        let device = Loopback::without_rdma();
        let connector = small().or_tcp(true).connector(&device, &workq).unwrap();
        let addr = net.addr;
        let polls = workq.poll_thread();
        let thread = polls.spawn(async move || connector.connect(addr).await.map(drop));
        let joined = tokio::task::spawn_blocking(|| thread.unwrap().join().unwrap());
        let connected = in_time("the thread", joined).await.unwrap();
        let text = rejected(connected, ErrorKind::NotSupported);
        assert!(text.contains("polls"), "{text}");
    });
}

#[test]
fn a_workq_that_was_shut_down_is_no_reason_for_tcp() {
    run(async {
        let device = under_test(false);
        let options = small().or_tcp(true);
        let net = net(&[device.clone(), device.clone()], options).await;
        let workq = WorkQ::builder().build().unwrap();
        let connector = options.connector(&device, &workq).unwrap();
        in_time("the shutdown", workq.shutdown()).await.unwrap();
        let connected = in_time("an error", connector.connect(net.addr)).await;
        rejected(connected, ErrorKind::BadState);
    });
}

/// A task of the runtime writes the rest of a frame.
#[test]
fn a_peer_that_does_not_read_keeps_nothing_after_the_linger() {
    run(async {
        let options = StreamOptions::new().or_tcp(true);
        let options = options.linger(Duration::from_millis(20));
        let net = net(&strangers()[2], options).await;
        let (_raw, mut stream) = Raw::meet(&net).await;
        let before = Handle::current().metrics().num_alive_tasks();
        fill(&mut stream).await;
        drop(stream);
        let tasks = || Handle::current().metrics().num_alive_tasks();
        until("all tasks have ended", || tasks() <= before).await;
        until("it is not open", || net.listener.stats().open == 0).await;
    });
}

fn with_time() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all().build().unwrap()
}

/// The shutdown is first polled on another runtime than the stream's own, with timers or without,
/// which then ends. In one case the stream's own runtime ends as well.
#[test]
fn a_shutdown_that_waits_outlives_the_runtime_that_polled_it() {
    for (own_goes, has_time) in [(true, true), (false, true), (false, false)] {
        let own = with_time();
        let (_net, mut here, _there) = own.block_on(tcp_pair(StreamOptions::new()));
        let mut other = tokio::runtime::Builder::new_current_thread();
        let other = if has_time {
            other.enable_all()
        } else {
            &mut other
        };
        let other = other.build().unwrap();
        other.block_on(async {
            // The socket has accepted the data, but the peer's host has not.
            fill(&mut here).await;
            for _ in 0..3 {
                assert!(here.shutdown().now_or_never().is_none());
                tokio::task::yield_now().await;
            }
        });
        drop(other);
        if own_goes {
            drop(own);
            let ended = futures::executor::block_on(here.shutdown());
            assert_eq!(ended.unwrap_err().kind(), IoErrorKind::NotConnected);
        }
        drop(here);
    }
}

/// A shutdown is acknowledged when the peer reads it, and not 40 ms later.
#[test]
fn a_shutdown_whose_peer_reads_is_quick() {
    run(async {
        let (_net, mut here, mut there) = tcp_pair(StreamOptions::new()).await;
        here.write_all(b"hello").await.unwrap();
        let begun = Instant::now();
        let mut came = Vec::new();
        let both = join(here.shutdown(), there.read_to_end(&mut came));
        in_time("the end", both).await.0.unwrap();
        assert_quick("a shutdown", begun.elapsed(), Duration::from_millis(30));
    });
}

#[test]
fn a_flush_says_that_something_was_lost() {
    run(async {
        let (_net, mut here, there) = tcp_pair(StreamOptions::new()).await;
        fill(&mut here).await;
        drop(there);
        let lost = async {
            while here.flush().await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        in_time("an error", lost).await;
        let flushed = here.flush().await.unwrap_err();
        assert_eq!(flushed.kind(), IoErrorKind::ConnectionReset);
    });
}

/// The peer breaks the protocol after it has received all accepted data, so that `flush` and
/// `shutdown` succeed.
#[test]
fn a_shutdown_after_nonsense_says_what_became_of_the_data() {
    run(async {
        let net = net(&strangers()[2], small().or_tcp(true)).await;
        for writes in [false, true] {
            let (mut raw, mut stream) = Raw::meet(&net).await;
            if writes {
                stream.write_all(b"hello").await.unwrap();
                assert_eq!(hear(&mut raw.0).await, b"\x00\x00\x00\x00hello");
            }
            say(&mut raw.0, b"").await.unwrap();
            in_time("an error", stream.read(&mut [0; 9]))
                .await
                .unwrap_err();
            stream.flush().await.unwrap();
            in_time("the end", stream.shutdown()).await.unwrap();
        }
    });
}

/// The peer might take the refusal for a frame.
#[test]
fn a_peer_that_is_welcome_over_tcp_is_not_refused_afterwards() {
    run(async {
        let options = small().or_tcp(true).timeout(Duration::from_millis(50));
        let net = net(&strangers()[2], options).await;
        let mut raw = Raw::hello(&net, 1).await;
        let accept = async { net.listener.accept().await?.accept(b"").await };
        rejected(in_time("the end", accept).await, ErrorKind::TimedOut);
        hear(&mut raw.0).await;
        let mut rest = Vec::new();
        _ = in_time("the end", raw.0.read_to_end(&mut rest)).await;
        assert_eq!(rest, b"");
    });
}

/// Any number of frames may arrive together with the message that the peer is there.
#[test]
fn frames_may_come_with_the_word_that_the_peer_is_there() {
    run(async {
        for len in [5, 1000, 17_000, 32_768] {
            let net = net(&strangers()[2], StreamOptions::new().or_tcp(true)).await;
            let mut raw = Raw::hello(&net, 1).await;
            let meet = async {
                hear(&mut raw.0).await;
                let frame = [&[0; 4][..], &bytes(0..len)].concat();
                let messages: [&[u8]; 5] =
                    [b"TDST\x02\x02", &frame, &frame, &frame, b"\x01\x00\x00\x00"];
                let mut all = Vec::new();
                for message in messages {
                    all.extend((message.len() as u32).to_be_bytes());
                    all.extend(message);
                }
                raw.0.write_all(&all).await.unwrap();
            };
            let accept = async { net.listener.accept().await?.accept(b"").await };
            let (stream, ()) = in_time("the exchange", join(accept, meet)).await;
            let mut came = Vec::new();
            let read = in_time("all", stream.unwrap().read_to_end(&mut came)).await;
            assert_eq!(read.unwrap(), 3 * len);
            assert!(came == bytes(0..len).repeat(3));
        }
    });
}
