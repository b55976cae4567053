//! S1, S2 and S4: sync events with another process, which runs this program too (`bars sync ROLE
//! NUMBER`), and many waits.

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use support::counting;
use support::peer::{Peer, hex, say, unhex};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Mode, WorkQ,
    sync_event::{BlockingSyncEvent, ImportedSyncEvent, Location, SyncEvent},
};

use super::measure::{Samples, interleave, per_op};
use super::rdma::{bare_round_trips, heard, noise, socket_round_trips, start};
use super::report::Goal::{AtLeast, AtMost, Exactly};
use super::report::Report;
use super::rig::on_task;
use super::sys;

fn workq(mode: Mode) -> WorkQ {
    WorkQ::builder()
        .depth(64)
        .mode(mode)
        .build()
        .expect("a WorkQ")
}

/// Makes the host's side of an event by `begin`, and starts the process that has the other side.
fn with_peer<T>(role: &str, begin: impl FnOnce(&Soft) -> (T, Vec<u8>)) -> (T, Peer) {
    let (event, blob) = begin(&Soft::builder().build());
    let mut peer = start("sync", role, 0);
    peer.say(&hex(&blob));
    assert_eq!(peer.hear(), "ready");
    (event, peer)
}

fn on_workq(mode: Mode) -> impl FnOnce(&Soft) -> (SyncEvent, Vec<u8>) {
    move |soft| {
        let host = soft.open("pf0").expect("a device");
        let builder = SyncEvent::builder().publisher(Location::Dpu);
        let event = builder
            .subscriber(Location::Cpu(&host))
            .attach(&workq(mode));
        let event = event.expect("an event");
        let blob = event.export_dpu(&host).expect("a blob");
        (event, blob)
    }
}

fn blocking(soft: &Soft) -> (BlockingSyncEvent, Vec<u8>) {
    let host = soft.open("pf0").expect("a device");
    let builder = SyncEvent::builder().publisher(Location::Dpu);
    let event = builder
        .subscriber(Location::Cpu(&host))
        .start()
        .expect("an event");
    let blob = event.export_dpu(&host).expect("a blob");
    (event, blob)
}

/// Runs in the second process: answers each odd value with the next even value.
pub(crate) fn peer(role: &str) {
    sys::pin(Some(1));
    let dpu = Soft::builder()
        .view(View::Dpu)
        .build()
        .open("p0")
        .expect("a device");
    let imported = SyncEvent::from_export(&dpu, &unhex(&heard()))
        .wait()
        .expect("an import");
    match role {
        "busy" => echo(imported, Mode::BusyPoll),
        "asleep" => echo(imported, Mode::EventDriven),
        "blocking" => {
            let event = imported.start().expect("an event");
            say("ready");
            let mut next = 0;
            while let Ok(seen) = event.wait_gt(next, u64::MAX) {
                next = seen + 1;
                if event.set(next).is_err() {
                    return;
                }
            }
        }
        _ => panic!("no role {role}"),
    }
}

fn echo(imported: ImportedSyncEvent, mode: Mode) {
    let workq = workq(mode);
    let event = imported.attach(&workq).expect("an event");
    say("ready");
    let answer = async move {
        let mut next = 0;
        while let Ok(seen) = event.wait_gt(next).await {
            next = seen + 1;
            if event.set(next).await.is_err() {
                return;
            }
        }
    };
    match mode {
        Mode::BusyPoll => workq.block_on(answer),
        _ => on_task(answer),
    }
}

/// Measures round trips in a busy-poll WorkQ. Returns the nanoseconds per trip, and the allocations
/// of all trips.
fn busy_round_trips(event: &SyncEvent, trips: u64) -> (f64, u64) {
    event.workq().block_on(async {
        let mut at = event.get().await.expect("it is there");
        let (start, before) = (Instant::now(), counting::everywhere());
        for _ in 0..trips {
            event.set(at + 1).await.expect("it is there");
            at = event.wait_gt(at + 1).await.expect("an echo");
        }
        (per_op(start, trips), counting::everywhere() - before)
    })
}

