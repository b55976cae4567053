//! G6: a CRC-32C of 4 KiB and of 1 MiB through a device, against the crate `crc32c` alone on the
//! same bytes; and a copy with its CRC, against `crc32c` and then a plain copy.

use std::hint::black_box;
use std::time::Instant;

use tokio_doca::crc::Crc;
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Mode};

use super::measure::{interleave, per_op};
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::{Rig, bare, on_task};
use super::sys;

const EACH: u64 = 32;

/// Measures our CRC in a task, with or without a copy.
fn ours(crc: &Crc, src: &Buf, dst: &Buf, copies: bool) -> f64 {
    let (crc, src, dst) = (crc.clone(), src.clone(), dst.clone());
    on_task(async move {
        let start = Instant::now();
        for _ in 0..EACH {
            if copies {
                crc.copy_crc(&src, &dst).await.expect("a copy");
                dst.reset_data_len().expect("no job has it");
            } else {
                black_box(crc.crc32c(&src).await.expect("a CRC"));
            }
        }
        per_op(start, EACH)
    })
}

fn crate_alone(src: &Buf, dst: Option<&Buf>) -> f64 {
    let copy = dst.map(|dst| bare(src, dst));
    let src = src.data().expect("no job writes it");
    let start = Instant::now();
    for _ in 0..EACH {
        black_box(crc32c::crc32c(black_box(&src[..])));
        if let Some(copy) = &copy {
            copy.copy();
        }
    }
    per_op(start, EACH)
}

pub(crate) fn g6(report: &mut Report) {
    let note = sys::both_cpus().err().unwrap_or_default();
    // The engine inherits the CPU affinity of this thread.
    sys::pin(Some(1));
    let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, 1 << 20, 4);
    sys::pin(Some(0));
    let crc = Crc::builder(&rig.device).attach(&rig.workq);
    let crc = crc.expect("the software device computes CRCs");
    for (len, name) in [(4 << 10, "G6.4k"), (1 << 20, "G6.1m")] {
        let (src, dst) = rig.pair(len);
        let [alone, bare, copy, bare_copy] = interleave(
            60,
            [
                &mut || ours(&crc, &src, &dst, false),
                &mut || crate_alone(&src, None),
                &mut || ours(&crc, &src, &dst, true),
                &mut || crate_alone(&src, Some(&dst)),
            ],
        );
        let goal = if len < 1 << 20 { 1.5 } else { 1.1 };
        for (suffix, what, ours, bare) in [
            ("", "CRC-32C", &alone, &bare),
            (".copy", "copy with its CRC-32C", &copy, &bare_copy),
        ] {
            let (ours, bare) = (ours.min(), bare.min());
            let [ours_rate, bare_rate] = [ours, bare].map(|ns| len as f64 / ns);
            let what = format!(
                "{what} of {} KiB, busy-poll, over the bare crate ({ours_rate:.1} GB/s against {bare_rate:.1}){note}",
                len >> 10
            );
            let name = format!("{name}{suffix}");
            report.line(&name, ours / bare, AtMost(goal), "x", &what);
        }
    }
    sys::pin(None);
}
