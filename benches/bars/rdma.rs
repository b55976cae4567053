//! R1 to R4, R6 to R8 and V10: remote operations with another process, which runs this program too:
//! `bars rdma ROLE NUMBER`.
#![expect(unsafe_code, reason = "the baselines copy by address, and map")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, recv, send, socketpair};
use support::counting;
use support::peer::{Peer, hear, hex, say, unhex};
use support::programs::this_program;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Device, Mmap, Mode, Rdma, WorkQ,
    mem::{Access, RemoteBuf, RemoteMmap},
    op::Started,
    rdma::RdmaRecv,
};

use super::measure::{Samples, interleave, per_op};
use super::report::Goal::{AtLeast, AtMost, Exactly};
use super::report::Report;
use super::rig::on_task;
use super::share::Shared;
use super::{locked, share, sys};

/// The accesses that peers get to memory of this process.
const ALL: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// One side of the connections: a device, Bufs of one size, a WorkQ, and connected contexts.
struct Side {
    device: Device,
    pool: BufPool,
    workq: WorkQ,
    rdmas: Vec<Rdma>,
    /// Bufs for receives that are posted ahead.
    receives: Vec<Buf>,
}

impl Side {
    fn open(mode: Mode, element: usize, contexts: usize) -> Side {
        let device = Soft::builder().build().open("pf0").expect("a device");
        let access = Access::LOCAL_READ_WRITE;
        let mmap = Mmap::builder().device(&device).access(access);
        let mmap = mmap
            .alloc(element.next_multiple_of(64) * 32)
            .expect("memory");
        let pool = BufPool::builder(&mmap).element_size(element).alignment(64);
        let workq = WorkQ::builder().mode(mode).build().expect("a WorkQ");
        let rdma = || {
            let builder = Rdma::builder(&device).permissions(ALL).recv_queue_size(32);
            builder.attach(&workq).expect("a context")
        };
        let pool = pool.build().expect("a pool");
        Side {
            rdmas: (0..contexts).map(|_| rdma()).collect(),
            receives: (0..AHEAD)
                .map(|_| pool.try_alloc().expect("the pool has some"))
                .collect(),
            pool,
            workq,
            device,
        }
    }

    fn buf(&self) -> Buf {
        self.pool.try_alloc().expect("the pool has one")
    }

    fn filled(&self) -> Buf {
        let buf = self.buf();
        buf.set_data(0, buf.capacity()).expect("all of it");
        buf
    }

    /// Allocates a Buf with a small message.
    fn small(&self) -> Buf {
        let buf = self.buf();
        buf.set_data(0, SMALL).expect("it fits");
        buf
    }

    /// Runs in the second process: exchanges blobs with the first process, and connects.
    fn connect(&self) {
        for rdma in &self.rdmas {
            say(&hex(&rdma.export().expect("a blob")));
            rdma.connect(&unhex(&heard())).wait().expect("a connection");
        }
        say("connected");
        assert_eq!(heard(), "connected");
    }
}

/// Starts this program again, with the arguments `mode`, `role` and `number`.
pub(crate) fn start(mode: &str, role: &str, number: u64) -> Peer {
    let mut command = this_program();
    command.args([mode, role, &number.to_string()]);
    Peer::spawn(command)
}

/// Exchanges blobs with the other process, and connects.
fn connect(peer: &mut Peer, side: &Side) {
    for rdma in &side.rdmas {
        let theirs = peer.hear();
        peer.say(&hex(&rdma.export().expect("a blob")));
        rdma.connect(&unhex(&theirs)).wait().expect("a connection");
    }
    assert_eq!(peer.hear(), "connected");
    peer.say("connected");
}

/// Runs in the second process: returns the next line from the first process.
pub(crate) fn heard() -> String {
    hear().expect("the parent has gone")
}

/// Runs the second process in its role.
pub(crate) fn peer(role: &str, number: u64) {
    match role {
        "memory" => memory_peer(number as usize),
        "echo" => echo_peer(Mode::BusyPoll, number as usize),
        "echo-event" => echo_peer(Mode::EventDriven, number as usize),
        "sink" => sink_peer(number),
        "adder" => adder_peer(number),
        "bare-adder" => bare_adder_peer(number),
        _ => panic!("no role {role}"),
    }
}

