//! B10: large copies, by one engine and by two; and beyond the caches, over the C library.

use std::hint::black_box;
use std::time::Instant;

use futures::future::join_all;
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Mode};

use super::measure::{interleave, per_op};
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::{Rig, bare, on_task};
use super::sys;

/// Copies of one size on a device with so many engines, event-driven.
struct Engines {
    rig: Rig,
    pairs: Vec<(Buf, Buf)>,
    len: usize,
}

impl Engines {
    /// Nothing inline, so that every copy is the engines'.
    fn start(engines: usize, len: usize, lanes: usize) -> Engines {
        let soft = Soft::builder().inline_limit(0).engines(engines).build();
        let rig = Rig::soft(&soft, Mode::EventDriven, len, 2 * lanes);
        let pairs = (0..lanes).map(|_| rig.pair(len)).collect();
        Engines { rig, pairs, len }
    }

    /// Nanoseconds of one copy.
    fn run(&self, copies: u64) -> f64 {
        let (dma, pairs, len) = (self.rig.dma.clone(), self.pairs.clone(), self.len);
        let each = copies.div_ceil(pairs.len() as u64);
        on_task(async move {
            let lane = async |(src, dst): &(Buf, Buf)| {
                for _ in 0..each {
                    dst.reset_data_len().expect("nobody has it");
                    assert_eq!(dma.copy(src, dst).await, Ok(len));
                }
            };
            let start = Instant::now();
            join_all(pairs.iter().map(lane)).await;
            per_op(start, each * pairs.len() as u64)
        })
    }
}

/// Bytes of all sources: twice as many are in no core's own cache, as with a service's data.
const SOURCES: usize = 8 << 20;

pub(crate) fn b10(report: &mut Report) {
    for (name, len) in [
        ("B10.64K", 64 << 10),
        ("B10.256K", 256 << 10),
        ("B10.1M", 1 << 20),
    ] {
        let note = sys::both_cpus().err().unwrap_or_default();
        let lanes = SOURCES / len;
        let [one, two] = [1, 2].map(|engines| Engines::start(engines, len, lanes));
        let copies = 4 * lanes as u64;
        let [one, two] = interleave(40, [&mut || one.run(copies), &mut || two.run(copies)]);
        let what = format!(
            "time of a copy by two engines over one, event mode, {lanes} in flight, median ({:.1} us against {:.1}){note}",
            two.median() / 1e3,
            one.median() / 1e3
        );
        let ratio = two.median() / one.median();
        report.line(name, ratio, AtMost(0.65), "x", &what);
    }
    for (name, len) in [("B10.16M", 16 << 20), ("B10.64M", 64 << 20)] {
        let note = sys::both_cpus().err().unwrap_or_default();
        let two = Engines::start(2, len, 1);
        let job = bare(&two.pairs[0].0, &two.pairs[0].1);
        let glibc = || {
            let start = Instant::now();
            black_box(job).copy();
            per_op(start, 1)
        };
        let [two, glibc] = interleave(12, [&mut || two.run(1), &mut || glibc()]);
        let what = format!(
            "time of a copy by two engines over the C library's, median ({:.2} ms against {:.2}; it depends on the CPU){note}",
            two.median() / 1e6,
            glibc.median() / 1e6
        );
        report.line(
            name,
            two.median() / glibc.median(),
            AtMost(0.75),
            "x",
            &what,
        );
    }
}
