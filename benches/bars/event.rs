//! B4, B5: jobs whose completion comes as an event.

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio_doca::{Buf, Dma, Mode, dma::DmaCopy, error::JobError};

use super::devices::{Forced, Late};
use super::measure::{Samples, interleave, per_op};
use super::raw::Ring;
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::{Rig, bare, on_task};
use super::{scenario, sys};

/// A copy on a `Forced` device. After each poll its event is due.
#[pin_project::pin_project]
struct Due<'a> {
    #[pin]
    op: DmaCopy<&'a Dma, &'a Buf, &'a Buf>,
    forced: &'a Forced,
}

impl Future for Due<'_> {
    type Output = Result<usize, JobError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.op.poll(cx);
        this.forced.show();
        polled
    }
}

/// Runs the bare loop: `jobs` copies of `len` bytes, each awaited by epoll. Returns the nanoseconds
/// per job.
pub(crate) fn raw_event(jobs: u64, len: usize) -> f64 {
    let (device, _forced) = Forced::open();
    let rig = Rig::on(device, Mode::EventDriven, 8, len, 2);
    let (src, dst) = rig.pair(len);
    let job = bare(&src, &dst);
    let mut ring = Ring::new();
    let edge = ring.edge();
    let start = Instant::now();
    for _ in 0..jobs {
        ring.run_event(&edge, black_box(job));
    }
    per_op(start, jobs)
}

/// Runs the copies of [`raw_event`] through the crate, in a task.
pub(crate) fn crate_event(jobs: u64, len: usize) -> f64 {
    let (device, forced) = Forced::open();
    let rig = Rig::on(device, Mode::EventDriven, 8, len * FILLING, 2);
    let (src, dst) = rig.pair(len);
    let dma = rig.dma.clone();
    on_task(async move {
        let start = Instant::now();
        for _ in 0..jobs / FILLING as u64 {
            for _ in 0..FILLING {
                let op = dma.copy(&src, &dst);
                let due = Due {
                    op,
                    forced: &forced,
                };
                due.await.expect("a copy");
            }
            dst.reset_data_len().expect("no job has it");
        }
        per_op(start, jobs)
    })
}

/// The number of jobs that fill a destination.
const FILLING: usize = 4;

/// B4: one thread, where every job waits for its own event.
pub(crate) fn b4(report: &mut Report) {
    const JOBS: u64 = 2_000;
    let [raw, op] = interleave(
        25,
        [&mut || raw_event(JOBS, 4096), &mut || {
            crate_event(JOBS, 4096)
        }],
    );
    let what = format!(
        "time of a 4 KiB job, event forced, in a task, over the raw edge-triggered epoll loop ({:.0} ns against {:.0})",
        op.min(),
        raw.min()
    );
    report.line("B4.time", op.min() / raw.min(), AtMost(1.25), "x", &what);
    let what = "instructions of a 64-byte job, event forced, in a task";
    let each = scenario::instructions("event").map(f64::round);
    report.counted("B4.instr", each, AtMost(2300.0), what);
}
/// Runs the bare loop. Returns for each job the nanoseconds from its end on the other CPU until the
/// waiting thread continues.
fn raw_wakeups(late: &Late, edge: &sys::Edge, jobs: usize) -> Vec<f64> {
    (0..jobs)
        .map(|_| {
            late.run_raw(edge);
            late.since()
        })
        .collect()
}

/// Measures the same wake-ups through the crate.
fn crate_wakeups(late: &Arc<Late>, rig: &Rig, jobs: usize) -> Vec<f64> {
    let (dma, late) = (rig.dma.clone(), Arc::clone(late));
    let (src, dst) = rig.pair(64);
    on_task(async move {
        let mut samples = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            dma.copy(&src, &dst).await.expect("a job");
            samples.push(late.since());
        }
        samples
    })
}

/// B5: wake-ups of a sleeping thread by a job that ends on the other CPU.
pub(crate) fn b5(report: &mut Report) {
    for (name, delay, jobs) in [("B5.10us", 10, 100), ("B5.100us", 100, 60)] {
        let delay = Duration::from_micros(delay);
        let busy = sys::both_cpus().err().unwrap_or_default();
        let (mut raw, mut op) = (Vec::new(), Vec::new());
        for _ in 0..24 {
            // Use one device at a time: each spins on the other CPU.
            sys::pin(Some(0));
            let late = Late::start(delay, 1);
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let edge = late.set_bell(EventFd::from_value_and_flags(0, flags).expect("an eventfd"));
            raw_wakeups(&late, &edge, 5);
            raw.extend(raw_wakeups(&late, &edge, jobs));
            drop(late);
            let late = Arc::new(Late::start(delay, 1));
            let rig = Rig::on(late.device(), Mode::EventDriven, 8, 64, 2);
            op.extend(crate_wakeups(&late, &rig, jobs));
            sys::pin(None);
        }
        let (raw, op) = (Samples::of(raw), Samples::of(op));
        let what = format!(
            "median wake-up of a sleeping waiter, job ends {delay:?} after submission on the other CPU, over raw epoll ({:.1} us against {:.1}){busy}",
            op.median() / 1e3,
            raw.median() / 1e3
        );
        report.line(name, op.median() / raw.median(), AtMost(1.1), "x", &what);
    }
}
