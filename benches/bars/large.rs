//! B10: large copies by an engine, which do not fit into the caches, over the C library's memcpy.

use std::hint::black_box;
use std::time::Instant;

use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Mode};

use super::measure::{interleave, per_op};
use super::report::Goal::AtMost;
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
