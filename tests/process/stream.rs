//! Streams between two processes, one of which is killed; and the resources that many streams leave
//! behind.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::device::{needs_soft, under_test};
use support::peer::{Peer, hear, role, say};
use support::stream::{Net, bytes, offer, small};
use support::{programs, test_name, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_doca::stream::{RdmaConnector, RdmaListener, RdmaStream, StreamOptions};
use tokio_doca::{Mode, WorkQ};

use crate::refused::refuse;

const LEN: usize = 700;

/// The other process: writes to a stream, and stays until it is killed.
fn write() {
    let addr: SocketAddr = hear().unwrap().parse().unwrap();
    run(async {
        let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
        let connector = small().connector(&device, &workq).unwrap();
        let mut stream = connector.connect(addr).await.unwrap();
        stream.write_all(&bytes(0..LEN)).await.unwrap();
        say("written");
        assert_eq!(stream.read_u8().await.unwrap(), 7);
        say("answered");
        hear();
    });
}

#[test]
fn a_peer_that_is_killed_resets_its_stream() {
    if role().is_some() {
        return write();
    }
    let mut peer = Peer::start(
        test_name!(a_peer_that_is_killed_resets_its_stream),
        "writer",
    );
    run(async {
        let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
        peer.say(&net.addr.to_string());
        let mut stream = net
            .listener
            .accept()
            .await
            .unwrap()
            .accept(b"")
            .await
            .unwrap();
        assert_eq!(peer.hear(), "written");
        stream.write_u8(7).await.unwrap();
        let mut came = vec![0; LEN];
        stream.read_exact(&mut came).await.unwrap();
        assert_eq!(came, bytes(0..LEN));
        assert_eq!(peer.hear(), "answered");
        peer.kill();
        let read = in_time("the end", stream.read(&mut came)).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

/// Rounds in which two processes connect to each other.
const ROUNDS: usize = 4;

/// One of two processes. Its listener and its connector share a WorkQ, so that the same two queues
/// are connected in both directions. Returns the streams of the last round.
async fn meets(net: &Net, peer: SocketAddr) -> Vec<RdmaStream> {
    let mut last = Vec::new();
    for round in 0..ROUNDS {
        let accept = async { net.listener.accept().await?.accept(b"").await };
        let both = futures::future::try_join(accept, net.connector.connect(peer));
        let (came, went) = in_time("both connections", both).await.unwrap();
        // The streams of the previous round end here, so that each side always has a page in use.
        last = vec![came, went];
        for stream in &mut last {
            stream.write_all(&bytes(round..round + LEN)).await.unwrap();
        }
        for stream in &mut last {
            let mut came = vec![0; LEN];
            in_time("the bytes", stream.read_exact(&mut came))
                .await
                .unwrap();
            assert_eq!(came, bytes(round..round + LEN));
        }
    }
    last
}

async fn on_one_workq() -> Net {
    let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let options = small().connections(8);
    let listener = options.bind(&device, &workq, local).await.unwrap();
    Net {
        connector: options.connector(&device, &workq).unwrap(),
        addr: listener.tcp_addr().unwrap(),
        listener,
    }
}

#[test]
fn the_same_two_queues_are_connected_in_both_directions() {
    if role().is_some() {
        return run(async {
            let net = on_one_workq().await;
            say(&net.addr.to_string());
            let addr = hear().unwrap().parse().unwrap();
            let _streams = meets(&net, addr).await;
            say("met");
            hear();
        });
    }
    let test = test_name!(the_same_two_queues_are_connected_in_both_directions);
    run(async {
        let net = on_one_workq().await;
        for _ in 0..3 {
            let mut peer = Peer::start(test, "peer");
            let addr = peer.hear().parse().unwrap();
            peer.say(&net.addr.to_string());
            let streams = meets(&net, addr).await;
            assert_eq!(peer.hear(), "met");
            peer.kill();
            for mut stream in streams {
                let read = in_time("the end", stream.read_u8()).await;
                assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
        }
    });
}

/// Lowers the limit of descriptors to the number that is open.
pub(crate) fn descriptors_are_short() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let next = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, next.as_raw_fd() as u64, hard).unwrap();
}

/// A server loop with `listener.accept().await?` does not end when descriptors run out.
#[test]
fn a_listener_without_descriptors_waits_until_it_has_some() {
    if !alone(test_name!(
        a_listener_without_descriptors_waits_until_it_has_some
    )) {
        return;
    }
    run(async {
        let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
        let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // The client waits in the socket's accept queue.
        let client = std::net::TcpStream::connect(net.addr).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut client = TcpStream::from_std(client).unwrap();
        support::stream::say(&mut client, &offer(0, 0, b"blob"))
            .await
            .unwrap();
        descriptors_are_short();
        let soon = Duration::from_millis(250);
        let accepted = tokio::time::timeout(soon, net.listener.accept()).await;
        assert!(accepted.is_err(), "it waits, and is no error: {accepted:?}");
        setrlimit(Resource::RLIMIT_NOFILE, limits.0, limits.1).unwrap();
        let incoming = in_time("the peer", net.listener.accept()).await.unwrap();
        assert_eq!(incoming.peer().tcp_addr(), client.local_addr().ok());
    });
}

/// Accepts while this number of descriptors is free, until the parent ends the test.
fn accept_with(free: u64) {
    run(async {
        let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // One of the counted descriptors belongs to the count itself.
        let limit = descriptors() as u64 - 1 + free;
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
        say(&net.addr.to_string());
        let accepts = async {
            let mut streams = Vec::new();
            loop {
                let incoming = net.listener.accept().await.unwrap();
                streams.extend(incoming.accept(b"").await);
            }
        };
        tokio::select! {
            _ = tokio::task::spawn_blocking(hear) => {}
            () = accepts => {}
        }
    });
}

#[test]
fn a_peer_that_lacks_descriptors_names_them_and_not_memory() {
    if let Some(free) = role() {
        return accept_with(free.parse().unwrap());
    }
    if needs_soft("adapters share no descriptors") {
        return;
    }
    run(async {
        let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
        let connector = small().connector(&device, &workq).unwrap();
        let mut refused = Vec::new();
        // Reduces the number of free descriptors until only the connection's last one is missing.
        for free in (0..16).rev() {
            let test = test_name!(a_peer_that_lacks_descriptors_names_them_and_not_memory);
            let mut peer = Peer::start(test, &free.to_string());
            let addr: SocketAddr = peer.hear().parse().unwrap();
            refused.extend(connector.connect(addr).await.err());
            peer.ends();
            if refused.len() == 2 {
                break;
            }
        }
        assert!(!refused.is_empty(), "it needs no descriptors");
        for error in refused {
            let text = error.to_string();
            assert!(text.contains("Too many open files"), "{text}");
        }
    });
}

/// Returns the number of threads for blocking calls.
fn blocking_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.unwrap().path().join("comm"))
    };
    threads
        .filter_map(|thread| name(thread).ok())
        .filter(|name| name == "doca-blocking\n")
        .count()
}