/// Exports `len` bytes, and waits.
fn memory_peer(len: usize) {
    let side = Side::open(Mode::BusyPoll, 64, 1);
    let access = Access::LOCAL_READ_WRITE | ALL;
    let mmap = Mmap::builder().device(&side.device).access(access);
    let mmap = mmap.alloc(len).expect("memory");
    side.connect();
    say(&hex(&mmap.export_rdma(&side.device).expect("a blob")));
    heard();
}

/// The number of receives that are posted ahead, as perftest does it. After an answer is sent, its
/// receive is posted anew.
const AHEAD: usize = 8;

/// Posted receives, in order, each with its Buf.
type Posted<'a> = VecDeque<(&'a Buf, Started<RdmaRecv<&'a Rdma, &'a Buf>>)>;

fn posted<'a>(rdma: &'a Rdma, bufs: &'a [Buf]) -> Posted<'a> {
    let post = |buf| (buf, rdma.recv(buf).start().expect("a receive"));
    bufs.iter().map(post).collect()
}

/// Posts a receive anew. Empties its Buf first if no message fits any more.
fn repost<'a>(rdma: &'a Rdma, posted: &mut Posted<'a>, buf: &'a Buf) {
    if buf.tailroom() < SMALL {
        buf.reset_data_len().expect("no job has it");
    }
    posted.push_back((buf, rdma.recv(buf).start().expect("a receive")));
}

const SMALL: usize = 64;
/// The messages that a Buf holds before it is emptied.
const FILLING: usize = 64;

/// Echoes messages for as long as it is connected. Reports the allocations of the second half of 2
/// * `ECHOES` messages.
fn echo_peer(mode: Mode, contexts: usize) {
    sys::pin(Some(1));
    let side = Side::open(mode, SMALL * FILLING, contexts);
    side.connect();
    let rdma = side.rdmas[0].clone();
    let src = side.small();
    let bufs: Vec<Buf> = (0..AHEAD).map(|_| side.buf()).collect();
    let echo = async move {
        let mut posted = posted(&rdma, &bufs);
        let mut before = 0;
        for turn in 1_u64.. {
            let (buf, next) = posted.pop_front().expect("some");
            if next.await.is_err() {
                break;
            }
            rdma.send(&src).await.expect("a send");
            repost(&rdma, &mut posted, buf);
            match turn {
                ECHOES => before = counting::everywhere(),
                // Report once: the parent reads this line.
                _ if turn == 2 * ECHOES => say(&(counting::everywhere() - before).to_string()),
                _ => {}
            }
        }
    };
    run(&side.workq, mode, echo);
}

const ECHOES: u64 = 2_000;

/// Runs `body` in a task, or for busy-poll by spinning on this thread.
fn run<T: Send + 'static>(
    workq: &WorkQ,
    mode: Mode,
    body: impl Future<Output = T> + Send + 'static,
) -> T {
    match mode {
        Mode::BusyPoll => workq.block_on(body),
        _ => on_task(body),
    }
}

/// Measures round trips of 64 bytes. Returns the nanoseconds per trip, and the allocations after
/// the first ten trips.
fn round_trips(side: &Side, mode: Mode, trips: u64) -> (f64, u64) {
    let rdma = side.rdmas[0].clone();
    let src = side.small();
    let bufs = side.receives.clone();
    run(&side.workq, mode, async move {
        let mut posted = posted(&rdma, &bufs);
        let mut start = Instant::now();
        let mut before = 0;
        for trip in 0..trips {
            // Do not count what the runtime allocates for its first task.
            if trip == 10 {
                (start, before) = (Instant::now(), counting::everywhere());
            }
            let (buf, back) = posted.pop_front().expect("some");
            rdma.send(&src).await.expect("a send");
            back.await.expect("an echo");
            if trip + (AHEAD as u64) < trips {
                repost(&rdma, &mut posted, buf);
            }
        }
        let ended = (per_op(start, trips - 10), counting::everywhere() - before);
        for buf in &bufs {
            buf.reset_data_len().expect("no job has it");
        }
        ended
    })
}

/// Opens two connected contexts in this process, on one WorkQ.
fn both_here() -> Side {
    let side = Side::open(Mode::BusyPoll, SMALL * FILLING, 2);
    let blobs = [0, 1].map(|at| side.rdmas[at].export().expect("a blob"));
    side.workq.block_on(async {
        let [one, other] = [0, 1].map(|at| side.rdmas[at].connect(&blobs[1 - at]));
        tokio::try_join!(one, other).expect("a connection");
    });
    side
}

