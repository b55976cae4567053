//! N6, R5, R9 and R11: streams of bytes over RDMA against TCP over loopback and Unix sockets, by
//! the same code. Each side is a thread with a runtime of its own, on its CPU.

use std::fs;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use futures::{FutureExt, SinkExt, StreamExt, stream};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::Mode;
use tokio_doca::soft::Soft;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::bench::Turns;
use super::bench::load::{Baseline, Kind};
use super::measure::{Samples, interleave};
use super::pipe::{BUSY, Calling, EVENT, Listening, Over, Pipe, runtime};
use super::report::Goal::{AtLeast, AtMost};
use super::report::Report;
use super::sys;

const ROUNDS: usize = 5;
/// The bytes of a write of the bulk transfer.
const WRITE: usize = 64 << 10;
/// The bytes of an echo.
const SMALL: usize = 64;

/// Returns the CPU time of this process, in nanoseconds.
fn cpu_time() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("it is ours");
    let of = |time: TimeVal| time.tv_sec() as f64 * 1e9 + time.tv_usec() as f64 * 1e3;
    of(usage.user_time()) + of(usage.system_time())
}

/// Connects this number of streams, and has each side use them in tasks of its own. Returns the
/// nanoseconds and the CPU nanoseconds.
fn run<S, C>(
    over: Over,
    connections: usize,
    serve: impl Fn(Pipe) -> S + Send,
    call: impl Fn(Pipe) -> C,
) -> [f64; 2]
where
    S: Future<Output = ()> + Send + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let (meets, met) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sys::pin(Some(1));
            runtime().block_on(async {
                let listening = Listening::new(over, connections).await;
                meets
                    .send(listening.addr())
                    .expect("the other side is there");
                let mut tasks = Vec::new();
                for _ in 0..connections {
                    tasks.push(tokio::spawn(serve(listening.accept().await)));
                }
                for ended in join_all(tasks).await {
                    ended.expect("the task did not panic");
                }
            });
        });
        sys::pin(Some(0));
        let cost = runtime().block_on(async {
            let addr = met.recv().expect("the other side listens");
            let calling = Calling::new(over, connections, &addr);
            let mut pipes = Vec::new();
            for _ in 0..connections {
                pipes.push(calling.connect().await);
            }
            let (start, cpu) = (Instant::now(), cpu_time());
            let tasks: Vec<_> = pipes
                .into_iter()
                .map(|pipe| tokio::spawn(call(pipe)))
                .collect();
            for ended in join_all(tasks).await {
                ended.expect("the task did not panic");
            }
            [start.elapsed().as_nanos() as f64, cpu_time() - cpu]
        });
        sys::pin(None);
        cost
    })
}

/// Measures the cases in turn, and returns the medians of each, divided by `count`.
fn compare<const CASES: usize>(
    cases: [Over; CASES],
    count: usize,
    measure: impl Fn(Over) -> [f64; 2],
) -> [[f64; 2]; CASES] {
    let mut samples = [const { [const { Vec::new() }; 2] }; CASES];
    for _ in 0..ROUNDS {
        for (over, samples) in cases.into_iter().zip(&mut samples) {
            for (sample, samples) in measure(over).into_iter().zip(samples) {
                samples.push(sample / count as f64);
            }
        }
    }
    samples.map(|of| of.map(|of| Samples::of(of).median()))
}

/// Sends `bytes` in writes of `write` bytes, and waits until the other side has read them all.
fn bulk(over: Over, write: usize, bytes: usize) -> [f64; 2] {
    let serve = move |mut pipe: Pipe| async move {
        let mut room = vec![0; WRITE];
        let mut left = bytes;
        while left > 0 {
            left -= pipe.read(&mut room).await.expect("a read");
        }
        pipe.write_u8(1).await.expect("a write");
        pipe.flush().await.expect("a write");
        // Wait until the other side has gone.
        _ = pipe.read(&mut room).await;
    };
    let call = move |mut pipe: Pipe| async move {
        let data = vec![7; write];
        for _ in 0..bytes / write {
            pipe.write_all(&data).await.expect("a write");
        }
        pipe.flush().await.expect("a write");
        pipe.read_u8().await.expect("an answer");
    };
    run(over, 1, serve, call)
}