#[test]
fn a_connect_to_a_process_that_is_known_takes_no_thread() {
    if role().is_some() {
        let addr: SocketAddr = hear().unwrap().parse().unwrap();
        return run(async {
            let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
            let connector = small().connector(&device, &workq).unwrap();
            // The first connection carries the wake-ups of both queues; the second one stays open.
            let _known = connector.connect(addr).await.unwrap();
            let _kept = connector.connect(addr).await.unwrap();
            until("its thread has ended", || blocking_threads() == 0).await;
            for number in 0..10 {
                let mut stream = connector.connect(addr).await.unwrap();
                assert_eq!(blocking_threads(), 0);
                stream.write_u32(number).await.unwrap();
                let read = in_time("an answer", stream.read_u32());
                assert_eq!(read.await.unwrap(), number);
            }
            // The wait for the peer needs one more descriptor.
            refuse(
                libc::SYS_fcntl,
                (1, libc::F_DUPFD_CLOEXEC as u32),
                libc::EMFILE,
            );
            let error = connector.connect(addr).await.unwrap_err();
            assert_eq!(error.kind(), tokio_doca::ErrorKind::OperatingSystem);
            assert!(error.to_string().contains("Too many open files"), "{error}");
            say("connected");
        });
    }
    if needs_soft("an adapter connects by the network")
        || programs::is_emulated("filter system calls")
    {
        return;
    }
    let test = test_name!(a_connect_to_a_process_that_is_known_takes_no_thread);
    let mut peer = Peer::start(test, "connector");
    run(async {
        let net = on_one_workq().await;
        peer.say(&net.addr.to_string());
        let serving = tokio::spawn(repeats(net.listener));
        let heard = tokio::task::spawn_blocking(move || peer.hear());
        assert_eq!(heard.await.unwrap(), "connected");
        serving.abort();
    });
}

