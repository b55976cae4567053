//! B7, B8: 32 tasks that copy 4 KiB through the engine, against the ways that a Tokio user would
//! otherwise choose.

use std::sync::OnceLock;
use std::time::Instant;

use hdrhistogram::Histogram;
use tokio::sync::{mpsc, oneshot};
use tokio_doca::Mode;
use tokio_doca::soft::Soft;

use super::bench::Turns;
use super::bench::load::{Baseline, Failed, Kind};
use super::measure::{Samples, interleave, per_op};
use super::raw::Descriptor;
use super::report::Goal::AtLeast;
use super::report::Report;
use super::rig::{Rig, bare, on_task};
use super::sys;

const LANES: usize = 32;
const LEN: usize = 4096;

/// The measured ways to copy, in nanoseconds per copy.
struct Ways {
    busy: Samples,
    event: Samples,
    spawn_blocking: Samples,
    mpsc: Samples,
    /// The baseline with io_uring, or why it was not measured.
    uring: Result<Samples, String>,
    note: String,
}

/// Copies through the crate. The inline limit is 0, so that the engine does every job.
struct Engine {
    rig: Rig,
    turns: Turns,
}

impl Engine {
    fn start(mode: Mode) -> Engine {
        // The engine inherits the CPU affinity of this thread. Two spinning threads on one CPU
        // would only measure the scheduler.
        sys::pin(Some(1));
        let soft = Soft::builder().inline_limit(0).build();
        let rig = Rig::soft(&soft, mode, LEN, 2);
        sys::pin(Some(0));
        let turns = Turns::start(&rig.device, mode, (Kind::Dma, None), (LEN, LANES));
        sys::pin(None);
        Engine {
            rig,
            turns: turns.expect("copies"),
        }
    }

    fn run(&mut self) -> f64 {
        let ns = self.turns.round();
        let done = self.rig.device.jobs();
        assert_eq!(
            done,
            Some(self.turns.operations),
            "every job was the engine's"
        );
        ns
    }
}

/// Starts a baseline of the tool, which uses no WorkQ.
fn other(baseline: Baseline) -> Result<Turns, String> {
    let rig = Rig::soft(&Soft::builder().build(), Mode::EventDriven, LEN, 2);
    let what = (Kind::Dma, Some(baseline));
    let turns = Turns::start(&rig.device, Mode::EventDriven, what, (LEN, LANES));
    turns.map_err(|refused| match refused {
        Failed::Device(error) => error.to_string(),
        Failed::System(error) => error.to_string(),
        Failed::Said(why) => why,
    })
}

/// Measures a thread that copies, and a channel to it, from 32 tasks. Each task copies the same
/// bytes again and again.
fn mpsc(each: u64) -> f64 {
    let (jobs, mut inbox) = mpsc::unbounded_channel::<(Descriptor, oneshot::Sender<()>)>();
    let worker = std::thread::spawn(move || {
        while let Some((job, done)) = inbox.blocking_recv() {
            job.copy();
            let _ = done.send(());
        }
    });
    let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, LEN, 2 * LANES);
    let pairs: Vec<_> = (0..LANES).map(|_| rig.pair(LEN)).collect();
    let lanes: Vec<Descriptor> = pairs.iter().map(|(src, dst)| bare(src, dst)).collect();
    let ns = on_task(async move {
        let start = Instant::now();
        let task = |job| {
            let jobs = jobs.clone();
            tokio::spawn(async move {
                // Time each operation, as the tool does.
                let mut latency = Histogram::<u64>::new(3).expect("three digits are right");
                let mut begun = Instant::now();
                for _ in 0..each {
                    let (done, is_done) = oneshot::channel();
                    let _ = jobs.send((job, done));
                    is_done.await.expect("the worker answers");
                    let now = Instant::now();
                    latency.saturating_record((now - begun).as_nanos() as u64);
                    begun = now;
                }
            })
        };
        let tasks: Vec<_> = lanes.into_iter().map(task).collect();
        for task in tasks {
            task.await.expect("a task that copies");
        }
        per_op(start, each * LANES as u64)
    });
    worker.join().expect("the worker ends with its channel");
    ns
}

/// Measures all ways once, for both bars.
fn ways() -> &'static Ways {
    static WAYS: OnceLock<Ways> = OnceLock::new();
    WAYS.get_or_init(|| {
        let note = sys::both_cpus().err().unwrap_or_default();
        let mut busy = Engine::start(Mode::BusyPoll);
        let mut event = Engine::start(Mode::EventDriven);
        let mut blocking = other(Baseline::SpawnBlocking).expect("threads");
        let mut ring = other(Baseline::IoUring);
        let [busy, event, spawn_blocking, mpsc, uring] = interleave(
            40,
            [
                &mut || busy.run(),
                &mut || event.run(),
                &mut || blocking.round(),
                &mut || mpsc(100),
                &mut || ring.as_mut().map_or(f64::NAN, Turns::round),
            ],
        );
        Ways {
            busy,
            event,
            spawn_blocking,
            mpsc,
            uring: ring.map(|_| uring),
            note,
        }
    })
}

fn line(report: &mut Report, name: &str, ours: &Samples, base: &Samples, bar: f64, what: &str) {
    // Medians across threads vary. The minimum is what each way can do.
    let (ours, base) = (ours.min(), base.min());
    let what = format!(
        "{what}, 32 tasks of 4 KiB ({ours:.0} ns against {base:.0}){}",
        ways().note
    );
    report.line(name, base / ours, AtLeast(bar), "x", &what);
}

/// Compares the engine with `spawn_blocking` at its defaults.
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

/// Compares with io_uring on `AsyncFd`, and with a channel to a thread.
pub(crate) fn b8(report: &mut Report) {
    let ways = ways();
    match &ways.uring {
        Ok(base) => {
            let what = "event engine's rate over io_uring + AsyncFd's";
            line(report, "B8.uring.event", &ways.event, base, 3.0, what);
            let what = "busy-poll engine's rate over io_uring + AsyncFd's";
            line(report, "B8.uring.busy", &ways.busy, base, 10.0, what);
        }
        Err(why) => report.skip("B8.uring", why),
    }
    let what = "event engine's rate over mpsc + oneshot's";
    line(report, "B8.mpsc.event", &ways.event, &ways.mpsc, 2.0, what);
    let what = "busy-poll engine's rate over mpsc + oneshot's";
    line(report, "B8.mpsc.busy", &ways.busy, &ways.mpsc, 8.0, what);
}
