//! N2: connections whose tasks wait in Hybrid mode, compared with event mode.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, BufPool, Mmap, Mode, Rdma, WorkQ, mem::Access};

use super::measure::Samples;
use super::report::Goal::{AtLeast, AtMost};
use super::report::Report;
use super::sys;

const HYBRID: Mode = Mode::Hybrid {
    spin: Duration::from_micros(30),
};
const SMALL: usize = 64;
const ROUNDS: usize = 5;

/// The number of connections, and of messages in flight on each.
#[derive(Clone, Copy)]
struct Load {
    connections: usize,
    deep: usize,
}

impl Load {
    /// Returns the echoes of a connection in a round.
    fn each(self) -> usize {
        // With one message in flight each echo may wait for a wake-up: do fewer.
        let most = if self.deep == 1 { 4_000 } else { 64_000 };
        most.min(64_000 / self.connections)
    }
}

/// One end of each connection, with a Buf to send and Bufs to receive into.
struct End(Vec<(Rdma, Buf, Vec<Buf>)>);

impl End {
    fn open(mode: Mode, load: Load) -> End {
        let device = Soft::builder().build().open("pf0").expect("a device");
        let mmap = Mmap::builder()
            .device(&device)
            .access(Access::LOCAL_READ_WRITE);
        let mmap = mmap.alloc((load.deep + 1) * SMALL * load.connections);
        let mmap = mmap.expect("memory");
        let pool = BufPool::builder(&mmap).element_size(SMALL).build();
        let pool = pool.expect("a pool");
        let workq = WorkQ::builder().mode(mode).build().expect("a WorkQ");
        let alloc = || pool.try_alloc().expect("the pool has one");
        let connection = |_| {
            let src = alloc();
            src.set_data(0, SMALL).expect("all of it");
            let rdma = Rdma::builder(&device).attach(&workq).expect("a context");
            (rdma, src, (0..load.deep).map(|_| alloc()).collect())
        };
        End((0..load.connections).map(connection).collect())
    }

    /// Runs a task for each connection on a runtime of this thread. Returns the contexts, since
    /// dropping one ends the connection for its peer.
    fn run(self, begins: bool, each: usize) -> Vec<Rdma> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime");
        let echo = |end| runtime.spawn(echo(end, begins, each));
        let tasks: Vec<_> = self.0.into_iter().map(echo).collect();
        let tasks = tasks.into_iter().map(|task| runtime.block_on(task));
        tasks
            .map(|end| end.expect("the task did not panic"))
            .collect()
    }
}

/// Answers each message with a message. If `begins` is true, sends the first ones.
async fn echo((rdma, src, dsts): (Rdma, Buf, Vec<Buf>), begins: bool, each: usize) -> Rdma {
    let post = |at: usize| {
        rdma.recv(&dsts[at % dsts.len()])
            .start()
            .expect("a receive")
    };
    let mut posted = VecDeque::with_capacity(dsts.len());
    for at in 0..dsts.len() {
        posted.push_back(post(at));
    }
    for _ in 0..if begins { dsts.len() } else { 0 } {
        rdma.send(&src).await.expect("a send");
    }
    for at in 0..each {
        let came = posted.pop_front().expect("one is posted");
        came.await.expect("a message");
        dsts[at % dsts.len()]
            .reset_data_len()
            .expect("no job has it");
        let more = at + dsts.len() < each;
        if more {
            posted.push_back(post(at));
        }
        if more || !begins {
            rdma.send(&src).await.expect("a send");
        }
    }
    drop(posted);
    rdma
}

/// Returns the CPU time of this process, in nanoseconds.
fn cpu_time() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("it is ours");
    let of = |time: TimeVal| time.tv_sec() as f64 * 1e9 + time.tv_usec() as f64 * 1e3;
    of(usage.user_time()) + of(usage.system_time())
}

/// Returns the nanoseconds and the CPU nanoseconds of an echo. Each side's thread is on its CPU of
/// `cpus`.
fn echoes(mode: Mode, load: Load, cpus: [usize; 2]) -> [f64; 2] {
    let (one, other) = (End::open(mode, load), End::open(mode, load));
    for ((one, ..), (other, ..)) in one.0.iter().zip(&other.0) {
        let [one_blob, other_blob] = [one, other].map(|end| end.export().expect("a blob"));
        one.connect(&other_blob).wait().expect("a connection");
        other.connect(&one_blob).wait().expect("a connection");
    }
    let each = load.each();
    let (start, cpu) = (Instant::now(), cpu_time());
    let _ended = std::thread::scope(|scope| {
        let run = |end: End, begins, cpu| {
            scope.spawn(move || {
                sys::pin(Some(cpu));
                end.run(begins, each)
            })
        };
        let threads = [run(one, true, cpus[0]), run(other, false, cpus[1])];
        threads.map(|thread| thread.join().expect("the thread did not panic"))
    });
    let count = (each * load.connections) as f64;
    let took = start.elapsed().as_nanos() as f64;
    [took / count, (cpu_time() - cpu) / count]
}

/// Returns two ratios of Hybrid to event mode: echoes per second, and CPU time of an echo.
fn compare(load: Load, cpus: [usize; 2]) -> [f64; 2] {
    let modes = [Mode::EventDriven, HYBRID];
    let mut samples = [const { [const { Vec::new() }; 2] }; 2];
    for _ in 0..ROUNDS {
        for (mode, samples) in modes.into_iter().zip(&mut samples) {
            for (sample, samples) in echoes(mode, load, cpus).into_iter().zip(samples) {
                samples.push(sample);
            }
        }
    }
    let [event, hybrid] = samples.map(|of| of.map(|of| Samples::of(of).median()));
    [event[0] / hybrid[0], hybrid[1] / event[1]]
}

/// N2: the worst ratios of all loads, on two CPUs and on one CPU that both sides share.
pub(crate) fn n2(report: &mut Report) {
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    for (name, cpus, on) in [("N2", [0, 1], "two CPUs"), ("N2.shared", [0, 0], "one CPU")] {
        let (mut worst, mut all) = ([f64::INFINITY, 0.0], [String::new(), String::new()]);
        for deep in [1, 32] {
            for connections in [1, 4, 16, 64] {
                let [rate, cpu] = compare(Load { connections, deep }, cpus);
                worst = [worst[0].min(rate), worst[1].max(cpu)];
                for (all, ratio) in all.iter_mut().zip([rate, cpu]) {
                    *all += &format!(" {connections}x{deep} {ratio:.2}");
                }
            }
        }
        let [rates, cpus] = all;
        let what = format!(
            "echoes a second, Hybrid over event mode, on {on}, by connections and messages under \
             way of each:{rates}{busy_cpus}"
        );
        report.line(name, worst[0], AtLeast(0.9), "x", &what);
        let what = format!("CPU time of such an echo:{cpus}{busy_cpus}");
        report.line(&format!("{name}.cpu"), worst[1], AtMost(1.1), "x", &what);
    }
}
