//! A peer process that is killed at random moments, is stopped, revokes its memory, or exports
//! another process's memory.
//!
//! `TOKIO_DOCA_KILLS` sets the number of moments (default: 20); `TOKIO_DOCA_KILLS_SEED` repeats a
//! run.

use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::device::{adapter, needs_soft, told_of, told_within};
use support::peer::{Peer, footprint, hear, hex, is_as_before, role, say, unhex};
use support::random::{Random, setting};
use support::rdma::{SHARED, Setup, Side, failed};
use support::{test_name, *};
use tokio_doca::{
    Buf, ErrorKind, Mmap, Mode, Rdma,
    error::{JobError, Reason},
    mem::{BufInventory, RemoteBuf},
    rdma::RdmaState,
};

/// The latest moment of a kill, in microseconds.
const LATEST: u64 = 15_000;

fn large(side: &Side) -> Buf {
    let mmap = Mmap::builder().device(&side.device).alloc(SHARED).unwrap();
    BufInventory::with_capacity(1).buf(&mmap, ..).unwrap()
}

/// The work of one side until it fails; the other side does the counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Write,
    Read,
    Send,
    Recv,
    /// Sends, and receives the answer.
    Ping,
    Pong,
    /// Waits for a message that never comes.
    Wait,
}

const WORK: [(Work, Work); 7] = [
    (Work::Ping, Work::Pong),
    (Work::Write, Work::Wait),
    (Work::Read, Work::Wait),
    (Work::Send, Work::Recv),
    (Work::Recv, Work::Send),
    (Work::Wait, Work::Write),
    (Work::Wait, Work::Read),
];

async fn ping(rdma: &Rdma, buf: &Buf) -> Result<(), JobError> {
    rdma.send(buf).await?;
    buf.set_data(0, 0).unwrap();
    rdma.recv(buf).await.map(|_| ())
}

async fn pong(rdma: &Rdma, buf: &Buf) -> Result<(), JobError> {
    rdma.recv(buf).await?;
    rdma.send(buf).await.map(|_| ())
}

async fn work(side: &Side, work: Work, there: &RemoteBuf, buf: &Buf) -> JobError {
    let rdma = &side.rdma;
    loop {
        let full = matches!(work, Work::Write | Work::Send | Work::Ping);
        buf.set_data(0, if full { SHARED } else { 0 }).unwrap();
        let result = match work {
            Work::Write => rdma.write(buf, there).await.map(|_| ()),
            Work::Read => rdma.read(there, buf).await.map(|_| ()),
            Work::Send => rdma.send(buf).await.map(|_| ()),
            Work::Recv => rdma.recv(buf).await.map(|_| ()),
            Work::Ping => ping(rdma, buf).await,
            Work::Pong => pong(rdma, buf).await,
            Work::Wait => rdma.recv(()).await.map(|_| ()),
        };
        if let Err(error) = result {
            return error;
        }
    }
}

/// The child process that is killed.
fn victim(number: usize) {
    let side = Side::new(Setup::all()[number % Setup::all().len()]);
    side.meet_parent(true);
    say(&hex(&side.memory()));
    let remote = side.import(&unhex(&hear().unwrap()));
    let there = remote.buf(..).unwrap();
    say("begun");
    runtime().block_on(work(&side, WORK[number / 6].1, &there, &large(&side)));
}

