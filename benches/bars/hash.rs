//! G5: a hash of 1 MiB through a device, against the bare crate on the same bytes.
//!
//! In event mode, a single task waits until the engine has woken up, and the engine waits for the
//! task. With two tasks, the engine always has a hash to continue with.

use std::hint::black_box;
use std::time::Instant;

use sha2::Digest;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, Mode,
    sha::{Algorithm, Sha},
};

use super::measure::{Samples, interleave, per_op};
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::{Rig, on_task};
use super::sys;

const LEN: usize = 1 << 20;
const EACH: u64 = 32;

struct Way {
    sha: Sha,
    src: Buf,
    dsts: [Buf; 2],
}

impl Way {
    fn start(mode: Mode, pool: &Rig) -> Way {
        let (src, dst) = pool.pair(LEN);
        let (_, other) = pool.pair(LEN);
        let dsts = [dst, other];
        let workq = tokio_doca::WorkQ::builder().mode(mode).build();
        let workq = workq.expect("a WorkQ");
        let sha = Sha::builder(&pool.device).attach(&workq);
        let sha = sha.expect("the software device hashes");
        Way { sha, src, dsts }
    }

    /// Measures hashes by `tasks` concurrent tasks. Returns the nanoseconds per hash.
    fn run(&self, tasks: usize) -> f64 {
        let (sha, src, dsts) = (self.sha.clone(), self.src.clone(), self.dsts.clone());
        on_task(async move {
            let start = Instant::now();
            let task = |dst: Buf| {
                let (sha, src) = (sha.clone(), src.clone());
                tokio::spawn(async move {
                    for _ in 0..EACH / tasks as u64 {
                        let hash = sha.hash(Algorithm::Sha256, &src, &dst);
                        hash.await.expect("a hash");
                        dst.reset_data_len().expect("no job has it");
                    }
                })
            };
            let tasks: Vec<_> = dsts.into_iter().take(tasks).map(task).collect();
            for task in tasks {
                task.await.expect("a task that hashes");
            }
            per_op(start, EACH)
        })
    }
}

fn bare(src: &Buf) -> f64 {
    let src = src.data().expect("no job writes it");
    let start = Instant::now();
    for _ in 0..EACH {
        black_box(sha2::Sha256::digest(black_box(&src[..])));
    }
    per_op(start, EACH)
}

pub(crate) fn g5(report: &mut Report) {
    let note = sys::both_cpus().err().unwrap_or_default();
    // The engine inherits the CPU affinity of this thread.
    sys::pin(Some(1));
    let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, LEN, 8);
    sys::pin(Some(0));
    let [event, busy] = [Mode::EventDriven, Mode::BusyPoll].map(|mode| Way::start(mode, &rig));
    let [two, one, busy_ns, bare_ns] = interleave(
        60,
        [
            &mut || event.run(2),
            &mut || event.run(1),
            &mut || busy.run(1),
            &mut || bare(&busy.src),
        ],
    );
    sys::pin(None);
    let mut line = |name: &str, ours: &Samples, mode: &str| {
        let (ours, bare) = (ours.min(), bare_ns.min());
        let what = format!(
            "SHA-256 of 1 MiB, {mode}, over the bare crate ({:.0} us against {:.0}){note}",
            ours / 1e3,
            bare / 1e3
        );
        report.line(name, ours / bare, AtMost(1.03), "x", &what);
    };
    line("G5", &busy_ns, "busy-poll");
    let alone = one.min() / 1e3;
    let what = format!("event, two tasks in turn (one alone: {alone:.0} us, two wake-ups more)");
    line("G5.event", &two, &what);
}