/// Runs round trips of 64 bytes between two contexts of this process, on a single thread.
pub(crate) fn round_trips_here(trips: u64) {
    let side = both_here();
    let src = side.small();
    let bufs = [side.buf(), side.buf()];
    side.workq.block_on(async {
        for trip in 1..=trips {
            for (at, buf) in bufs.iter().enumerate() {
                let message = side.rdmas[1 - at].recv(buf).start().expect("a receive");
                side.rdmas[at].send(&src).await.expect("a send");
                message.await.expect("a message");
            }
            if trip % FILLING as u64 == 0 {
                let empty = |buf: &Buf| buf.reset_data_len().expect("no job has it");
                bufs.iter().for_each(empty);
            }
        }
    });
}

/// Returns the nanoseconds of a round trip over two words in shared memory, by two threads that
/// spin.
pub(crate) fn bare_round_trips(trips: u64) -> f64 {
    #[repr(align(128))]
    struct Word(AtomicU64);
    let words = [Word(AtomicU64::new(0)), Word(AtomicU64::new(0))];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::pin(Some(1));
            for trip in 1..=trips {
                while words[0].0.load(Ordering::Acquire) != trip {}
                words[1].0.store(trip, Ordering::Release);
            }
        });
        let mut start = Instant::now();
        for trip in 1..=trips {
            words[0].0.store(trip, Ordering::Release);
            while words[1].0.load(Ordering::Acquire) != trip {}
            if trip == 1 {
                start = Instant::now();
            }
        }
        per_op(start, trips - 1)
    })
}

/// Returns the nanoseconds of a round trip of 64 bytes over a seqpacket socket: with blocking
/// calls, or with epoll as in an event loop.
pub(crate) fn socket_round_trips(trips: u64, epoll: bool) -> f64 {
    let flags = SockFlag::SOCK_CLOEXEC;
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
    let (here, there) = pair.expect("two sockets");
    let turn = |socket: &OwnedFd, edge: &Option<sys::Edge>, first: bool| {
        use nix::sys::socket::MsgFlags;
        let mut bytes = [0_u8; 64];
        if first {
            send(socket.as_raw_fd(), &bytes, MsgFlags::empty()).expect("room");
        }
        if let Some(edge) = edge {
            edge.wait();
        }
        recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()).expect("a message");
        if !first {
            send(socket.as_raw_fd(), &bytes, MsgFlags::empty()).expect("room");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::pin(Some(1));
            let edge = epoll.then(|| sys::Edge::on(&there));
            for _ in 0..trips {
                turn(&there, &edge, false);
            }
        });
        let edge = epoll.then(|| sys::Edge::on(&here));
        let start = Instant::now();
        for _ in 0..trips {
            turn(&here, &edge, true);
        }
        per_op(start, trips)
    })
}

pub(crate) fn noise() -> String {
    sys::both_cpus().err().unwrap_or_default()
}

/// R1: one-sided operations of 4 KiB against a memcpy into a shared mapping.
pub(crate) fn r1(report: &mut Report) {
    const LEN: usize = 4096;
    const COPIES: u64 = 20_000;
    const READS: usize = 16;
    let mut peer = start("rdma", "memory", LEN as u64);
    let side = Side::open(Mode::BusyPoll, READS * LEN, 1);
    connect(&mut peer, &side);
    let remote = RemoteMmap::from_export(&side.device, &unhex(&peer.hear()));
    let remote = remote
        .wait()
        .expect("an import")
        .buf(..LEN)
        .expect("a range");
    let (src, dst) = (side.buf(), side.buf());
    src.set_data(0, LEN).expect("it fits");
    let from = src.data().expect("no job writes it").as_ptr();
    let shared = Shared::map(share::memfd(LEN), LEN);
    let to = shared.base();
    let mut bare = || {
        let start = Instant::now();
        for _ in 0..COPIES {
            // SAFETY: `LEN` bytes are valid at both addresses, and nothing else accesses them.
            unsafe { std::ptr::copy_nonoverlapping(black_box(from), black_box(to), LEN) };
        }
        per_op(start, COPIES)
    };
    let one_sided = |write: bool| {
        let (rdma, src, dst) = (side.rdmas[0].clone(), src.clone(), dst.clone());
        let remote: RemoteBuf = remote.clone();
        on_task(async move {
            let start = Instant::now();
            for _ in 0..COPIES {
                if write {
                    rdma.write(&src, &remote).await.expect("a write");
                } else {
                    rdma.read(&remote, &dst).await.expect("a read");
                    if dst.tailroom() == 0 {
                        dst.reset_data_len().expect("no job has it");
                    }
                }
            }
            per_op(start, COPIES)
        })
    };
    let (mut write, mut read) = (|| one_sided(true), || one_sided(false));
    let [bare, write, read] = interleave(40, [&mut bare, &mut write, &mut read]).map(|s| s.min());
    for (name, took) in [("R1.write", write), ("R1.read", read)] {
        let what = format!(
            "4 KiB to another process, less 15 ns, over memcpy into a shared mapping ({took:.1} ns against {bare:.1})"
        );
        report.line(name, (took - 15.0) / bare, AtMost(1.15), "x", &what);
    }
}

