//! B10: large copies by an engine, which do not fit into the caches, over the C library's memcpy.
//! B17: the CPU time that a task spends on a copy by an engine.

use std::hint::black_box;
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, oneshot};
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Mode};

use super::measure::{interleave, per_op};
use super::raw::Descriptor;
use super::report::Goal::{AtLeast, AtMost};
use super::report::Report;
use super::rig::{Rig, bare, on_task};
use super::sys;

/// Copies of one size by the engine of a device, in event mode.
struct Engine {
    rig: Rig,
    pair: (Buf, Buf),
    len: usize,
}

impl Engine {
    /// Opens a device without inline jobs, so that the engine does every copy.
    fn start(len: usize) -> Engine {
        let soft = Soft::builder().inline_limit(0).build();
        let rig = Rig::soft(&soft, Mode::EventDriven, len, 2);
        let pair = rig.pair(len);
        Engine { rig, pair, len }
    }

    /// Returns the nanoseconds of one copy.
    fn run(&self) -> f64 {
        let (dma, (src, dst), len) = (self.rig.dma.clone(), self.pair.clone(), self.len);
        on_task(async move {
            dst.reset_data_len().expect("no job has it");
            let start = Instant::now();
            assert_eq!(dma.copy(&src, &dst).await, Ok(len));
            per_op(start, 1)
        })
    }

    /// Returns the nanoseconds of CPU time that a task spends on one of `copies` copies.
    fn cpu(&self, copies: u32) -> f64 {
        let (dma, (src, dst), len) = (self.rig.dma.clone(), self.pair.clone(), self.len);
        on_task(async move {
            let before = cpu_time();
            for _ in 0..copies {
                dst.reset_data_len().expect("no job has it");
                assert_eq!(dma.copy(&src, &dst).await, Ok(len));
            }
            (cpu_time() - before) / f64::from(copies)
        })
    }
}

/// Returns the CPU time of this thread in nanoseconds.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock of Linux");
    time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64
}

/// Returns the nanoseconds of CPU time that a task spends on each copy by a thread that has a
/// channel.
fn channel_cpu(job: Descriptor, copies: u32) -> f64 {
    let (jobs, mut inbox) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
    let worker = std::thread::spawn(move || {
        while let Some(done) = inbox.blocking_recv() {
            job.copy();
            let _ = done.send(());
        }
    });
    let cpu = on_task(async move {
        let before = cpu_time();
        for _ in 0..copies {
            let (done, is_done) = oneshot::channel();
            let _ = jobs.send(done);
            is_done.await.expect("the worker answers");
        }
        (cpu_time() - before) / f64::from(copies)
    });
    worker.join().expect("the worker ends");
    cpu
}

/// B17: an engine shall cost a task as much as a copy at the default limit of inline copies, and
/// much less beyond.
pub(crate) fn b17(report: &mut Report) {
    let names = [
        ("B17.256K", 256 << 10, 200, AtLeast(1.0)),
        ("B17.1M", 1 << 20, 100, AtMost(0.5)),
    ];
    for (name, len, copies, goal) in names {
        let engine = Engine::start(len);
        let job = bare(&engine.pair.0, &engine.pair.1);
        let inline = || {
            let before = cpu_time();
            (0..copies).for_each(|_| black_box(job).copy());
            (cpu_time() - before) / f64::from(copies)
        };
        let [ours, inline] = interleave(12, [&mut || engine.cpu(copies), &mut || inline()]);
        let (ours, inline) = (ours.median(), inline.median());
        let what = format!(
            "CPU time of the task for a copy by an engine, event mode, over that of the bare copy ({:.1} us against {:.1})",
            ours / 1e3,
            inline / 1e3
        );
        report.line(name, ours / inline, goal, "x", &what);
    }
    let engine = Engine::start(64 << 20);
    let job = bare(&engine.pair.0, &engine.pair.1);
    let [ours, channel] = interleave(5, [&mut || engine.cpu(10), &mut || channel_cpu(job, 10)]);
    let (ours, channel) = (ours.median(), channel.median());
    let what = format!(
        "CPU time of the task for a copy of 64 MiB by an engine, over that with a thread behind a channel ({:.1} us against {:.1})",
        ours / 1e3,
        channel / 1e3
    );
    report.line("B17.64M", ours / channel, AtMost(1.6), "x", &what);
}

pub(crate) fn b10(report: &mut Report) {
    for (name, len) in [("B10.16M", 16 << 20), ("B10.64M", 64 << 20)] {
        let note = sys::both_cpus().err().unwrap_or_default();
        let engine = Engine::start(len);
        let job = bare(&engine.pair.0, &engine.pair.1);
        let glibc = || {
            let start = Instant::now();
            black_box(job).copy();
            per_op(start, 1)
        };
        let [ours, glibc] = interleave(12, [&mut || engine.run(), &mut || glibc()]);
        let what = format!(
            "time of a copy by an engine over the C library's, median ({:.2} ms against {:.2}; it depends on the CPU){note}",
            ours.median() / 1e6,
            glibc.median() / 1e6
        );
        report.line(
            name,
            ours.median() / glibc.median(),
            AtMost(1.05),
            "x",
            &what,
        );
    }
}