pub(crate) fn r5(report: &mut Report) {
    const BYTES: usize = 256 << 20;
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    let of = |write: usize| {
        let measure = |over| bulk(over, write, BYTES);
        compare([Over::Tcp, Over::Unix, EVENT, BUSY], BYTES, measure)
    };
    let what = |writes: &str, over: &str, [rdma, tcp, unix]: [[f64; 2]; 3]| {
        format!(
            "bytes a second in writes of {writes}, over {over}, both through Tokio ({:.2} GB/s; \
             TCP {:.2}, Unix {:.2}){busy_cpus}",
            1.0 / rdma[0],
            1.0 / tcp[0],
            1.0 / unix[0]
        )
    };
    let [tcp, unix, rdma, _] = of(1 << 20);
    let texts = ["TCP loopback", "a Unix stream"];
    let [over_tcp, over_unix] = texts.map(|over| what("1 MiB", over, [rdma, tcp, unix]));
    report.line("R5.1M", tcp[0] / rdma[0], AtLeast(1.5), "x", &over_tcp);
    report.line(
        "R5.1M.unix",
        unix[0] / rdma[0],
        AtLeast(1.0),
        "x",
        &over_unix,
    );
    let [tcp, unix, rdma, busy] = of(WRITE);
    let [over_tcp, over_unix] = texts.map(|over| what("64 KiB", over, [rdma, tcp, unix]));
    report.line("R5", tcp[0] / rdma[0], AtLeast(1.5), "x", &over_tcp);
    report.line("R5.unix", unix[0] / rdma[0], AtLeast(1.0), "x", &over_unix);
    let polls = what(
        "64 KiB to a side that polls",
        "TCP loopback",
        [busy, tcp, unix],
    );
    report.line("R5.busy", tcp[0] / busy[0], AtLeast(2.0), "x", &polls);
    let what = format!("CPU time of such a byte, over a Unix stream's, of both sides{busy_cpus}");
    report.line("R5.cpu", rdma[1] / unix[1], AtMost(0.7), "x", &what);
}

/// Two processes that spin, one on each CPU, for at most a minute.
struct Load([Child; 2]);

impl Load {
    fn new() -> Load {
        let spinning = [0, 1].map(|cpu| {
            sys::pin(Some(cpu));
            let mut spin = Command::new("timeout");
            spin.args(["60", "sh", "-c", "while :; do :; done"]);
            spin.spawn().expect("coreutils are there")
        });
        sys::pin(None);
        Load(spinning)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &self.0 {
            let pid = Pid::from_raw(child.id() as i32);
            _ = kill(pid, Signal::SIGTERM);
        }
        for child in &mut self.0 {
            _ = child.wait();
        }
    }
}

/// N6: small writes one way, each of which is awaited.
pub(crate) fn n6(report: &mut Report) {
    const WRITES: usize = 1 << 19;
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    let measure = |over| bulk(over, SMALL, SMALL * WRITES);
    let [tcp, unix, rdma] = compare([Over::Tcp, Over::Unix, EVENT], WRITES, measure);
    let what = format!(
        "time of an awaited write of 64 B, event, over a Unix stream's ({:.0} ns against {:.0}; \
         TCP {:.0}){busy_cpus}",
        rdma[0], unix[0], tcp[0]
    );
    report.line("N6", rdma[0] / unix[0], AtMost(0.5), "x", &what);
    let load = Load::new();
    let [tcp, rdma] = compare([Over::Tcp, EVENT], WRITES, measure);
    drop(load);
    let what = format!(
        "CPU time of one beside a load on both CPUs, over TCP's, of both sides ({:.0} ns against \
         {:.0})",
        rdma[1], tcp[1]
    );
    report.line("N6.cpu", rdma[1] / tcp[1], AtMost(1.5), "x", &what);
}

type Frames = Framed<Pipe, LengthDelimitedCodec>;

fn frames(pipe: Pipe) -> Frames {
    let burst = 32 * (SMALL + 4);
    let mut frames = Framed::with_capacity(pipe, LengthDelimitedCodec::new(), burst);
    frames.set_backpressure_boundary(2 * burst);
    frames
}

/// Measures echoes, with `deep` messages in flight per connection, written in batches.
fn echo(over: Over, connections: usize, deep: usize, echoes: usize) -> [f64; 2] {
    let each = echoes / connections;
    let serve = |pipe: Pipe| async move {
        let mut frames = frames(pipe);
        while let Some(first) = frames.next().await {
            let mut next = Some(first);
            while let Some(Ok(frame)) = next {
                frames.feed(frame.freeze()).await.expect("a write");
                next = frames.next().now_or_never().flatten();
            }
            // The other side ends without a shutdown.
            if SinkExt::<Bytes>::flush(&mut frames).await.is_err() {
                return;
            }
        }
    };
    let call = move |pipe: Pipe| async move {
        let mut frames = frames(pipe);
        let message = Bytes::from(vec![7; SMALL]);
        let (mut sent, mut came) = (0, 0);
        while came < each {
            while sent < each.min(came + deep) {
                frames.feed(message.clone()).await.expect("a write");
                sent += 1;
            }
            SinkExt::<Bytes>::flush(&mut frames).await.expect("a write");
            let mut next = frames.next().await;
            while let Some(frame) = next {
                assert_eq!(frame.expect("a frame").len(), SMALL);
                came += 1;
                next = frames.next().now_or_never().flatten();
            }
        }
    };
    run(over, connections, serve, call)
}

