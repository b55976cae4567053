//! B1, B6, B11: jobs that the device does inside the submission.
#![expect(unsafe_code, reason = "the baseline copies by address")]

use std::time::Instant;

use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Dma, Mode};

use super::measure::{Samples, interleave, per_op};
use super::raw::{Descriptor, Ring};
use super::report::Goal::{AtLeast, AtMost};
use super::report::Report;
use super::rig::{Rig, bare, fill, on_task};
use super::{scenario, sys};

/// B1: the instructions of an awaited copy of 64 bytes beyond those of a posted descriptor.
pub(crate) fn b1(report: &mut Report) {
    let what = "instructions of a 64-byte copy, busy-poll, in a task, over the raw post loop";
    let both = scenario::instructions("raw").and_then(|raw| {
        let op = scenario::instructions("busy-inline")?;
        Ok((raw, op))
    });
    match both {
        Ok((raw, op)) => {
            let what = format!("{what} ({op:.1} against {raw:.1})");
            report.line("B1", (op - raw).round(), AtMost(150.0), "", &what);
        }
        Err(error) => report.skip("B1", &error),
    }
}
/// The rounds in which two ways of copying take turns.
const ROUNDS: usize = 60;

/// Runs the bare loop, filling each destination in turn. Returns the nanoseconds per copy.
fn raw_loop(jobs: &[(Descriptor, usize)], len: usize, fillings: u64) -> f64 {
    let mut ring = Ring::new();
    let mut done = 0;
    let start = Instant::now();
    for &(job, room) in jobs {
        for _ in 0..fillings {
            for at in 0..room / len {
                // SAFETY: the copy stays within the destination, which has `room` bytes.
                ring.run(unsafe { job.further(at * len) });
                done += 1;
            }
        }
    }
    per_op(start, done)
}

/// Runs the same copies through the crate, each pair in a task of its own.
fn tasks(dma: &Dma, pairs: &[(Buf, Buf)], fillings: u64) -> f64 {
    let (dma, pairs) = (dma.clone(), pairs.to_vec());
    on_task(async move {
        let each = pairs[0].1.capacity() / pairs[0].0.data_len();
        let done = fillings * (pairs.len() * each) as u64;
        if let [(src, dst)] = &pairs[..] {
            let start = Instant::now();
            fill(&dma, src, dst, fillings).await;
            return per_op(start, done);
        }
        let start = Instant::now();
        let task = |(src, dst): (Buf, Buf)| {
            let dma = dma.clone();
            tokio::spawn(async move { fill(&dma, &src, &dst, fillings).await })
        };
        let tasks: Vec<_> = pairs.into_iter().map(task).collect();
        for task in tasks {
            task.await.expect("a task that copies");
        }
        per_op(start, done)
    })
}

/// Measures the bare loop against `lanes` tasks, from and to the same bytes.
fn against_raw(len: usize, room: usize, lanes: usize, fillings: u64) -> [Samples; 2] {
    let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, room, 2 * lanes);
    let pairs: Vec<(Buf, Buf)> = (0..lanes).map(|_| rig.pair(len)).collect();
    let jobs: Vec<_> = pairs
        .iter()
        .map(|(src, dst)| (bare(src, dst), room))
        .collect();
    interleave(
        ROUNDS,
        [&mut || raw_loop(&jobs, len, fillings), &mut || {
            tasks(&rig.dma, &pairs, fillings)
        }],
    )
}

/// B6: copies that the device does inside the submission.
pub(crate) fn b6(report: &mut Report) {
    for (name, len, room, lanes, fillings, bar) in [
        ("B6.4k", 4 << 10, 16 << 10, 1, 4_000, 1.15),
        ("B6.64k", 64 << 10, 64 << 10, 1, 400, 1.05),
        ("B6.tasks", 4 << 10, 16 << 10, 32, 200, 1.3),
    ] {
        let [raw, op] = against_raw(len, room, lanes, fillings);
        let what = format!(
            "{} KiB inline, {lanes} task(s), over the raw post loop ({:.1} ns against {:.1})",
            len >> 10,
            op.min(),
            raw.min()
        );
        report.line(name, op.min() / raw.min(), AtMost(bar), "x", &what);
    }
}

/// Returns the nanoseconds per copy of all threads together. Each thread has a pair of Bufs, and
/// they share the WorkQ.
fn threads(rig: &Rig, pairs: &[(Buf, Buf)], cpus: &[usize], fillings: u64) -> f64 {
    let barrier = std::sync::Barrier::new(cpus.len());
    let rates = std::thread::scope(|scope| {
        let thread = |(&cpu, pair): (&usize, &(Buf, Buf))| {
            let barrier = &barrier;
            let pair = [pair.clone()];
            scope.spawn(move || {
                sys::pin(Some(cpu));
                barrier.wait();
                1.0 / tasks(&rig.dma, &pair, fillings)
            })
        };
        let threads: Vec<_> = cpus.iter().zip(pairs).map(thread).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread that copies"))
            .sum::<f64>()
    });
    1.0 / rates
}

/// B11: two threads that share a WorkQ.
pub(crate) fn b11(report: &mut Report) {
    const FILLINGS: u64 = 10_000;
    let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, 16 << 10, 4);
    let pairs = [rig.pair(4096), rig.pair(4096)];
    let [one, two] = interleave(
        25,
        [&mut || threads(&rig, &pairs, &[0], FILLINGS), &mut || {
            threads(&rig, &pairs, &[0, 1], FILLINGS)
        }],
    );
    let what = format!(
        "two tasks on two threads share a WorkQ, 4 KiB inline: rate over one thread's ({:.1} ns against {:.1})",
        two.min(),
        one.min()
    );
    report.line("B11", one.min() / two.min(), AtLeast(1.5), "x", &what);
}