/// S1: round trips between two processes that both spin.
pub(crate) fn s1(report: &mut Report) {
    const TRIPS: u64 = 2_000;
    /// Many short rounds, so that nothing disturbs the fastest one.
    const ROUNDS: usize = 100;
    let noise = noise();
    sys::pin(Some(0));
    let (event, busy_peer) = with_peer("busy", on_workq(Mode::BusyPoll));
    let mut busy = || busy_round_trips(&event, TRIPS).0;
    let mut bare = || bare_round_trips(TRIPS);
    let [busy, bare] = interleave(ROUNDS, [&mut busy, &mut bare]).map(|s| s.min());
    let (_, allocations) = busy_round_trips(&event, TRIPS);
    // Stop the peer, which would otherwise spin and take the CPU from the next peer.
    drop(busy_peer);
    let (event, spinner) = with_peer("blocking", blocking);
    let mut spins = || {
        let mut at = event.get().expect("it is there");
        let start = Instant::now();
        for _ in 0..TRIPS {
            event.set(at + 1).expect("it is there");
            at = event.wait_gt(at + 1, u64::MAX).expect("an echo");
        }
        per_op(start, TRIPS)
    };
    let mut words = || bare_round_trips(TRIPS);
    let [spins, words] = interleave(ROUNDS, [&mut spins, &mut words]).map(|s| s.min());
    drop(spinner);
    let socket = Samples::of((0..15).map(|_| socket_round_trips(100, false)).collect()).min();
    sys::pin(None);
    let what = format!(
        "a sync event's round trip in a busy WorkQ over two bare atomics ({busy:.0} ns against {bare:.0}){noise}"
    );
    report.line("S1", busy / bare, AtMost(1.5), "x", &what);
    let what =
        format!("the same of the blocking flavour ({spins:.0} ns against {words:.0}){noise}");
    report.line("S1.blocking", spins / words, AtMost(1.5), "x", &what);
    let what = format!("faster than a Unix socket ({:.1} us){noise}", socket / 1e3);
    report.line("S1.socket", socket / busy, AtLeast(200.0), "x", &what);
    let what = format!("allocations of {TRIPS} round trips");
    report.line("S1.alloc", allocations as f64, Exactly(0.0), "", &what);
}

/// How long the spinning side waits before a trip, so that the other side falls asleep.
const PAUSE: Duration = Duration::from_micros(60);

fn pause() -> Instant {
    let begun = Instant::now();
    while begun.elapsed() < PAUSE {
        std::hint::spin_loop();
    }
    Instant::now()
}

/// Measures a socket of which one side spins and the other side sleeps in epoll. Returns the
/// nanoseconds of a round trip.
fn socket_with_a_sleeper(trips: u64) -> f64 {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let pair = socketpair(AddressFamily::Unix, SockType::Stream, None, flags);
    let (here, there) = pair.expect("two sockets");
    let take = |socket: &OwnedFd| recv(socket.as_raw_fd(), &mut [0; 64], MsgFlags::empty());
    let give = |socket: &OwnedFd| {
        send(socket.as_raw_fd(), &[1], MsgFlags::empty()).expect("room");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::pin(Some(1));
            let edge = sys::Edge::on(&there);
            for _ in 0..trips {
                while take(&there) == Err(Errno::EAGAIN) {
                    edge.wait();
                }
                give(&there);
            }
        });
        let mut took = Duration::ZERO;
        for _ in 0..trips {
            let start = pause();
            give(&here);
            while take(&here) == Err(Errno::EAGAIN) {}
            took += start.elapsed();
        }
        took.as_nanos() as f64 / trips as f64
    })
}

fn round_trips_with_a_sleeper(event: &BlockingSyncEvent, trips: u64) -> f64 {
    let mut at = event.get().expect("it is there");
    let mut took = Duration::ZERO;
    for _ in 0..trips {
        let start = pause();
        event.set(at + 1).expect("it is there");
        at = event.wait_gt(at + 1, u64::MAX).expect("an echo");
        took += start.elapsed();
    }
    took.as_nanos() as f64 / trips as f64
}