pub(crate) fn r9(report: &mut Report) {
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    for (name, over, connections, deep, echoes, goal) in [
        ("R9", EVENT, 64, 32, 400_000, 1.2),
        ("R9.one", EVENT, 1, 32, 200_000, 2.5),
    ] {
        let costs = compare([Over::Tcp, over], echoes, |over| {
            echo(over, connections, deep, echoes)
        });
        let [tcp, rdma] = costs;
        let what = format!(
            "echoes of {SMALL} B a second over {connections} streams, {deep} on their way each, \
             over TCP ({:.0} against {:.0} thousand){busy_cpus}",
            1e6 / rdma[0],
            1e6 / tcp[0]
        );
        report.line(name, tcp[0] / rdma[0], AtLeast(goal), "x", &what);
        if connections > 1 {
            let what = format!("CPU time of such an echo, of both sides{busy_cpus}");
            report.line(
                &format!("{name}.cpu"),
                rdma[1] / tcp[1],
                AtMost(1.0),
                "x",
                &what,
            );
        }
    }
    let device = Soft::builder().build().open("pf0").expect("a device");
    // A polling side would take a CPU from TCP: give each round streams of its own.
    let round = |baseline| {
        let what = (Kind::Stream, baseline);
        let turns = Turns::start(&device, Mode::BusyPoll, what, (SMALL, 1));
        let mut turns = turns.expect("a stream");
        turns.round(); // warms up
        let ns = turns.round();
        turns.end();
        ns
    };
    let (mut tcp, mut rdma) = (|| round(Some(Baseline::Tcp)), || round(None));
    let [tcp, rdma] = interleave(20, [&mut tcp, &mut rdma]);
    let (tcp, rdma) = (tcp.median(), rdma.median());
    let what = format!(
        "echoes of {SMALL} B a second over a stream, 1 on its way, busy-poll, over TCP ({:.0} \
         against {:.0} thousand){busy_cpus}",
        1e6 / rdma,
        1e6 / tcp
    );
    report.line("R9.busy", tcp / rdma, AtLeast(10.0), "x", &what);
}

/// Returns the number of open descriptors of this process, and its resident memory in KiB.
fn held() -> [f64; 2] {
    let descriptors = fs::read_dir("/proc/self/fd").expect("proc").count();
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let resident = line.and_then(|line| line.split_whitespace().nth(1));
    let resident = resident.and_then(|number| number.parse().ok());
    [descriptors as f64, resident.expect("a number")]
}

/// Makes connections, 64 at a time, uses each for one echo and closes it. Returns the nanoseconds
/// per connection, and the descriptors and KiB held beyond those after the first connections.
fn connections(over: Over, count: usize) -> [f64; 3] {
    const AT_ONCE: usize = 64;
    let (meets, met) = mpsc::channel();
    let (ends, ended) = tokio::sync::oneshot::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            runtime().block_on(async {
                let listening = Listening::new(over, 2 * AT_ONCE).await;
                meets
                    .send(listening.addr())
                    .expect("the other side is there");
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..AT_ONCE + count {
                    let mut pipe = listening.accept().await;
                    tasks.spawn(async move {
                        let mut came = [0; SMALL];
                        pipe.read_exact(&mut came).await.expect("a question");
                        pipe.write_all(&came).await.expect("a write");
                        pipe.shutdown().await.expect("the end");
                        assert_eq!(pipe.read(&mut came).await.expect("the end"), 0);
                    });
                }
                tasks.join_all().await;
                // Keep the listener until then: its resources count.
                ended.await.expect("the other side ends");
            });
        });
        runtime().block_on(async {
            let addr = met.recv().expect("the other side listens");
            let calling = Calling::new(over, 2 * AT_ONCE, &addr);
            let one = async |_| {
                let mut pipe = calling.connect().await;
                pipe.write_all(&[7; SMALL]).await.expect("a write");
                pipe.shutdown().await.expect("the end");
                let mut came = Vec::new();
                pipe.read_to_end(&mut came).await.expect("the answer");
                assert_eq!(came, [7; SMALL]);
            };
            let all = async |count| {
                let each = stream::iter(0..count).map(&one);
                each.buffer_unordered(AT_ONCE).for_each(async |()| ()).await;
            };
            all(AT_ONCE).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (before, start) = (held(), Instant::now());
            all(count).await;
            let took = start.elapsed().as_nanos() as f64 / count as f64;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let after = held();
            ends.send(()).expect("the other side waits");
            [took, after[0] - before[0], after[1] - before[1]]
        })
    })
}

pub(crate) fn r11(report: &mut Report) {
    const COUNT: usize = 2_000;
    let [tcp, rdma] = [Over::Tcp, EVENT].map(|over| connections(over, COUNT));
    let what = format!(
        "rate of connections that are made, used and closed, 64 at a time, in a process, over \
         TCP's ({:.0} against {:.0} a second)",
        1e9 / rdma[0],
        1e9 / tcp[0]
    );
    report.line("R11", tcp[0] / rdma[0], AtLeast(0.5), "x", &what);
    report.line(
        "R11.descriptors",
        rdma[1],
        AtMost(0.0),
        "",
        "that 2,000 of them leave open",
    );
    let what = "KiB of memory that 2,000 of them leave behind";
    report.line("R11.memory", rdma[2], AtMost(1024.0), "KiB", what);
}