/// Lets the kernel refuse pidfds of other processes, as before Linux 6.5, or in a PID namespace
/// that does not contain the other process.
fn sees_no_process() {
    refuse(libc::SYS_getsockopt, (2, 77), libc::ENOPROTOOPT);
    refuse(libc::SYS_pidfd_open, (1, 0), libc::EPERM);
}

/// Connects again and again while its earlier streams are open, and uses all of them.
async fn keeps(addr: SocketAddr) {
    let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
    let connector = small().connector(&device, &workq).unwrap();
    let mut kept = Vec::new();
    for number in 0..4 {
        let connect = connector.connect(addr);
        kept.push(in_time("a connection", connect).await.unwrap());
        for stream in &mut kept {
            let asked = async {
                stream.write_u32(number).await?;
                stream.read_u32().await
            };
            assert_eq!(in_time("an answer", asked).await.unwrap(), number);
        }
    }
}

/// Echoes each number to each peer.
async fn repeats(listener: RdmaListener) {
    loop {
        let incoming = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut stream = incoming.accept(b"").await.unwrap();
            while let Ok(number) = stream.read_u32().await {
                stream.write_u32(number).await.unwrap();
            }
        });
    }
}

#[test]
fn processes_that_do_not_see_each_other_connect_beside_an_open_stream() {
    const BLIND: &str = "blind ";
    if let Some(role) = role() {
        if role.starts_with(BLIND) {
            sees_no_process();
        }
        return workers().block_on(async {
            if role.ends_with("connector") {
                return keeps(hear().unwrap().parse().unwrap()).await;
            }
            let net = on_one_workq().await;
            say(&net.addr.to_string());
            let ended = tokio::task::spawn_blocking(hear);
            let _ = futures::future::select(ended, Box::pin(repeats(net.listener))).await;
        });
    }
    if needs_soft("adapters watch no process") || programs::is_emulated("filter system calls") {
        return;
    }
    let test = test_name!(processes_that_do_not_see_each_other_connect_beside_an_open_stream);
    for (blind_listener, blind_connector) in [(false, true), (true, false), (true, true)] {
        let start = |blind, role: &str| {
            let blind = if blind { BLIND } else { "" };
            Peer::start(test, &format!("{blind}{role}"))
        };
        let mut listener = start(blind_listener, "listener");
        let mut connector = start(blind_connector, "connector");
        connector.say(&listener.hear());
        connector.ends();
        listener.ends();
    }
}

/// Sends more than a window and reads the echo, on one connection after the other.
async fn echoes(connector: RdmaConnector, addr: SocketAddr, times: usize) {
    let data = bytes(0..5000);
    for _ in 0..times {
        let connect = connector.connect(addr);
        let mut stream = in_time("a connection", connect).await.unwrap();
        let (mut reads, mut writes) = tokio::io::split(&mut stream);
        let mut came = Vec::new();
        let write = async {
            writes.write_all(&data).await?;
            writes.shutdown().await
        };
        let both = futures::future::try_join(write, reads.read_to_end(&mut came));
        in_time("an echo", both).await.unwrap();
        assert!(came == data);
    }
}