/// S2: round trips with another process that sleeps.
pub(crate) fn s2(report: &mut Report) {
    let noise = noise();
    sys::pin(Some(0));
    let (event, peer) = with_peer("asleep", blocking);
    let mut trips = || round_trips_with_a_sleeper(&event, 1_000);
    let mut socket = || socket_with_a_sleeper(1_000);
    let [trips, socket] = interleave(9, [&mut trips, &mut socket]).map(|s| s.median());
    drop(peer);
    sys::pin(None);
    let what = format!(
        "a round trip with a side that sleeps, over a socket and epoll ({:.1} us against {:.1}){noise}",
        trips / 1e3,
        socket / 1e3
    );
    report.line("S2", trips / socket, AtMost(1.10), "x", &what);
}

/// A future that counts its polls.
struct Counted<F>(Pin<Box<F>>, Arc<AtomicU64>);

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Relaxed);
        self.0.as_mut().poll(cx)
    }
}

/// Sets an event again and again, and each set wakes a task, beside `waits` other waits on `events`
/// events. Returns the nanoseconds per set, and the polls of the other waits.
fn sets_beside(waits: usize, events: usize) -> (f64, u64) {
    const SETS: u64 = 5_000;
    on_task(async move {
        let host = Soft::builder().build().open("pf0").expect("a device");
        let (workq, cpu) = (workq(Mode::EventDriven), Location::Cpu(&host));
        let event = |waits: usize| {
            let builder = SyncEvent::builder().publisher(cpu).subscriber(cpu);
            builder
                .waits(waits as u32 + 1)
                .attach(&workq)
                .expect("an event")
        };
        let (there, back) = (event(waits), event(1));
        let others: Vec<SyncEvent> = (1..events).map(|_| event(waits / events)).collect();
        let polls = Arc::new(AtomicU64::new(0));
        let of = |at: usize| others.get(at % events).unwrap_or(&there);
        for at in 0..waits {
            let wait = of(at).wait_gt(u64::MAX - 1 - at as u64).owned();
            tokio::spawn(Counted(Box::pin(wait), Arc::clone(&polls)));
        }
        let echo = {
            let (there, back) = (there.clone(), back.clone());
            tokio::spawn(async move {
                for turn in 0..SETS + 100 {
                    there.wait_gt(turn).await.expect("it is there");
                    back.set(turn + 1).await.expect("it is there");
                }
            })
        };
        let (mut start, mut before) = (Instant::now(), 0);
        for turn in 0..SETS + 100 {
            if turn == 100 {
                (start, before) = (Instant::now(), polls.load(Relaxed));
            }
            there.set(turn + 1).await.expect("it is there");
            back.wait_gt(turn).await.expect("it is there");
        }
        let took = per_op(start, SETS);
        echo.await.expect("it ends");
        (took, polls.load(Relaxed) - before)
    })
}

/// S4: ten thousand waits on one WorkQ of depth 64.
pub(crate) fn s4(report: &mut Report) {
    const WAITS: usize = 10_000;
    let mut alone = || sets_beside(0, 1).0;
    let mut beside = || sets_beside(WAITS, 1).0;
    let mut several = || sets_beside(WAITS, 1_000).0;
    let cases = interleave(7, [&mut alone, &mut beside, &mut several]);
    let [alone, beside, several] = cases.map(|samples| samples.min());
    let polls = sets_beside(WAITS, 1).1 + sets_beside(WAITS, 1_000).1;
    let what = format!(
        "setting an event with {WAITS} waits that wakes one, over one with none ({beside:.0} ns against {alone:.0})"
    );
    report.line("S4", beside / alone, AtMost(1.2), "x", &what);
    let what =
        format!("the same with the others on 999 other events of the WorkQ ({several:.0} ns)");
    report.line("S4.events", several / alone, AtMost(1.2), "x", &what);
    report.line(
        "S4.polls",
        polls as f64,
        Exactly(0.0),
        "",
        "polls of the others",
    );
}
