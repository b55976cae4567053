//! B7, B8: 32 tasks of 4 KiB through the engine, against what a Tokio user would reach for instead.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Mode};

use super::measure::{Samples, interleave, per_op};
use super::raw::Descriptor;
use super::report::Goal::AtLeast;
use super::report::Report;
use super::rig::{Rig, bare, on_task};
use super::{sys, uring};

pub(crate) const LANES: usize = 32;
pub(crate) const LEN: usize = 4096;

/// The ways, in nanoseconds per copy.
struct Ways {
    busy: Samples,
    event: Samples,
    spawn_blocking: Samples,
    mpsc: Samples,
    uring: Option<Samples>,
    note: String,
}

/// Through the crate: inline limit 0, so that every job is the engine's.
struct Engine {
    rig: Rig,
    pairs: Vec<(Buf, Buf)>,
    jobs: u64,
}

impl Engine {
    fn start(mode: Mode) -> Engine {
        // The engine inherits where it may run, and two spinning threads on one CPU only measure
        // the scheduler.
        sys::pin(Some(1));
        let soft = Soft::builder().inline_limit(0).build();
        let rig = Rig::soft(&soft, mode, LEN, 2 * LANES);
        sys::pin(None);
        let pairs = (0..LANES).map(|_| rig.pair(LEN)).collect();
        let jobs = 0;
        Engine { rig, pairs, jobs }
    }

    fn run(&mut self, each: u64) -> f64 {
        sys::pin(Some(0));
        let (dma, pairs) = (self.rig.dma.clone(), self.pairs.clone());
        let ns = on_task(async move {
            let start = Instant::now();
            let task = |(src, dst): (Buf, Buf)| {
                let dma = dma.clone();
                tokio::spawn(async move {
                    for _ in 0..each {
                        dma.copy(&src, &dst).await.expect("a copy");
                        dst.reset_data_len().expect("nobody has it");
                    }
                })
            };
            let tasks: Vec<_> = pairs.into_iter().map(task).collect();
            for task in tasks {
                task.await.expect("a task that copies");
            }
            per_op(start, each * LANES as u64)
        });
        self.jobs += each * LANES as u64;
        let done = self.rig.device.jobs();
        assert_eq!(done, Some(self.jobs), "every job was the engine's");
        sys::pin(None);
        ns
    }
}

/// Some other way: 32 tasks, each with the same bytes as above to copy.
fn other<F: Future<Output = ()> + Send + 'static>(
    each: u64,
    op: impl Fn(Descriptor) -> F + Clone + Send + Sync + 'static,
) -> f64 {
    let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, LEN, 2 * LANES);
    let pairs: Vec<_> = (0..LANES).map(|_| rig.pair(LEN)).collect();
    let jobs: Vec<Descriptor> = pairs.iter().map(|(src, dst)| bare(src, dst)).collect();
    on_task(async move {
        // The first use of a thread is not what is measured.
        op(jobs[0]).await;
        let start = Instant::now();
        let task = |job| {
            let op = op.clone();
            tokio::spawn(repeat(each, job, op))
        };
        let tasks: Vec<_> = jobs.into_iter().map(task).collect();
        for task in tasks {
            task.await.expect("a task that copies");
        }
        per_op(start, each * LANES as u64)
    })
}

async fn repeat<F: Future<Output = ()>>(each: u64, job: Descriptor, op: impl Fn(Descriptor) -> F) {
    for _ in 0..each {
        op(job).await;
    }
}

fn spawn_blocking(each: u64) -> f64 {
    other(each, |job| async move {
        let copy = tokio::task::spawn_blocking(move || job.copy());
        copy.await.expect("a copy");
    })
}

fn mpsc(each: u64) -> f64 {
    let (jobs, mut inbox) = mpsc::unbounded_channel::<(Descriptor, oneshot::Sender<()>)>();
    let worker = std::thread::spawn(move || {
        while let Some((job, done)) = inbox.blocking_recv() {
            job.copy();
            let _ = done.send(());
        }
    });
    let ns = other(each, move |job| {
        let jobs = jobs.clone();
        async move {
            let (done, is_done) = oneshot::channel();
            let _ = jobs.send((job, done));
            is_done.await.expect("the worker answers");
        }
    });
    worker.join().expect("the worker ends with its channel");
    ns
}

/// Measured once, for both bars.
fn ways() -> &'static Ways {
    static WAYS: OnceLock<Ways> = OnceLock::new();
    WAYS.get_or_init(|| {
        let note = sys::both_cpus().err().unwrap_or_default();
        let mut ring_works = true;
        let mut busy = Engine::start(Mode::BusyPoll);
        let mut event = Engine::start(Mode::EventDriven);
        let [busy, event, spawn_blocking, mpsc, uring] = interleave(
            40,
            [
                &mut || busy.run(300),
                &mut || event.run(150),
                &mut || spawn_blocking(20),
                &mut || mpsc(100),
                &mut || {
                    let ns = uring::batches(100);
                    ring_works &= ns.is_some();
                    ns.unwrap_or(f64::NAN)
                },
            ],
        );
        Ways {
            busy,
            event,
            spawn_blocking,
            mpsc,
            uring: ring_works.then_some(uring),
            note,
        }
    })
}

fn line(report: &mut Report, name: &str, ours: &Samples, base: &Samples, bar: f64, what: &str) {
    // Cross-thread medians move; the minimum of each is what it can do.
    let (ours, base) = (ours.min(), base.min());
    let what = format!(
        "{what}, 32 tasks of 4 KiB ({ours:.0} ns against {base:.0}){}",
        ways().note
    );
    report.line(name, base / ours, AtLeast(bar), "x", &what);
}

/// Against `spawn_blocking` at its defaults.
pub(crate) fn b7(report: &mut Report) {
    let ways = ways();
    let base = &ways.spawn_blocking;
    for (name, ours, bar, mode) in [
        ("B7.busy", &ways.busy, 150.0, "busy-poll"),
        ("B7.event", &ways.event, 40.0, "event"),
    ] {
        let what = format!("{mode} engine's rate over spawn_blocking's");
        line(report, name, ours, base, bar, &what);
    }
}

/// Against an io_uring on AsyncFd, and a channel to a thread.
pub(crate) fn b8(report: &mut Report) {
    let ways = ways();
    match &ways.uring {
        Some(base) => {
            let what = "event engine's rate over io_uring + AsyncFd's";
            line(report, "B8.uring.event", &ways.event, base, 3.0, what);
            let what = "busy-poll engine's rate over io_uring + AsyncFd's";
            line(report, "B8.uring.busy", &ways.busy, base, 10.0, what);
        }
        None => report.skip("B8.uring", "no io_uring here"),
    }
    let what = "event engine's rate over mpsc + oneshot's";
    line(report, "B8.mpsc.event", &ways.event, &ways.mpsc, 2.0, what);
    let what = "busy-poll engine's rate over mpsc + oneshot's";
    line(report, "B8.mpsc.busy", &ways.busy, &ways.mpsc, 8.0, what);
}