/// R2: round trips of messages of 64 bytes, with both sides spinning.
pub(crate) fn r2(report: &mut Report) {
    let noise = noise();
    sys::pin(Some(0));
    let mut peer = start("rdma", "echo", 1);
    let side = Side::open(Mode::BusyPoll, SMALL * FILLING, 1);
    connect(&mut peer, &side);
    let mut messages = || round_trips(&side, Mode::BusyPoll, 20_000).0;
    let mut bare = || bare_round_trips(20_000);
    let [messages, bare] = interleave(15, [&mut messages, &mut bare]).map(|s| s.median());
    drop(peer);
    let socket = Samples::of((0..3).map(|_| socket_round_trips(500, false)).collect()).median();
    sys::pin(None);
    let what = format!(
        "a round trip of 64 B over one over two atomics ({messages:.0} ns against {bare:.0}){noise}"
    );
    report.line("R2", messages / bare, AtMost(3.5), "x", &what);
    let what = format!("faster than a Unix socket ({:.1} us){noise}", socket / 1e3);
    report.line("R2.socket", socket / messages, AtLeast(100.0), "x", &what);
}

/// V10: the locked instructions of a message.
pub(crate) fn v10(report: &mut Report) {
    let what = "locked instructions of a message of 64 B, sent and received, busy-poll";
    let each = locked::instructions("rdma-round-trips").map(|trip| trip / 2.0);
    report.counted("V10", each, AtMost(15.0), what);
}

/// R3: round trips of messages of 64 bytes, with both sides sleeping.
pub(crate) fn r3(report: &mut Report) {
    let noise = noise();
    sys::pin(Some(0));
    let mut peer = start("rdma", "echo-event", 1);
    let side = Side::open(Mode::EventDriven, SMALL * FILLING, 1);
    connect(&mut peer, &side);
    let mut messages = || round_trips(&side, Mode::EventDriven, 1_000).0;
    let mut socket = || socket_round_trips(1_000, true);
    let [messages, socket] = interleave(7, [&mut messages, &mut socket]).map(|s| s.median());
    sys::pin(None);
    let what = format!(
        "the same asleep, over a seqpacket socket and epoll ({:.1} us against {:.1}){noise}",
        messages / 1e3,
        socket / 1e3
    );
    report.line("R3", messages / socket, AtMost(1.15), "x", &what);
}

/// Writes to another process in busy-poll mode. Runs under callgrind and strace.
pub(crate) fn writes(jobs: u64) {
    let mut peer = start("rdma", "memory", 4096);
    let side = Side::open(Mode::BusyPoll, 64, 1);
    connect(&mut peer, &side);
    let remote = RemoteMmap::from_export(&side.device, &unhex(&peer.hear()));
    let remote = remote
        .wait()
        .expect("an import")
        .buf(..64)
        .expect("a range");
    let src = side.filled();
    let rdma = &side.rdmas[0];
    side.workq.block_on(async {
        for _ in 0..jobs {
            rdma.write(&src, &remote).await.expect("a write");
        }
    });
    // Leak these: dropping them would race with the end of the process.
    std::mem::forget((side, src, remote));
}

const LONG: usize = 64 << 10;

