//! B15, B16: Hybrid mode, and the cost of statistics.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_doca::Mode;
use tokio_doca::soft::Soft;

use super::counts::settled_wakeups;
use super::devices::Late;
use super::measure::Samples;
use super::report::Goal::{AtMost, Exactly};
use super::report::Report;
use super::rig::{Rig, on_task};
use super::{scenario, sys};

/// The polling time of Hybrid mode: longer than a wake-up takes.
const SPIN: Duration = Duration::from_micros(30);
const HYBRID: Mode = Mode::Hybrid { spin: SPIN };

/// Returns the latencies, from submission to result, of jobs that take 5 us on the other CPU,
/// awaited in a task. In nanoseconds.
fn latencies(mode: Mode, jobs: usize) -> Vec<f64> {
    // Use one device at a time: each spins on the other CPU.
    let late = Arc::new(Late::start(Duration::from_micros(5), 1));
    let rig = Rig::on(late.device(), mode, 8, 64, 2);
    let (src, dst) = rig.pair(64);
    let dma = rig.dma.clone();
    on_task(async move {
        let mut samples = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            let start = Instant::now();
            dma.copy(&src, &dst).await.expect("a job");
            samples.push(start.elapsed().as_nanos() as f64);
        }
        samples
    })
}

/// Returns the wake-ups in 5 s of a program in which a task waits for a job that is held up all
/// that time.
fn waiting_wakeups(mode: Mode) -> f64 {
    let soft = Soft::builder().defer(true).build();
    let rig = Rig::soft(&soft, mode, 64, 2);
    let (src, dst) = rig.pair(64);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let hold = soft.faults().hold();
    let dma = rig.dma.clone();
    let task = runtime.spawn(async move { pin!(dma.copy(&src, &dst)).await });
    while rig.workq.in_flight() == 0 {
        std::thread::yield_now();
    }
    let woken = settled_wakeups();
    drop(hold);
    runtime
        .block_on(task)
        .expect("the task did not panic")
        .expect("a copy");
    woken
}

pub(crate) fn b15(report: &mut Report) {
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    let (mut busy, mut hybrid) = (Vec::new(), Vec::new());
    sys::pin(Some(0));
    for _ in 0..20 {
        busy.extend(latencies(Mode::BusyPoll, 200));
        hybrid.extend(latencies(HYBRID, 200));
    }
    sys::pin(None);
    let (busy, hybrid) = (Samples::of(busy).median(), Samples::of(hybrid).median());
    let what = format!(
        "median latency of jobs of 5 us, Hybrid over busy-poll ({:.2} us against {:.2}){busy_cpus}",
        hybrid / 1e3,
        busy / 1e3
    );
    report.line("B15", hybrid / busy, AtMost(1.2), "x", &what);
    let what = "wake-ups in 5 s, Hybrid, while one waits for a job that is held up";
    report.line("B15.idle", waiting_wakeups(HYBRID), Exactly(0.0), "", what);
}

/// B16: the cost of statistics, which are always on, if they are read once in 4,096 jobs.
pub(crate) fn b16(report: &mut Report) {
    let what =
        "instructions of a 64-byte inline copy for statistics that are read once in 4,096 jobs";
    let both = scenario::instructions("busy-inline")
        .and_then(|bare| Ok(scenario::instructions("busy-stats")? - bare));
    report.counted("B16", both, AtMost(3.0), what);
}