/// Kills a peer. Returns how long the notification took.
fn peer_dies(test: &str, random: &mut Random, side: &Side) -> Duration {
    let number = random.below(6 * WORK.len() as u64) as usize;
    let (mine, theirs) = WORK[number / 6];
    let before = footprint(std::process::id() as i32);
    let mut peer = Peer::start(test, &number.to_string());
    side.meet_child(&mut peer, false);
    let remote = side.import(&unhex(&peer.hear()));
    let there = remote.buf(..).unwrap();
    peer.say(&hex(&side.memory()));
    assert_eq!(peer.hear(), "begun");
    let moment = Duration::from_micros(random.below(LATEST));
    let victim = Pid::from_raw(peer.pid());
    let buf = large(side);
    let (begun, begins) = mpsc::channel();
    let took = std::thread::scope(|scope| {
        let killer = scope.spawn(move || {
            begins.recv().unwrap();
            std::thread::sleep(moment);
            kill(victim, Signal::SIGKILL).unwrap();
            Instant::now()
        });
        let error = run(async {
            begun.send(()).unwrap();
            work(side, mine, &there, &buf).await
        });
        let told = Instant::now();
        let cause = error.cause().unwrap_or(error.reason());
        let one_sided = matches!(mine, Work::Write | Work::Read);
        let sends = matches!(mine, Work::Send | Work::Ping | Work::Pong);
        let ends = |reason| told_of(reason).contains(&cause);
        let gone = ends(Reason::PeerGone)
            || (one_sided && ends(Reason::ExporterGone))
            // The memory of a dying process's receive may be gone before its queue pair is.
            || (sends && adapter().is_some() && cause == Reason::PeerReceiveExceeded);
        assert!(gone, "{mine:?} {theirs:?}: {error}");
        // Either the memory or the connection reports the end first.
        assert!(adapter().is_some() || error.is_disconnect(), "{error}");
        let kind = match cause {
            Reason::RemoteAccess => ErrorKind::NotPermitted,
            Reason::PeerReceiveExceeded => ErrorKind::InvalidValue,
            _ => ErrorKind::ConnectionReset,
        };
        assert_eq!(error.kind(), kind);
        told.saturating_duration_since(killer.join().unwrap())
    });
    peer.dies();
    assert!(matches!(side.rdma.state(), RdmaState::Error(_)));
    side.rdma.reset().unwrap();
    drop((buf, there, remote));
    run(side.all_back());
    is_as_before(std::process::id() as i32, before, "the survivor");
    took
}

#[test]
fn a_peer_may_be_killed_at_any_moment() {
    const TEST: &str = test_name!(a_peer_may_be_killed_at_any_moment);
    if let Some(number) = role() {
        return victim(number.parse().unwrap());
    }
    if !alone(TEST) {
        return;
    }
    let moments = setting("TOKIO_DOCA_KILLS").unwrap_or(20);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = setting("TOKIO_DOCA_KILLS_SEED").unwrap_or(now);
    println!("{moments} kills, TOKIO_DOCA_KILLS_SEED={seed}");
    let mut random = Random(seed);
    let mut told: Vec<Duration> = Vec::new();
    let setups = Setup::all().len() as u64;
    for setup in Setup::all() {
        let side = Side::new(setup);
        // These resources stay: those of the fabric, and those of a first connection.
        let _exported = side.memory();
        let twin = Side::on(&side.device, &side.workq, setup);
        support::rdma::connect(&side.rdma, &twin.rdma);
        side.rdma.reset().unwrap();
        run(twin.failed());
        twin.rdma.reset().unwrap();
        // Other connections on the same WorkQ are not affected.
        let other = Side::new(setup);
        support::rdma::connect(&twin.rdma, &other.rdma);
        for _ in 0..moments.div_ceil(setups) {
            told.push(peer_dies(TEST, &mut random, &side));
            run(async {
                let (sent, got) = tokio::join!(twin.send(b"still"), other.recv());
                assert_eq!((sent, got), (Ok(()), Ok(b"still".to_vec())));
            });
        }
    }
    told.sort();
    let (median, longest) = (told[told.len() / 2], told[told.len() - 1]);
    println!("a peer's end was told after {median:?}, {longest:?} at most");
    let [half, most] = told_within();
    assert_quick("half of the ends", median, half);
    assert_quick("each end", longest, most);
}

/// A child process that obeys commands.
fn obedient() {
    let side = Side::new(Setup::new(false, Mode::EventDriven));
    let buf = large(&side);
    let runtime = runtime();
    while let Some(word) = hear() {
        match word.as_str() {
            "meet" => side.meet_parent(true),
            "memory" => say(&hex(&side.memory())),
            "recv" => {
                // The receive reports the peer's end, even if this process was stopped meanwhile.
                say("receives");
                let error = runtime.block_on(async {
                    loop {
                        buf.set_data(0, 0).unwrap();
                        if let Err(error) = in_time("a message", side.rdma.recv(&buf)).await {
                            return error;
                        }
                    }
                });
                let (reason, cause) = (error.reason(), error.cause());
                say(&format!("{reason:?} {cause:?}"));
            }
            "echo" => runtime.block_on(async {
                let room = side.empty();
                let message = side.rdma.recv(&room).start().unwrap();
                say("receives");
                message.await.unwrap();
                hear();
                side.rdma.send(&room).await.unwrap();
            }),
            "reset" => {
                side.rdma.reset().unwrap();
                runtime.block_on(side.all_back());
                say("reset");
            }
            "stop" => {
                drop(side);
                say("stopped");
                hear();
                return;
            }
            other => panic!("{other}"),
        }
    }
}

