//! How two sides connect: what each side learns about the other, which peers are refused, and peers
//! that break the protocol.

use std::future::{Future, poll_fn};
use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, TimedOut};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, join, join_all, select, try_join};
use support::device::under_test;
use support::loopback::Loopback;
use support::programs::Folder;
use support::stream::{Net, hear, offer, say, small};
use support::subscriber::OnEvent;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
use tokio_doca::rdma::RdmaState;
use tokio_doca::stream::{RdmaStream, StreamOptions};
use tokio_doca::{BufPool, Device, Error, ErrorKind, Mmap, Mode, Rdma, WorkQ};

async fn net(options: StreamOptions) -> Net {
    Net::new(&under_test(false), Mode::EventDriven, options).await
}

#[test]
fn each_side_learns_what_the_other_says_before_it_is_connected() {
    run(async {
        let net = net(small()).await;
        let device = under_test(false);
        let memory = Mmap::builder().device(&device);
        let memory = memory.access(Access::LOCAL_READ_WRITE | Access::RDMA_READ);
        let export = memory.alloc(4096).unwrap().export_rdma(&device).unwrap();
        let listen = async {
            let incoming = net.listener.accept().await?;
            assert_eq!(incoming.data(), export);
            let address = incoming.peer().tcp_addr().expect("by TCP");
            assert!(address.ip().is_loopback() && incoming.peer().user_id().is_none());
            incoming.accept(b"version 7").await
        };
        let connect = net.connector.connect_with(net.addr, &export);
        let both = in_time("the connection", try_join(listen, connect)).await;
        let (there, (here, data)) = both.unwrap();
        assert_eq!(data, b"version 7");
        assert_eq!(here.peer().tcp_addr(), Some(net.addr));
        assert!(there.peer().tcp_addr().is_some());
    });
}

/// The access flags of the export decide whether the peer may read.
#[test]
fn the_peer_of_a_stream_reads_memory_that_came_with_the_exchange_if_it_may() {
    run(async {
        let device = under_test(false);
        let readable = Access::LOCAL_READ_WRITE | Access::RDMA_READ;
        let memory = Mmap::builder().device(&device).access(readable);
        let memory = memory.alloc(4096).unwrap();
        let inventory = BufInventory::with_capacity(3);
        let text = inventory.buf(&memory, 64..80).unwrap();
        text.extend_from_slice(b"as it is").unwrap();
        let export = memory.export_rdma(&device).unwrap();
        for (permissions, may) in [(Access::RDMA_READ, true), (Access::empty(), false)] {
            let options = small().permissions(permissions);
            let net = Net::new(&device, Mode::EventDriven, options).await;
            let listen = async { net.listener.accept().await?.accept(&export).await };
            let connect = net.connector.connect_with(net.addr, b"");
            let both = in_time("the connection", try_join(listen, connect)).await;
            let (_there, (here, blob)) = both.unwrap();
            let remote = RemoteMmap::from_export(&device, &blob).await.unwrap();
            let into = Mmap::builder().device(&device).alloc(4096).unwrap();
            let into = inventory.buf(&into, ..).unwrap();
            let range = remote.buf(64..72).unwrap();
            let read = here.rdma().unwrap().read(&range, &into).await;
            match may {
                true => assert_eq!((read.unwrap(), bytes(&into)), (8, b"as it is".to_vec())),
                false => assert_eq!(read.unwrap_err().kind(), ErrorKind::NotPermitted),
            }
        }
    });
}

#[test]
fn a_listener_on_a_unix_socket_knows_its_peers_user() {
    run(async {
        let (device, folder) = (under_test(false), Folder::new());
        let workq = WorkQ::builder().build().unwrap();
        let path = folder.path("socket");
        let connector = small().connector(&device, &workq).unwrap();
        let nobody = connector.connect(path.as_path()).await;
        rejected(nobody, ErrorKind::ConnectionAborted);
        let listener = small().bind(&device, &workq, path.as_path()).await.unwrap();
        assert_eq!(listener.local_addr(), &path.clone().into());
        let again = small().bind(&device, &workq, path.clone()).await;
        rejected(again, ErrorKind::AlreadyExist);
        let listen = async {
            let incoming = listener.accept().await?;
            let user = nix::unistd::geteuid().as_raw();
            assert_eq!(incoming.peer().user_id(), Some(user));
            assert_eq!(
                incoming.peer().process_id(),
                Some(std::process::id() as i32)
            );
            incoming.accept(b"").await
        };
        let both = try_join(listen, connector.connect(path));
        let (mut there, mut here) = in_time("the connection", both).await.unwrap();
        here.write_all(b"hello").await.unwrap();
        let mut hello = [0; 5];
        there.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
    });
}

