//! N1 to N3: echoes of many connections with 32 messages in flight each. The other side is a second
//! process, which runs this program too: `bars echo TRANSPORT CONNECTIONS SIZE`.
//!
//! The baseline is TCP over loopback, whose writes are batched: `Framed` with `feed` and `flush`.

use std::net::{Ipv4Addr, TcpListener, TcpStream as StdStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use futures::{FutureExt, SinkExt, StreamExt};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use support::peer::{Peer, hear, hex, say, unhex};
use support::programs::this_program;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, BufPool, Mmap, Mode, Rdma, WorkQ, mem::Access};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::measure::Samples;
use super::report::Goal::{AtLeast, AtMost};
use super::report::Report;
use super::{scenario, sys};

/// The messages in flight per connection.
pub(crate) const DEPTH: usize = 32;
/// The number of rounds of each case.
const ROUNDS: usize = 5;
/// The most system calls that a small echo of the baseline may make on each side: one in ten
/// echoes, and a tenth of that for bursts that the kernel splits. Bursts of large messages do not
/// fit into a socket.
const CALLS: f64 = 0.11;

/// Counts the reads and writes of TCP streams, and the sleeps of the runtime's thread.
static CALLED: AtomicU64 = AtomicU64::new(0);

/// The transport of the messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Rdma(Mode),
}

const TCP: Transport = Transport::Tcp;
const EVENT: Transport = Transport::Rdma(Mode::EventDriven);
const BUSY: Transport = Transport::Rdma(Mode::BusyPoll);
const HYBRID: Transport = Transport::Rdma(Mode::Hybrid {
    spin: Duration::from_micros(30),
});

impl Transport {
    fn name(self) -> &'static str {
        match self {
            TCP => "tcp",
            BUSY => "busy",
            HYBRID => "hybrid",
            Transport::Rdma(_) => "event",
        }
    }

    fn of(name: &str) -> Transport {
        let known = [TCP, EVENT, BUSY, HYBRID].into_iter();
        let mut known = known.filter(|known| known.name() == name);
        known.next().expect("a transport")
    }
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    let count = || {
        CALLED.fetch_add(1, Relaxed);
    };
    let runtime = builder.enable_io().on_thread_park(count).build();
    runtime.expect("a runtime")
}

/// Returns the CPU time of this process, in nanoseconds.
fn cpu_time() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("it is ours");
    let of = |time: TimeVal| time.tv_sec() as f64 * 1e9 + time.tv_usec() as f64 * 1e3;
    of(usage.user_time()) + of(usage.system_time())
}

/// A TCP stream whose system calls are counted.
struct Counted(TcpStream);