async fn echo(side: &Side, peer: &mut Peer) {
    // Each side posts its receive before the other one sends, since a send does not wait long.
    peer.say("echo");
    assert_eq!(peer.hear(), "receives");
    side.send(b"again").await.unwrap();
    let room = side.empty();
    let answer = side.rdma.recv(&room).start().unwrap();
    peer.say("receives");
    assert_eq!(answer.await.unwrap().len, 5);
    assert_eq!(bytes(&room), b"again");
}

/// A peer is killed before it connects; either of the two sides may be the host.
#[test]
fn a_peer_that_is_killed_before_it_connects_is_gone() {
    const TEST: &str = test_name!(a_peer_that_is_killed_before_it_connects_is_gone);
    if needs_soft("an adapter does not hear of the end of its peer") {
        return;
    }
    if role().is_some() {
        let side = Side::new(Setup::new(false, Mode::EventDriven));
        say(&hex(&side.rdma.export().unwrap()));
        hear();
        return;
    }
    let side = Side::new(Setup::new(false, Mode::EventDriven));
    for round in 0..16 {
        let mut peer = Peer::start(TEST, "peer");
        let blob = unhex(&peer.hear());
        // A connection needs the blobs of both sides.
        side.rdma.export().unwrap();
        side.rdma.connect(&blob).wait().unwrap();
        run(async {
            let message = side.rdma.recv(()).start().unwrap();
            kill(Pid::from_raw(peer.pid()), Signal::SIGKILL).unwrap();
            let error = in_time("its end", message).await.unwrap_err();
            let gone = (Reason::Flushed, Some(Reason::PeerGone));
            assert_eq!((error.reason(), error.cause()), gone, "round {round}");
            assert!(error.is_disconnect());
        });
        peer.dies();
        side.rdma.reset().unwrap();
    }
}