/// The `tracing` subscriber is the application's code.
#[test]
fn a_subscriber_that_hears_of_a_stranger_may_use_the_listener() {
    on_a_thread("a listener after a stranger's words", || {
        run(async {
            let (net, heard) = (Arc::new(net(small()).await), Arc::new(AtomicUsize::new(0)));
            let (same, counter) = (Arc::clone(&net), Arc::clone(&heard));
            let accepts = OnEvent::new(move |_| {
                assert!(same.listener.accept().now_or_never().is_none());
                counter.fetch_add(1, Relaxed);
            });
            let _guard = tracing::subscriber::set_default(accepts);
            let refusal = &b"TDST\x02\x03not you"[..];
            for (count, words) in (1..).zip([refusal, b"TDST\x09\x01", b"nonsense"]) {
                let mut stranger = TcpStream::connect(net.addr).await.unwrap();
                say(&mut stranger, words).await.unwrap();
                let mut accept = pin!(net.listener.accept());
                let told = poll_fn(|cx| {
                    assert!(accept.as_mut().poll(cx).is_pending());
                    match heard.load(Relaxed) == count {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                });
                in_time("the event", told).await;
            }
        });
    });
}

#[test]
fn a_connector_reads_why_it_is_refused() {
    run(async {
        let net = net(small()).await;
        let refuse = async {
            let incoming = net.listener.accept().await.unwrap();
            incoming.refuse("no such tenant").await.unwrap();
            // Refuses a second peer by dropping its request.
            drop(net.listener.accept().await.unwrap());
        };
        let connects = async {
            let error = net.connector.connect(net.addr).await;
            let text = rejected(error, ErrorKind::NotPermitted);
            assert!(text.contains("no such tenant"), "{text}");
            assert!(text.starts_with("RdmaConnector::connect: "), "{text}");
            let dropped = net.connector.connect(net.addr).await;
            rejected(dropped, ErrorKind::ConnectionAborted);
        };
        in_time("the refusals", join(refuse, connects)).await;
        let long = vec![0; (16 << 10) + 1];
        let error = net.connector.connect_with(net.addr, &long).await;
        mentions(&rejected(error, ErrorKind::InvalidValue), &[16384, 16385]);
        // No memory was lost: four streams can connect.
        let pairs: Vec<_> = futures::StreamExt::collect(futures::StreamExt::then(
            futures::stream::iter(0..4),
            |_| net.pair(),
        ))
        .await;
        assert_eq!(pairs.len(), 4);
    });
}

#[test]
fn a_listener_without_memory_says_so() {
    run(async {
        let listening = net(small().connections(1)).await;
        let connecting = net(small()).await;
        let accept = async || {
            let incoming = listening.listener.accept().await?;
            incoming.accept(b"").await
        };
        let connect = async || connecting.connector.connect(listening.addr).await;
        let first = in_time("the first", try_join(accept(), connect())).await;
        let _first = first.unwrap();
        let (granted, connected) = in_time("the second", join(accept(), connect())).await;
        rejected(granted, ErrorKind::Full);
        let text = rejected(connected, ErrorKind::Full);
        assert!(text.contains("all streams are in use"), "{text}");
    });
}

/// One side of an exchange that is written by hand.
pub(super) struct Raw {
    socket: TcpStream,
    rdma: Rdma,
    pool: BufPool,
}

impl Raw {
    pub(super) async fn new(net: &Net) -> Raw {
        Raw::on(&under_test(false), net).await
    }

    async fn on(device: &Device, net: &Net) -> Raw {
        let workq = WorkQ::builder().build().unwrap();
        let memory = Mmap::builder().device(device).alloc(1 << 16).unwrap();
        Raw {
            socket: TcpStream::connect(net.addr).await.unwrap(),
            rdma: Rdma::builder(device).attach(&workq).unwrap(),
            pool: BufPool::builder(&memory)
                .element_size(1024)
                .build()
                .unwrap(),
        }
    }

    pub(super) async fn say(&mut self, message: &[u8]) {
        // The listener may have hung up.
        _ = say(&mut self.socket, message).await;
    }

    async fn hear(&mut self) -> Vec<u8> {
        hear(&mut self.socket).await
    }

    pub(super) fn hello(&self) -> Vec<u8> {
        offer(0, 0, &self.rdma.export().unwrap())
    }

    /// Connects to the listener as docs/wire.md describes. The first frame gives `credits` credits.
    pub(super) async fn meet(net: &Net, credits: u8) -> (Raw, RdmaStream) {
        let (raw, stream) = Raw::meet_with(net, &[2, 0, 0, credits]).await;
        (raw, stream.unwrap())
    }

    /// Connects in the same way, with `first` as the first frame.
    async fn meet_with(net: &Net, first: &[u8]) -> (Raw, Result<RdmaStream, Error>) {
        let mut raw = Raw::new(net).await;
        raw.say(&raw.hello()).await;
        let meet = async {
            let welcome = raw.hear().await;
            assert_eq!(&welcome[..6], b"TDST\x02\x01");
            let len = u16::from_be_bytes([welcome[14], welcome[15]]);
            let blob = &welcome[16..][..len.into()];
            raw.rdma.connect(blob).await.unwrap();
            raw.send(first).await;
            raw.say(b"TDST\x02\x02").await;
        };
        let accept = async { net.listener.accept().await?.accept(b"").await };
        let (stream, ()) = in_time("the exchange", join(accept, meet)).await;
        (raw, stream)
    }

    async fn send(&self, frame: &[u8]) {
        let buf = self.pool.alloc().await;
        buf.extend_from_slice(frame).unwrap();
        self.rdma.send(&buf).await.unwrap();
    }
}

#[test]
fn a_stream_speaks_as_docs_wire_says() {
    run(async {
        let net = net(small()).await;
        let (raw, mut stream) = Raw::meet(&net, 9).await;
        raw.send(b"\x00\x00\x00\x00hello").await;
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        // The receive is posted again when the stream would wait.
        assert!(stream.read(&mut hello).now_or_never().is_none());
        let buf = raw.pool.alloc().await;
        let both = join(raw.rdma.recv(&buf), stream.write_all(b"you"));
        in_time("the answer", both).await.0.unwrap();
        // This frame acknowledges the introduction, and returns the credit.
        assert_eq!(&buf.data().unwrap()[..], b"\x00\x01\x00\x01you");
        raw.send(b"\x01\x00\x00\x00").await;
        assert_eq!(stream.read(&mut hello).await.unwrap(), 0);
    });
}

/// A stranger's text decides neither the error of `accept` nor what is counted: a server may end on
/// `Shutdown`.
#[test]
fn a_stranger_cannot_choose_why_it_is_not_accepted() {
    run(async {
        let net = net(small()).await;
        let reasons = [
            "the listener drains",
            "all streams are in use",
            "no such tenant",
        ];
        for reason in reasons {
            let mut raw = Raw::new(&net).await;
            raw.say(&raw.hello()).await;
            let leaves = async {
                raw.hear().await;
                raw.say(&[b"TDST\x02\x03", reason.as_bytes()].concat())
                    .await;
            };
            let accept = async { net.listener.accept().await?.accept(b"").await };
            let (stream, ()) = in_time("the exchange", join(accept, leaves)).await;
            let text = rejected(stream, ErrorKind::ConnectionAborted);
            assert!(text.contains(reason), "{text}");
        }
        let stats = net.listener.stats();
        assert_eq!((stats.failed, stats.full, stats.refused), (3, 0, 0));
    });
}

#[test]
fn a_connector_that_does_not_introduce_itself_gets_no_stream() {
    run(async {
        let net = net(small()).await;
        let frames: [&[u8]; 3] = [
            b"\x00\x00\x00\x09data",
            b"\x01\x00\x00\x09",
            b"\x02\x01\x00\x09",
        ];
        for first in frames {
            let (_raw, stream) = Raw::meet_with(&net, first).await;
            rejected(stream, ErrorKind::ConnectionAborted);
        }
        net.pair().await;
    });
}

#[test]
fn frames_that_are_none_end_the_stream() {
    run(async {
        let net = net(small()).await;
        let frames: [&[u8]; 10] = [
            b"",
            b"\x00\x00\x00\x00with an immediate",
            b"\x00\x00\x00",
            b"\x00\x00\x00\x00",
            b"\x01\x00\x00\x00x",
            b"\x02\x00\x00\x00",
            b"\x02\x01\x00\x01",
            b"\x03\x00\x00\x00x",
            b"\x00\x02\x00\x00x",
            b"\xff\xff\xff\xffxxxxxxx",
        ];
        for frame in frames {
            let (raw, mut stream) = Raw::meet(&net, 9).await;
            raw.send(b"\x00\x00\x00\x00good").await;
            match frame {
                b"" => drop(raw.rdma.send(()).await.unwrap()),
                _ if frame.ends_with(b"immediate") => {
                    let buf = raw.pool.alloc().await;
                    buf.extend_from_slice(frame).unwrap();
                    raw.rdma.send_imm(&buf, 7).await.unwrap();
                }
                frame => raw.send(frame).await,
            }
            let mut good = [0; 4];
            stream.read_exact(&mut good).await.unwrap();
            let read = in_time("the error", stream.read(&mut good)).await;
            let error = read.unwrap_err();
            assert_eq!(error.kind(), ConnectionAborted, "{frame:?}: {error}");
            for error in [
                stream.read(&mut good).await.map(drop),
                stream.write(&[0; 99]).await.map(drop),
            ] {
                assert_eq!(error.unwrap_err().kind(), ConnectionAborted, "{frame:?}");
            }
            // No accepted data is lost.
            stream.shutdown().await.unwrap();
            // The peer is disconnected, and sees no orderly end of the data.
            let buf = raw.pool.alloc().await;
            let end = in_time("the reset", raw.rdma.recv(&buf)).await;
            assert!(end.unwrap_err().is_disconnect(), "{frame:?}");
        }
    });
}

/// A shutdown that has completed stays so, although a frame of credits waits because the peer has
/// no receive for it.
#[test]
fn shutdown_waits_for_no_frame_behind_the_end() {
    run(async {
        let net = net(small()).await;
        let (raw, mut stream) = Raw::meet(&net, 9).await;
        let buf = raw.pool.alloc().await;
        let both = join(raw.rdma.recv(&buf), stream.shutdown());
        in_time("the end", both).await.1.unwrap();
        for _ in 0..3 {
            raw.send(b"\x00\x00\x00\x00x").await;
        }
        stream.read_exact(&mut [0; 3]).await.unwrap();
        assert_eq!(stream.rdma().unwrap().workq().in_flight(), 1);
        stream.shutdown().now_or_never().expect("over").unwrap();
    });
}

/// The peer acknowledges a frame of credits before it receives it. The stream cannot distinguish
/// this from a peer that has received the frame while another thread has not yet completed the
/// send.
#[test]
fn a_frame_of_credits_waits_for_the_end_of_the_last_one() {
    for reads in [false, true] {
        run(async {
            let net = net(small().recv_window(1)).await;
            let (raw, mut stream) = Raw::meet(&net, 9).await;
            for acknowledges in [0, 1] {
                raw.send(&[0, acknowledges, 0, 0, b'x']).await;
                let read = in_time("the data", stream.read_u8()).await;
                assert_eq!(read.unwrap(), b'x');
            }
            assert_eq!(stream.rdma().unwrap().workq().in_flight(), 1);
            let take = async {
                for number in 0..2 {
                    let buf = raw.pool.alloc().await;
                    in_time("credits", raw.rdma.recv(&buf)).await.unwrap();
                    // The first frame acknowledges the introduction.
                    let head = [2, 1 - number, 0, 1];
                    assert_eq!(&buf.data().unwrap()[..], head, "frame {number}");
                }
            };
            match reads {
                true => _ = in_time("both", select(pin!(take), pin!(stream.read(&mut [0])))).await,
                false => take.await,
            }
        });
    }
}

#[test]
fn the_first_failure_is_what_a_write_fails_with() {
    run(async {
        let net = net(small()).await;
        let (raw, mut stream) = Raw::meet(&net, 9).await;
        for _ in 0..3 {
            raw.send(b"\x00\x00\x00\x00x").await;
        }
        // There is a credit, but the peer has posted no receive.
        stream.write_all(b"y").await.unwrap();
        let connected = || stream.rdma().unwrap().state() == RdmaState::Connected;
        until("it fails", || !connected()).await;
        // The last of these frames would cause credits to be sent.
        stream.read_exact(&mut [0; 3]).await.unwrap();
        let error = stream.write_all(b"z").await.unwrap_err();
        assert_eq!(error.kind(), TimedOut, "{error}");
    });
}

#[test]
fn a_peer_that_sends_more_than_it_has_credits_for_loses_its_stream() {
    run(async {
        let net = net(small()).await;
        let (raw, mut stream) = Raw::meet(&net, 1).await;
        for _ in 0..4 {
            raw.send(b"\x00\x00\x00\x00x").await;
        }
        // Three credits were given; the fourth receive is reserved for other frames.
        fill_credits(&mut stream).await;
        let mut came = Vec::new();
        let error = in_time("the end", stream.read_to_end(&mut came)).await;
        assert_eq!(error.unwrap_err().kind(), ConnectionAborted);
        assert_eq!(came, b"xxx");
    });
}

/// Writes until there is no credit, so that the stream takes all frames that have arrived.
async fn fill_credits(stream: &mut RdmaStream) {
    for _ in 0..50 {
        _ = stream.write(b"y").now_or_never();
        tokio::task::yield_now().await;
    }
}

#[test]
fn messages_that_are_none_are_not_answered_and_other_versions_are_told() {
    run(async {
        let net = net(small()).await;
        let strangers = async {
            let mut silent = Vec::new();
            for message in [
                &b"GET / HTTP/1.1"[..],
                b"",
                b"TDST",
                b"TDST\x02\x01",
                b"TDST\x02\x00x",
            ] {
                let mut raw = Raw::new(&net).await;
                raw.say(message).await;
                silent.push(raw);
            }
            let mut huge = Raw::new(&net).await;
            huge.socket.write_all(&[0xff; 100]).await.unwrap();
            silent.push(huge);
            for raw in &mut silent {
                let read = in_time("the end", raw.socket.read(&mut [0; 9])).await;
                assert!(matches!(read, Ok(0)) || read.unwrap_err().kind() == ConnectionReset);
            }
            let mut newer = Raw::new(&net).await;
            newer.say(b"TDST\x03\x00whatever it says").await;
            let answer = in_time("the answer", newer.hear()).await;
            assert_eq!(&answer[..6], b"TDST\x02\x03");
            let text = String::from_utf8_lossy(&answer[6..]).into_owned();
            mentions(&text, &[2, 3]);
            net.connector.connect(net.addr).await.map(drop)
        };
        let accept = async { net.listener.accept().await?.accept(b"").await };
        let both = join(accept, strangers);
        let (granted, connected) = in_time("all", both).await;
        granted.map(drop).and(connected).unwrap();
    });
}

#[test]
fn a_listener_of_another_version_is_told_with_both_numbers() {
    run(async {
        let net = net(small()).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answer = async |answer: &[u8]| {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut message = (answer.len() as u32).to_be_bytes().to_vec();
            message.extend(answer);
            socket.write_all(&message).await.unwrap();
            // Waits until the connector hangs up.
            _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
        };
        let addr = listener.local_addr().unwrap();
        for (says, kind) in [
            (&b"TDST\x09\x03text"[..], ErrorKind::UnsupportedVersion),
            (b"TDST\x02\x02", ErrorKind::ConnectionAborted),
            (b"", ErrorKind::ConnectionAborted),
        ] {
            let both = join(net.connector.connect(addr), answer(says));
            let (connected, ()) = in_time("the answer", both).await;
            let text = rejected(connected, kind);
            if kind == ErrorKind::UnsupportedVersion {
                mentions(&text, &[2, 9]);
            }
        }
    });
}

/// The listener welcomes with the blob of an endpoint that has gone, with one of another kind of
/// device, or with none.
#[test]
fn a_listener_that_cannot_be_dialled_is_told_in_words_of_streams() {
    run(async {
        let net = net(small()).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        // Keeps this endpoint, so that the process still has one.
        let stays = Raw::new(&net).await;
        stays.rdma.export().unwrap();
        let gone = Raw::new(&net).await.rdma.export().unwrap();
        let other = {
            let device = Loopback::device(false).1;
            let workq = WorkQ::builder().build().unwrap();
            Rdma::builder(&device)
                .attach(&workq)
                .unwrap()
                .export()
                .unwrap()
        };
        for (blob, kind) in [
            (gone, ErrorKind::ConnectionAborted),
            (other, ErrorKind::InvalidValue),
            (b"nonsense".to_vec(), ErrorKind::InvalidValue),
        ] {
            let welcome = async {
                let (mut socket, _) = listener.accept().await.unwrap();
                hear(&mut socket).await;
                say(&mut socket, &offer(1, 3, &blob)).await.unwrap();
                // Waits until the connector hangs up.
                _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
            };
            let both = join(net.connector.connect(addr), welcome);
            let (connected, ()) = in_time("the error", both).await;
            let text = rejected(connected, kind);
            for word in ["Rdma::", "Rdma ", "blob", "reset", "release", "export"] {
                assert!(!text.contains(word), "{text}");
            }
            assert!(text.contains("the other side"), "{text}");
        }
    });
}

/// Peers that connect and send nothing neither keep others out nor stay.
#[test]
fn silent_peers_are_bounded_and_do_not_keep_others_out() {
    run(async {
        let net = net(small().half_open(3)).await;
        let mut silent = Vec::new();
        for _ in 0..10 {
            silent.push(TcpStream::connect(net.addr).await.unwrap());
        }
        let _pair = net.pair().await;
        // With three such peers connected, each new one has replaced the oldest.
        for socket in &mut silent[..8] {
            let read = in_time("the end", socket.read(&mut [0; 1])).await;
            assert!(!matches!(read, Ok(1)));
        }
        for socket in &mut silent[8..] {
            assert!(socket.read(&mut [0; 1]).now_or_never().is_none());
        }
    });
}

#[test]
fn a_slow_peer_keeps_its_place_while_no_other_one_comes() {
    run(async {
        let net = net(small().half_open(1)).await;
        let mut raw = Raw::new(&net).await;
        let slow = async {
            // Longer than the listener keeps a silent peer when another one comes.
            tokio::time::sleep(Duration::from_millis(200)).await;
            raw.say(&raw.hello()).await;
        };
        let both = join(net.listener.accept(), slow);
        drop(in_time("the hello", both).await.0.unwrap());
    });
}

/// Two tasks wait in `accept` and only one is polled: it gets the peer, as with a `TcpListener`.
#[test]
fn of_two_tasks_in_accept_one_that_is_polled_gets_the_peer() {
    run(async {
        let net = net(small()).await;
        for first_is_dropped in [false, true] {
            let mut first = Box::pin(net.listener.accept());
            assert!(futures::poll!(&mut first).is_pending());
            let second = async { net.listener.accept().await?.accept(b"").await };
            let mut second = Box::pin(second);
            assert!(futures::poll!(&mut second).is_pending());
            if first_is_dropped {
                drop(first);
            }
            let both = try_join(net.connector.connect(net.addr), second);
            in_time("the connection", both).await.unwrap();
        }
    });
}

/// The main task of a multi-threaded runtime accepts. Tokio's budget stops it in the middle of the
/// burst, and then wakes only the task's own waker (tokio::task::coop).
#[test]
fn all_of_a_burst_of_peers_are_accepted() {
    // As many peers as fit into the socket's accept queue.
    const PEERS: usize = 100;
    workers().block_on(async {
        let net = net(small()).await;
        let hello = offer(0, 0, b"blob");
        let hello = [&(hello.len() as u32).to_be_bytes(), &hello[..]].concat();
        let clients: Vec<_> = (0..PEERS)
            .map(|_| {
                let mut client = std::net::TcpStream::connect(net.addr).unwrap();
                std::io::Write::write_all(&mut client, &hello).unwrap();
                client
            })
            .collect();
        let accept = async {
            for _ in &clients {
                drop(net.listener.accept().await.unwrap());
            }
        };
        in_time("the burst", accept).await;
    });
}

#[test]
fn limits_out_of_range_are_refused_with_what_there_can_be() {
    run(async {
        let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
        let tiny = || StreamOptions::new().frame_size(64).connections(1);
        let local: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        for (wrong, part) in [
            (tiny().connections(0), "connections(0): it is 1 to 4094"),
            (tiny().connections(4095), "it is 1 to 4094"),
            (tiny().frame_size(0), "frame_size(0): it is 64 to 131072"),
            (
                tiny().frame_size(1 << 20),
                "frame_size(1048576): it is 64 to 131072",
            ),
            (tiny().recv_window(0), "recv_window(0): it is 1 to 7168"),
            (
                tiny().frame_size(128 << 10).recv_window(4),
                "recv_window(4): it is 1 to 3",
            ),
            (tiny().recv_bufs(0), "recv_bufs(0): it is 1 to 65536"),
            (tiny().send_window(513), "send_window(513): it is 1 to 512"),
            (tiny().half_open(0), "half_open(0): it is 1 to 65536"),
        ] {
            let text = rejected(wrong.connector(&device, &workq), ErrorKind::InvalidValue);
            assert!(text.contains(part), "{text}");
            let bound = wrong.bind(&device, &workq, local).await;
            let text = rejected(bound, ErrorKind::InvalidValue);
            assert!(text.contains(part), "{text}");
        }
        // The receive window is not set, so its default leaves space for the send window.
        net(tiny().frame_size(128 << 10).send_window(512))
            .await
            .pair()
            .await;
    });
}

#[test]
fn a_side_that_is_silent_is_waited_for_no_longer_than_the_time_limit() {
    run(async {
        let net = net(small().timeout(Duration::from_millis(30))).await;
        // A listener that does not call `accept`.
        let connected = in_time("the connect", net.connector.connect(net.addr)).await;
        rejected(connected, ErrorKind::TimedOut);
        let mut raw = Raw::new(&net).await;
        raw.say(&raw.hello()).await;
        let incoming = loop {
            let incoming = in_time("the hello", net.listener.accept()).await.unwrap();
            if incoming.peer().tcp_addr() == raw.socket.local_addr().ok() {
                break incoming;
            }
        };
        // The peer never reports that it is ready.
        let granted = in_time("the grant", incoming.accept(b"")).await;
        rejected(granted, ErrorKind::TimedOut);
    });
}

#[test]
fn a_peer_that_gives_up_while_it_is_accepted_is_named_as_one() {
    for device in [under_test(false), Loopback::device(false).1] {
        run(async {
            let net = Net::new(&device, Mode::EventDriven, small()).await;
            let gave_up = |granted| {
                let text = rejected(granted, ErrorKind::ConnectionAborted);
                assert!(text.contains("the peer gave up"), "{text}");
            };
            // The peer gives up before the listener connects.
            let mut connect = Box::pin(net.connector.connect(net.addr));
            let mut accept = pin!(net.listener.accept());
            let both = select(accept.as_mut(), connect.as_mut());
            let Either::Left((incoming, _)) = in_time("the hello", both).await else {
                panic!("it is connected, and was not accepted");
            };
            drop(connect);
            gave_up(in_time("the end", incoming.unwrap().accept(b"")).await);
            // The peer gives up after the listener has connected.
            let mut raw = Raw::on(&device, &net).await;
            raw.say(&raw.hello()).await;
            let leaves = async {
                raw.hear().await;
                drop(raw);
            };
            let accept = async { net.listener.accept().await?.accept(b"").await };
            let both = in_time("the end", join(accept, leaves)).await;
            gave_up(both.0);
        });
    }
}

#[test]
fn many_connect_at_once() {
    const PEERS: usize = 100;
    run(async {
        let net = net(small().connections(PEERS).half_open(4)).await;
        let accepts = async {
            let mut streams = Vec::new();
            for _ in 0..PEERS {
                let incoming = net.listener.accept().await.unwrap();
                streams.push(tokio::spawn(async move { incoming.accept(b"").await }));
            }
            join_all(streams).await
        };
        // A process that gets no CPU for longer than a newcomer may be silent (100 ms) loses its
        // place to others that wait. It connects again, as an application does.
        let connect = async |_| {
            loop {
                match net.connector.connect(net.addr).await {
                    Ok(stream) => return stream,
                    Err(error) => eprintln!("once more: {error}"),
                }
            }
        };
        let connects = join_all((0..PEERS).map(connect));
        let (accepted, connected) = in_time("all", join(accepts, connects)).await;
        assert!(accepted.iter().all(|it| it.as_ref().unwrap().is_ok()));
        assert_eq!(connected.len(), PEERS);
    });
}