/// Receives messages of 64 KiB with 16 receives posted. Reports every time it has received
/// `messages` of them.
fn sink_peer(messages: u64) {
    sys::pin(Some(1));
    let side = Side::open(Mode::BusyPoll, LONG, 1);
    side.connect();
    let rdma = side.rdmas[0].clone();
    let bufs: Vec<Buf> = (0..16).map(|_| side.buf()).collect();
    side.workq.block_on(async {
        let post = |buf| rdma.recv(buf).start().expect("a receive");
        let mut posted: std::collections::VecDeque<_> =
            bufs.iter().map(|buf| (buf, post(buf))).collect();
        let mut taken = 0;
        while let Some((buf, receive)) = posted.pop_front() {
            if receive.await.is_err() {
                break;
            }
            buf.reset_data_len().expect("no job has it");
            posted.push_back((buf, post(buf)));
            taken += 1;
            if taken % messages == 0 {
                say("taken");
            }
        }
    });
}

/// R4: the bandwidth of messages of 64 KiB with eight in flight.
pub(crate) fn r4(report: &mut Report) {
    use futures::StreamExt as _;
    use futures::stream::FuturesUnordered;
    const MESSAGES: u64 = 4_000;
    let noise = noise();
    sys::pin(Some(0));
    let mut peer = start("rdma", "sink", MESSAGES);
    let side = Side::open(Mode::BusyPoll, LONG, 1);
    connect(&mut peer, &side);
    let bufs: Vec<Buf> = (0..8).map(|_| side.filled()).collect();
    let to: Vec<Buf> = (0..8).map(|_| side.filled()).collect();
    let mut bare = || {
        let start = Instant::now();
        for at in 0..MESSAGES as usize {
            let from = bufs[at % 8].data().expect("no job writes it");
            let mut to = to[at % 8].data_mut().expect("no job has it");
            to.copy_from_slice(black_box(&from));
        }
        per_op(start, MESSAGES)
    };
    let rdma = &side.rdmas[0];
    let mut sends = || {
        let start = Instant::now();
        side.workq.block_on(async {
            let mut flying: FuturesUnordered<_> = bufs.iter().map(|buf| rdma.send(buf)).collect();
            for at in 8..MESSAGES as usize {
                flying.next().await.expect("eight").expect("a send");
                flying.push(rdma.send(&bufs[at % 8]));
            }
            while let Some(sent) = flying.next().await {
                sent.expect("a send");
            }
        });
        assert_eq!(peer.hear(), "taken");
        per_op(start, MESSAGES)
    };
    let [bare, sends] = interleave(9, [&mut bare, &mut sends]).map(|s| s.median());
    sys::pin(None);
    let rate = |took: f64| LONG as f64 / took;
    let what = format!(
        "bandwidth of messages of 64 KiB over a memcpy's ({:.1} GB/s against {:.1}){noise}",
        rate(sends),
        rate(bare)
    );
    report.line("R4", bare / sends, AtLeast(0.5), "x", &what);
}

/// R6: a busy context beside a thousand idle ones.
pub(crate) fn r6(report: &mut Report) {
    let noise = noise();
    sys::pin(Some(0));
    let measured = [1, 1_001].map(|contexts| {
        let mut peer = start("rdma", "echo", contexts);
        let side = Side::open(Mode::BusyPoll, SMALL * FILLING, contexts as usize);
        connect(&mut peer, &side);
        let trips = Samples::of(
            (0..15)
                .map(|_| round_trips(&side, Mode::BusyPoll, 20_000).0)
                .collect(),
        );
        let start = Instant::now();
        const POLLS: u64 = 200_000;
        for _ in 0..POLLS {
            let _ = black_box(side.workq.progress(|_, _| {}));
        }
        (trips.median(), per_op(start, POLLS))
    });
    sys::pin(None);
    let [(alone, poll), (beside, poll_beside)] = measured;
    let what = format!(
        "a round trip beside 1,000 idle contexts over one alone ({beside:.0} ns against {alone:.0}){noise}"
    );
    report.line("R6.trip", beside / alone, AtMost(1.2), "x", &what);
    let what = format!("a poll that finds nothing ({poll_beside:.1} ns against {poll:.1}){noise}");
    report.line("R6.poll", poll_beside / poll, AtMost(1.2), "x", &what);
}

