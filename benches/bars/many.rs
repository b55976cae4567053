//! N2: many connections whose tasks wait in Hybrid mode, against event mode.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
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
const CONNECTIONS: usize = 64;
/// Echoes of one round, by all connections.
const ECHOES: usize = 64_000;

/// One end of each connection, with a Buf to send and one to receive into.
struct End(Vec<(Rdma, Buf, Buf)>);

impl End {
    fn open(mode: Mode) -> End {
        let device = Soft::builder().build().open("pf0").expect("a device");
        let mmap = Mmap::builder()
            .device(&device)
            .access(Access::LOCAL_READ_WRITE);
        let mmap = mmap.alloc(2 * SMALL * CONNECTIONS).expect("memory");
        let pool = BufPool::builder(&mmap).element_size(SMALL).build();
        let pool = pool.expect("a pool");
        let workq = WorkQ::builder().mode(mode).build().expect("a WorkQ");
        let connection = || {
            let alloc = || pool.try_alloc().expect("the pool has one");
            let (src, dst) = (alloc(), alloc());
            src.set_data(0, SMALL).expect("all of it");
            let rdma = Rdma::builder(&device).attach(&workq).expect("a context");
            (rdma, src, dst)
        };
        End((0..CONNECTIONS).map(|_| connection()).collect())
    }

    /// Runs a task for each connection, of a runtime on this thread.
    fn run(self, begins: bool, each: usize) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime");
        let echo = |end| runtime.spawn(echo(end, begins, each));
        let tasks = self.0.into_iter().map(echo);
        let tasks: Vec<_> = tasks.collect();
        runtime.block_on(async {
            for task in tasks {
                task.await.expect("the task did not panic");
            }
        });
    }
}

/// Sends a message and gets one, so many times; which comes first depends on who begins.
async fn echo((rdma, src, dst): (Rdma, Buf, Buf), begins: bool, each: usize) -> Rdma {
    for _ in 0..each {
        let came = rdma.recv(&dst).start().expect("a receive");
        if begins {
            rdma.send(&src).await.expect("a send");
        }
        came.await.expect("a message");
        if !begins {
            rdma.send(&src).await.expect("a send");
        }
        dst.reset_data_len().expect("nobody has it");
    }
    // Its end would be the peer's too.
    rdma
}

/// The time that this process has had of all CPUs, in nanoseconds.
fn cpu_time() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("it is ours");
    let of =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e9 + time.tv_usec() as f64 * 1e3;
    of(usage.user_time()) + of(usage.system_time())
}

/// Nanoseconds of an echo, and of the CPUs for it.
fn echoes(mode: Mode) -> [f64; 2] {
    let (one, other) = (End::open(mode), End::open(mode));
    for ((one, ..), (other, ..)) in one.0.iter().zip(&other.0) {
        let [one_blob, other_blob] = [one, other].map(|end| end.export().expect("a blob"));
        one.connect(&other_blob).wait().expect("a connection");
        other.connect(&one_blob).wait().expect("a connection");
    }
    let each = ECHOES / CONNECTIONS;
    let (start, cpu) = (Instant::now(), cpu_time());
    std::thread::scope(|scope| {
        scope.spawn(|| one.run(true, each));
        scope.spawn(|| other.run(false, each));
    });
    let count = (each * CONNECTIONS) as f64;
    [
        start.elapsed().as_nanos() as f64 / count,
        (cpu_time() - cpu) / count,
    ]
}

pub(crate) fn n2(report: &mut Report) {
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    let modes = [Mode::EventDriven, HYBRID];
    let mut samples = [const { [const { Vec::new() }; 2] }; 2];
    for _ in 0..5 {
        for (mode, samples) in modes.into_iter().zip(&mut samples) {
            for (sample, samples) in echoes(mode).into_iter().zip(samples) {
                samples.push(sample);
            }
        }
    }
    let [event, hybrid] = samples.map(|of| of.map(|of| Samples::of(of).median()));
    let what = format!(
        "echoes of {CONNECTIONS} connections a second, Hybrid over event mode \
         ({:.0} against {:.0} thousand){busy_cpus}",
        1e6 / hybrid[0],
        1e6 / event[0]
    );
    report.line("N2", event[0] / hybrid[0], AtLeast(0.9), "x", &what);
    let what = format!(
        "CPU time of such an echo ({:.2} us against {:.2}){busy_cpus}",
        hybrid[1] / 1e3,
        event[1] / 1e3
    );
    report.line("N2.cpu", hybrid[1] / event[1], AtMost(1.1), "x", &what);
}
