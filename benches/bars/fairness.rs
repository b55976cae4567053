//! B14: how evenly a full WorkQ serves the tasks that wait for a slot.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Mode};

use super::devices::Observed;
use super::measure::Samples;
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::{Rig, on_task};

const TASKS: usize = 1_000;
const EACH: usize = 20;
const DEPTH: u32 = 8;
const LEN: usize = 64;

/// Returns the longest wait from first poll to submission, divided by the mean wait. A wait is
/// counted in submissions of other tasks.
fn worst_over_mean(mode: Mode) -> f64 {
    let soft = Soft::builder().inline_limit(0).build();
    let inner = soft.open("pf0").expect("the software device has a pf0");
    let (device, observed) = Observed::over(inner, 2 * TASKS, LEN);
    let rig = Rig::on(device, mode, DEPTH, LEN, 2 * TASKS);
    let pairs: Vec<(Buf, Buf)> = (0..TASKS).map(|_| rig.pair(LEN)).collect();
    let address = |buf: &Buf| buf.data().expect("no job writes it").as_ptr().addr();
    let first = pairs.iter().map(|pair| address(&pair.0)).min();
    let first = first.expect("there are pairs");
    observed.set_base(first);
    let dma = rig.dma.clone();
    let waits: Vec<f64> = on_task(async move {
        let task = |(src, dst): (Buf, Buf)| {
            let (dma, observed) = (dma.clone(), Arc::clone(&observed));
            let source = (address(&src) - first) / LEN;
            tokio::spawn(async move {
                let mut waits = [0.0; EACH];
                for wait in &mut waits {
                    let mut polled = None;
                    let mut op = pin!(dma.copy(&src, &dst));
                    poll_fn(|cx| {
                        polled.get_or_insert_with(|| observed.now());
                        let copied = std::task::ready!(op.as_mut().poll(cx));
                        Poll::Ready(copied)
                    })
                    .await
                    .expect("a copy");
                    let polled = polled.expect("it was polled");
                    *wait = observed.submitted(source).saturating_sub(polled) as f64;
                    dst.reset_data_len().expect("no job has it");
                }
                waits
            })
        };
        let tasks: Vec<_> = pairs.into_iter().map(task).collect();
        let mut waits = Vec::with_capacity(TASKS * EACH);
        for task in tasks {
            waits.extend(task.await.expect("a task that copies"));
        }
        waits
    });
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    waits.iter().copied().fold(0.0, f64::max) / mean
}

pub(crate) fn b14(report: &mut Report) {
    for (name, mode, what) in [
        ("B14.event", Mode::EventDriven, "event mode"),
        ("B14.busy", Mode::BusyPoll, "busy-poll"),
    ] {
        let rounds = Samples::of((0..7).map(|_| worst_over_mean(mode)).collect());
        let what = format!(
            "1,000 tasks on a depth of 8 through the engine, {what}: worst wait for submission, in others' submissions, over the mean (median of rounds {:.2}x)",
            rounds.median()
        );
        report.line(name, rounds.min(), AtMost(3.0), "x", &what);
    }
}