/// R7: the allocations of round trips of messages.
pub(crate) fn r7(report: &mut Report) {
    for (name, role, mode) in [
        ("R7.busy", "echo", Mode::BusyPoll),
        ("R7.event", "echo-event", Mode::EventDriven),
    ] {
        let mut peer = start("rdma", role, 1);
        let side = Side::open(mode, SMALL * FILLING, 1);
        connect(&mut peer, &side);
        round_trips(&side, mode, ECHOES);
        let (_, here) = round_trips(&side, mode, ECHOES);
        let there: u64 = peer.hear().parse().expect("a number");
        let what = format!("allocations of {ECHOES} round trips, both processes");
        report.line(name, (here + there) as f64, Exactly(0.0), "", &what);
    }
}

const ADDS: u64 = 200_000;

/// Adds to the parent's counter by RDMA, at each order of the parent.
fn adder_peer(cpu: u64) {
    sys::pin(Some(cpu as usize));
    let side = Side::open(Mode::BusyPoll, 64, 1);
    side.connect();
    let remote = RemoteMmap::from_export(&side.device, &unhex(&heard()));
    let remote = remote.wait().expect("an import").buf(..8).expect("a word");
    let rdma = side.rdmas[0].clone();
    loop {
        say("ready");
        heard();
        let (rdma, remote) = (rdma.clone(), remote.clone());
        on_task(async move {
            for _ in 0..ADDS {
                rdma.fetch_add(&remote, 1).await.expect("an atomic");
            }
        });
    }
}

/// Adds to a counter without the crate, in a mapping of the parent's memfd.
fn bare_adder_peer(cpu: u64) {
    sys::pin(Some(cpu as usize));
    let path = heard();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("the parent's memfd");
    let shared = Shared::map(&file, 4096);
    // SAFETY: the word is mapped and aligned, and accessed by atomics only.
    let word = unsafe { AtomicU64::from_ptr(shared.base().cast()) };
    loop {
        say("ready");
        heard();
        for _ in 0..ADDS {
            word.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// R8: four processes that add to one counter.
pub(crate) fn r8(report: &mut Report) {
    let noise = noise();
    const ADDERS: u64 = 4;
    let mut adders: Vec<Peer> = (0..ADDERS)
        .map(|at| start("rdma", "adder", at % 2))
        .collect();
    let side = Side::open(Mode::BusyPoll, 64, ADDERS as usize);
    let access = Access::LOCAL_READ_WRITE | ALL;
    let mmap = Mmap::builder().device(&side.device).access(access);
    let mmap = mmap.alloc(4096).expect("memory");
    let blob = hex(&mmap.export_rdma(&side.device).expect("a blob"));
    for (adder, rdma) in adders.iter_mut().zip(&side.rdmas) {
        let theirs = adder.hear();
        adder.say(&hex(&rdma.export().expect("a blob")));
        rdma.connect(&unhex(&theirs)).wait().expect("a connection");
        assert_eq!(adder.hear(), "connected");
        adder.say("connected");
        adder.say(&blob);
    }
    let file = share::memfd(4096);
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut bare: Vec<Peer> = (0..ADDERS)
        .map(|at| start("rdma", "bare-adder", at % 2))
        .collect();
    for adder in &mut bare {
        adder.say(&path);
    }
    for adder in adders.iter_mut().chain(&mut bare) {
        assert_eq!(adder.hear(), "ready");
    }
    let round = |adders: &mut [Peer]| {
        let start = Instant::now();
        for adder in &mut *adders {
            adder.say("go");
        }
        for adder in &mut *adders {
            assert_eq!(adder.hear(), "ready");
        }
        per_op(start, ADDERS * ADDS)
    };
    const ROUNDS: usize = 7;
    let mut remote = || round(&mut adders);
    let mut plain = || round(&mut bare);
    let [remote, plain] = interleave(ROUNDS, [&mut remote, &mut plain]).map(|s| s.median());
    let window = mmap.len();
    let word = tokio_doca::mem::BufInventory::with_capacity(1)
        .buf_filled(&mmap, ..window)
        .expect("all of it");
    let sum = word.load(0).expect("a word");
    let expected = (ROUNDS as u64 + 1) * ADDERS * ADDS;
    let what = format!("the sum of {ADDERS} processes' additions less {expected}");
    report.line(
        "R8.sum",
        sum as f64 - expected as f64,
        Exactly(0.0),
        "",
        &what,
    );
    let what = format!(
        "their rate over that of bare atomics ({remote:.1} ns each against {plain:.1}){noise}"
    );
    report.line("R8.rate", plain / remote, AtLeast(0.5), "x", &what);
}