/// Echoes all data while it is polled.
async fn echo(net: Arc<Net>) {
    loop {
        let incoming = net.listener.accept().await.unwrap();
        tokio::spawn(async move {
            let stream = incoming.accept(b"").await.unwrap();
            let (mut reads, mut writes) = tokio::io::split(stream);
            tokio::io::copy(&mut reads, &mut writes).await.unwrap();
            writes.shutdown().await.unwrap();
        });
    }
}

/// Answers each peer, and disconnects at once.
async fn answers(listener: RdmaListener) {
    loop {
        let incoming = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut stream = incoming.accept(b"").await.unwrap();
            let asked = stream.read_u32().await.unwrap();
            stream.write_all(&asked.to_be_bytes()).await.unwrap();
            stream.write_all(&bytes(0..4096)).await.unwrap();
            stream.shutdown().await.unwrap();
        });
    }
}

/// Sends numbers from `numbers`, each on a new connection.
async fn asks(connector: RdmaConnector, addr: SocketAddr, numbers: Range<u32>) {
    for number in numbers {
        let asked = async {
            let mut stream = connector.connect(addr).await?;
            stream.write_u32(number).await?;
            stream.shutdown().await?;
            let answered = stream.read_u32().await?;
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await?;
            assert!((answered, rest) == (number, bytes(0..4096)));
            std::io::Result::Ok(())
        };
        in_time("an answer", asked).await.unwrap();
    }
}

/// Two processes reuse the message rings of earlier connections: both must mean the same ring, even
/// if another connection has used that ring's slot meanwhile.
#[test]
fn connections_of_two_processes_at_once_are_not_mixed_up() {
    const AT_ONCE: u32 = 60;
    const TIMES: u32 = 50;
    if needs_soft("adapters have no message rings") {
        return;
    }
    let options = StreamOptions::new()
        .timeout(LIMIT)
        .connections(4 * AT_ONCE as usize);
    let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
    if role().is_some() {
        return workers().block_on(async {
            let listener = options.bind(&device, &workq, "127.0.0.1:0").await.unwrap();
            say(&listener.local_addr().to_string());
            let heard = tokio::task::spawn_blocking(hear);
            let _ = futures::future::select(heard, Box::pin(answers(listener))).await;
        });
    }
    let test = test_name!(connections_of_two_processes_at_once_are_not_mixed_up);
    let mut peer = Peer::start(test, "answers");
    let addr = peer.hear().parse().unwrap();
    workers().block_on(async {
        let connector = options.connector(&device, &workq).unwrap();
        let asks = |first| tokio::spawn(asks(connector.clone(), addr, first..first + TIMES));
        let tasks = (0..AT_ONCE).map(|task| asks(task * TIMES));
        futures::future::try_join_all(tasks).await.unwrap();
    });
    peer.ends();
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    const AT_ONCE: usize = 32;
    const TIMES: usize = 16;
    if !alone(test_name!(
        connections_that_come_and_go_leave_nothing_behind
    )) {
        return;
    }
    workers().block_on(async {
        // The end of a connection is still in flight while the next one is made.
        let options = small().connections(2 * AT_ONCE);
        let net = Net::new(&under_test(false), Mode::EventDriven, options).await;
        let net = Arc::new(net);
        tokio::spawn(echo(Arc::clone(&net)));
        let burst = || {
            let tasks =
                (0..AT_ONCE).map(|_| tokio::spawn(echoes(net.connector.clone(), net.addr, TIMES)));
            futures::future::try_join_all(tasks)
        };
        burst().await.unwrap();
        let before = descriptors();
        burst().await.unwrap();
        until("all descriptors are closed", || descriptors() <= before).await;
    });
}