/// Counts a system call if `polled` is ready. Otherwise Tokio mostly made no call: a read or write
/// that did less than asked has shown before that the socket is not ready.
fn counted<T>(polled: Poll<T>) -> Poll<T> {
    CALLED.fetch_add(polled.is_ready().into(), Relaxed);
    polled
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        counted(Pin::new(&mut self.0).poll_read(cx, buf))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        counted(Pin::new(&mut self.0).poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

type Frames = Framed<Counted, LengthDelimitedCodec>;

/// Makes frames of a connected stream. Must be called in a runtime.
fn frames(stream: StdStream, size: usize) -> Frames {
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream.set_nonblocking(true).expect("a socket");
    let stream = Counted(TcpStream::from_std(stream).expect("a stream"));
    let burst = DEPTH * (size + 4);
    let mut frames = Framed::with_capacity(stream, LengthDelimitedCodec::new(), burst);
    frames.set_backpressure_boundary(2 * burst);
    frames
}

/// Echoes frames until the other side has ended.
async fn serve_tcp(mut frames: Frames) {
    while let Some(first) = frames.next().await {
        let mut next = Some(first);
        while let Some(frame) = next {
            let frame = frame.expect("a frame").freeze();
            frames.feed(frame).await.expect("a write");
            next = frames.next().now_or_never().flatten();
        }
        SinkExt::<Bytes>::flush(&mut frames).await.expect("a write");
    }
}

/// Has `echoes` messages echoed.
async fn call_tcp(mut frames: Frames, size: usize, echoes: usize) {
    let message = Bytes::from(vec![7; size]);
    let (mut sent, mut came) = (0, 0);
    while came < echoes {
        while sent < echoes.min(came + DEPTH) {
            frames.feed(message.clone()).await.expect("a write");
            sent += 1;
        }
        SinkExt::<Bytes>::flush(&mut frames).await.expect("a write");
        let mut next = frames.next().await;
        while let Some(frame) = next {
            assert_eq!(frame.expect("a frame").len(), size);
            came += 1;
            next = frames.next().now_or_never().flatten();
        }
    }
}

/// One side of the connections. Each connection has a Buf to send; all share a pool for received
/// messages.
pub(crate) struct Side {
    pub(crate) pool: BufPool,
    pub(crate) rdmas: Vec<(Rdma, Buf)>,
    pub(crate) workq: WorkQ,
}

impl Side {
    pub(crate) fn open(mode: Mode, connections: usize, size: usize) -> Side {
        let device = Soft::builder().build().open("pf0").expect("a device");
        let access = Access::LOCAL_READ_WRITE;
        let mmap = Mmap::builder().device(&device).access(access);
        // Bufs that are posted, that are in answers, and the one that is sent.
        let bufs = connections * (3 * DEPTH + 1);
        let mmap = mmap.alloc(bufs * size).expect("memory");
        let pool = BufPool::builder(&mmap).element_size(size).build();
        let pool = pool.expect("a pool");
        let workq = WorkQ::builder().mode(mode).build().expect("a WorkQ");
        let rdma = |_| {
            let builder = Rdma::builder(&device).recv_queue_size(2 * DEPTH as u32);
            let buf = pool.try_alloc().expect("the pool has one");
            buf.set_data(0, size).expect("all of it");
            (builder.attach(&workq).expect("a context"), buf)
        };
        let rdmas = (0..connections).map(rdma).collect();
        Side { pool, rdmas, workq }
    }
}

/// Echoes messages until the other side has ended.
async fn serve_rdma(rdma: Rdma, pool: BufPool) {
    let mut messages = rdma.recv_stream(&pool, 2 * DEPTH);
    let mut answers = rdma.send_sink(DEPTH);
    while let Some(Ok(first)) = messages.next().await {
        let mut next = Some(first);
        while let Some(message) = next {
            let buf = message.buf.expect("no message is empty");
            answers.feed(buf).await.expect("a send");
            // Ignore the end of the connection here: the stream returns it once more.
            next = messages
                .next()
                .now_or_never()
                .flatten()
                .and_then(Result::ok);
        }
        answers.flush().await.expect("a send");
    }
}

/// Has `echoes` messages echoed. Returns the context, so that the connection stays open until all
/// have ended.
async fn call_rdma(rdma: Rdma, src: Buf, pool: BufPool, echoes: usize) -> Rdma {
    let mut messages = rdma.recv_stream(&pool, 2 * DEPTH);
    let mut requests = rdma.send_sink(DEPTH);
    let (mut sent, mut came) = (0, 0);
    while came < echoes {
        while sent < echoes.min(came + DEPTH) {
            requests.feed(src.clone()).await.expect("a send");
            sent += 1;
        }
        requests.flush().await.expect("a send");
        let mut next = messages.next().await;
        while let Some(message) = next {
            let received = message.expect("a message").received;
            assert_eq!(received.len, src.data_len());
            came += 1;
            next = messages.next().now_or_never().flatten();
        }
    }
    drop((messages, requests));
    rdma
}

/// Runs the tasks concurrently, and returns their outputs.
fn run<F>(runtime: &Runtime, tasks: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<_> = tasks.map(|task| runtime.spawn(task)).collect();
    let ended = runtime.block_on(join_all(tasks)).into_iter();
    let ended = ended.map(|end| end.expect("the task did not panic"));
    ended.collect()
}

/// The resources that a process has used.
#[derive(Clone, Copy)]
struct Used {
    /// The CPU time in nanoseconds.
    cpu: f64,
    /// The system calls of the baseline.
    calls: f64,
}

impl Used {
    fn until_now() -> Used {
        Used {
            cpu: cpu_time(),
            calls: CALLED.load(Relaxed) as f64,
        }
    }

    fn since(self, before: Used) -> Used {
        Used {
            cpu: self.cpu - before.cpu,
            calls: self.calls - before.calls,
        }
    }
}

/// Runs in the second process: echoes until the other side has ended, and reports the resources
/// that this used.
pub(crate) fn peer(transport: &str, connections: usize, size: usize) {
    sys::pin(Some(1));
    let runtime = runtime();
    let _in_it = runtime.enter();
    let before;
    match Transport::of(transport) {
        Transport::Tcp => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let port = listener.local_addr().expect("an address").port();
            say(&port.to_string());
            let accept = |_| listener.accept().expect("a connection").0;
            let streams: Vec<StdStream> = (0..connections).map(accept).collect();
            say("connected");
            before = Used::until_now();
            let serve = |stream| serve_tcp(frames(stream, size));
            run(&runtime, streams.into_iter().map(serve));
        }
        Transport::Rdma(mode) => {
            let Side { pool, rdmas, .. } = Side::open(mode, connections, size);
            for (rdma, _) in &rdmas {
                say(&hex(&rdma.export().expect("a blob")));
                let blob = unhex(&hear().expect("the parent is there"));
                rdma.connect(&blob).wait().expect("a connection");
            }
            say("connected");
            before = Used::until_now();
            let serve = |(rdma, _)| serve_rdma(rdma, pool.clone());
            run(&runtime, rdmas.into_iter().map(serve));
        }
    }
    let Used { cpu, calls } = Used::until_now().since(before);
    say(&format!("{cpu} {calls}"));
}

/// Runs echoes between two WorkQs of this process, on one thread.
pub(crate) fn echoes_here(echoes: usize) {
    const CONNECTIONS: usize = 64;
    let runtime = runtime();
    let _in_it = runtime.enter();
    let sides = [0, 1].map(|_| Side::open(Mode::EventDriven, CONNECTIONS, 64));
    let [here, there] = sides;
    for ((one, _), (other, _)) in here.rdmas.iter().zip(&there.rdmas) {
        let [one_blob, other_blob] = [one, other].map(|end| end.export().expect("a blob"));
        one.connect(&other_blob).wait().expect("a connection");
        other.connect(&one_blob).wait().expect("a connection");
    }
    for (rdma, _) in there.rdmas {
        runtime.spawn(serve_rdma(rdma, there.pool.clone()));
    }
    let call = |(rdma, src)| call_rdma(rdma, src, here.pool.clone(), echoes / CONNECTIONS);
    run(&runtime, here.rdmas.into_iter().map(call));
}

/// Runs echoes between two processes.
pub(crate) fn echoes_of_two(connections: usize, echoes: usize) {
    measure(EVENT, connections, 64, echoes);
}

/// The cost of an echo: nanoseconds, CPU nanoseconds of both sides, and system calls of the
/// baseline.
type Cost = [f64; 3];

fn measure(transport: Transport, connections: usize, size: usize, echoes: usize) -> Cost {
    let mut command = this_program();
    let numbers = [connections, size].map(|number| number.to_string());
    command.args(["echo", transport.name()]).args(numbers);
    let mut peer = Peer::spawn(command);
    sys::pin(Some(0));
    let runtime = runtime();
    let _in_it = runtime.enter();
    let each = echoes / connections;
    let (took, used) = match transport {
        Transport::Tcp => {
            let port: u16 = peer.hear().parse().expect("a port");
            let connect = |_| StdStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a stream");
            let streams: Vec<StdStream> = (0..connections).map(connect).collect();
            assert_eq!(peer.hear(), "connected");
            let (start, before) = (Instant::now(), Used::until_now());
            let call = |stream| call_tcp(frames(stream, size), size, each);
            run(&runtime, streams.into_iter().map(call));
            (start.elapsed(), Used::until_now().since(before))
        }
        Transport::Rdma(mode) => {
            let Side { pool, rdmas, .. } = Side::open(mode, connections, size);
            for (rdma, _) in &rdmas {
                let blob = unhex(&peer.hear());
                peer.say(&hex(&rdma.export().expect("a blob")));
                rdma.connect(&blob).wait().expect("a connection");
            }
            assert_eq!(peer.hear(), "connected");
            let (start, before) = (Instant::now(), Used::until_now());
            let call = |(rdma, src)| call_rdma(rdma, src, pool.clone(), each);
            let ended = run(&runtime, rdmas.into_iter().map(call));
            let used = (start.elapsed(), Used::until_now().since(before));
            drop(ended);
            used
        }
    };
    let said = peer.hear();
    let (cpu, calls) = said.split_once(' ').expect("two numbers");
    let number = |text: &str| text.parse::<f64>().expect("a number");
    let (cpu, calls) = (used.cpu + number(cpu), used.calls + number(calls));
    peer.ends();
    sys::pin(None);
    let count = (each * connections) as f64;
    [took.as_nanos() as f64 / count, cpu / count, calls / count]
}

/// Measures the cases in turn, and returns the median costs of each.
fn compare<const CASES: usize>(
    cases: [Transport; CASES],
    connections: usize,
    size: usize,
    echoes: usize,
) -> [Cost; CASES] {
    let mut samples = [const { [const { Vec::new() }; 3] }; CASES];
    for _ in 0..ROUNDS {
        for (case, samples) in cases.into_iter().zip(&mut samples) {
            let cost = measure(case, connections, size, echoes);
            for (sample, samples) in cost.into_iter().zip(samples) {
                samples.push(sample);
            }
        }
    }
    samples.map(|of| of.map(|of| Samples::of(of).median()))
}

/// Reports echoes over RDMA against TCP.
fn line(
    report: &mut Report,
    name: &str,
    over: Transport,
    connections: usize,
    size: usize,
    echoes: usize,
    goal: f64,
) {
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    let [tcp, rdma] = compare([TCP, over], connections, size, echoes);
    if tcp[2] / 2.0 > CALLS && connections > 1 && size <= 64 {
        let why = format!(
            "the baseline makes {:.2} system calls an echo on each side ({:.2}x of its echoes, \
             {:.2}x of its CPU time){busy_cpus}",
            tcp[2] / 2.0,
            tcp[0] / rdma[0],
            rdma[1] / tcp[1]
        );
        return report.skip(name, &why);
    }
    let what = format!(
        "echoes of {size} B a second over {connections} connections, {DEPTH} on their way each, \
         {}, over TCP ({:.0} against {:.0} thousand; TCP makes {:.2} system calls an echo on each \
         side){busy_cpus}",
        over.name(),
        1e6 / rdma[0],
        1e6 / tcp[0],
        tcp[2] / 2.0
    );
    report.line(name, tcp[0] / rdma[0], AtLeast(goal), "x", &what);
    let what = format!(
        "CPU time of such an echo, of both sides ({:.2} us against {:.2}){busy_cpus}",
        rdma[1] / 1e3,
        tcp[1] / 1e3
    );
    let name = format!("{name}.cpu");
    report.line(&name, rdma[1] / tcp[1], AtMost(1.0), "x", &what);
}

pub(crate) fn n1(report: &mut Report) {
    line(report, "N1", EVENT, 64, 64, 400_000, 0.8);
    line(report, "N1.one", EVENT, 1, 64, 200_000, 3.0);
    line(report, "N1.one.hybrid", HYBRID, 1, 64, 200_000, 3.0);
    line(report, "N1.4K", EVENT, 64, 4096, 100_000, 2.0);
}

pub(crate) fn n2(report: &mut Report) {
    line(report, "N2.busy", BUSY, 64, 64, 400_000, 2.0);
}

pub(crate) fn n3(report: &mut Report) {
    let calls = scenario::system_calls("rdma-echo-pair", 64_000, 640_000);
    let what = "system calls of a thousand such echoes on each side, event-driven, \
                while strace counts";
    let calls = calls.map(|calls| 500.0 * calls);
    report.counted("N3", calls, AtMost(100.0), what);
}