/// The peer had receives posted for a second of messages. Messages that are sent before its end is
/// noticed may be lost.
#[test]
fn a_message_to_a_peer_that_was_killed_is_not_sent() {
    const TEST: &str = test_name!(a_message_to_a_peer_that_was_killed_is_not_sent);
    const RECEIVES: u32 = 1000;
    if needs_soft("an adapter does not hear of the end of its peer") {
        return;
    }
    let with_receives = |setup| Setup {
        receives: 1024,
        ..setup
    };
    if role().is_some() {
        let side = Side::new(with_receives(Setup::new(false, Mode::EventDriven)));
        side.meet_parent(true);
        for _ in 0..RECEIVES {
            side.rdma.recv(()).post(0).unwrap();
        }
        say("posted");
        hear();
        return;
    }
    for setup in Setup::all() {
        let mut peer = Peer::start(TEST, "peer");
        let side = Side::new(with_receives(setup));
        side.meet_child(&mut peer, true);
        assert_eq!(peer.hear(), "posted");
        kill(Pid::from_raw(peer.pid()), Signal::SIGKILL).unwrap();
        peer.dies();
        run(async {
            let mut sent = 0;
            while side.rdma.send(()).await.is_ok() {
                sent += 1;
                assert!(sent < RECEIVES / 2, "{sent} messages were sent to nobody");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for _ in 0..3 {
                let error = side.rdma.send(()).await.unwrap_err();
                assert!(error.is_disconnect(), "{error}");
            }
            side.all_back().await;
        });
    }
}

#[test]
fn a_peer_that_is_stopped_is_a_timeout_and_both_begin_anew() {
    const TEST: &str = test_name!(a_peer_that_is_stopped_is_a_timeout_and_both_begin_anew);
    if needs_soft("a process that is stopped answers all the same: its adapter does") {
        return;
    }
    if role().is_some() {
        return obedient();
    }
    let rnr = Duration::from_millis(100);
    for setup in Setup::all() {
        let mut peer = Peer::start(TEST, "peer");
        let side = Side::new(setup.rnr(rnr));
        let buf = large(&side);
        peer.say("meet");
        side.meet_child(&mut peer, true);
        let old = side.rdma.export().unwrap();
        for round in 0..2 {
            peer.say("recv");
            assert_eq!(peer.hear(), "receives");
            let pid = Pid::from_raw(peer.pid());
            let error = run(async {
                for sends in 0.. {
                    if sends == 2 {
                        kill(pid, Signal::SIGSTOP).unwrap();
                    }
                    buf.set_data(0, SHARED).unwrap();
                    let start = Instant::now();
                    if let Err(error) = side.rdma.send(&buf).await {
                        let took = start.elapsed();
                        assert!(took >= rnr, "{took:?}");
                        assert_quick("a receiver that is not ready", took, 20 * rnr);
                        return error;
                    }
                }
                unreachable!("it was stopped")
            });
            assert_eq!(
                (error.reason(), error.kind()),
                (Reason::NoReceive, ErrorKind::TimedOut)
            );
            kill(pid, Signal::SIGCONT).unwrap();
            assert_eq!(peer.hear(), "Flushed Some(PeerFailed)", "{round}");
            peer.say("reset");
            assert_eq!(peer.hear(), "reset");
            side.rdma.reset().unwrap();
            run(side.all_back());
            peer.say("meet");
            side.meet_child(&mut peer, round == 0);
            assert_ne!(side.rdma.export().unwrap(), old);
            run(echo(&side, &mut peer));
        }
        peer.ends();
    }
}

#[test]
fn memory_that_is_not_the_peers_or_not_there_any_more_is_refused() {
    const TEST: &str = test_name!(memory_that_is_not_the_peers_or_not_there_any_more_is_refused);
    if role().is_some() {
        return obedient();
    }
    for setup in Setup::all() {
        let [mut peer, mut third] = [(); 2].map(|()| Peer::start(TEST, "peer"));
        let side = Side::new(setup);
        peer.say("meet");
        let blob = unhex(&peer.hear());
        peer.say(&hex(&side.rdma.export().unwrap()));
        peer.hear();
        side.rdma.connect(&blob).wait().unwrap();
        peer.say("connected");
        third.say("memory");
        let elsewhere = side.import(&unhex(&third.hear())).buf(..8).unwrap();
        let message = side.filled(&[1; 8]);
        let refused = run(async { side.rdma.write(&message, &elsewhere).await });
        assert_eq!(failed(refused), (Reason::RemoteAccess, None));
        peer.say("recv");
        assert_eq!(peer.hear(), "receives");
        let told = told_of(Reason::PeerFailed);
        let told = told.map(|reason| format!("Flushed Some({reason:?})"));
        assert!(told.contains(&peer.hear()));
        peer.say("reset");
        assert_eq!(peer.hear(), "reset");
        side.rdma.reset().unwrap();
        // The blob is from before the reset. A host that waits for its guest does not notice that,
        // but a guest does; an adapter does not check.
        if let Err(error) = side.rdma.connect(&blob).wait() {
            let kinds = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
        side.rdma.reset().unwrap();
        peer.say("meet");
        side.meet_child(&mut peer, true);
        run(echo(&side, &mut peer));
        peer.say("memory");
        let there = side.import(&unhex(&peer.hear())).buf(..8).unwrap();
        let written = run(async { side.rdma.write(&message, &there).await });
        assert_eq!(written, Ok(8));
        peer.say("stop");
        assert_eq!(peer.hear(), "stopped");
        let error = run(async { side.rdma.write(&message, &there).await }).unwrap_err();
        let cause = error.cause().unwrap_or(error.reason());
        let revoked = [Reason::ExportRevoked, Reason::RemoteAccess];
        let told = told_of(Reason::PeerClosed);
        assert!(told.contains(&cause) || revoked.contains(&cause), "{error}");
        peer.ends();
        third.ends();
    }
}
