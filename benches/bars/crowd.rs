//! N8: what a job costs beside others that do nothing: jobs that sleep, jobs in flight, and peers.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Device, Dma, Mode, Rdma, WorkQ};

use super::measure::{interleave, per_op};
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::Rig;
use super::scenario;

const LEN: usize = 64;
const ROUNDS: usize = 7;
const ASLEEP: u32 = 4_096;
const FEW: u32 = 64;
const MANY: u32 = 32_768;

/// A device whose engine polls for so long between two jobs.
fn device(spin: Duration) -> Device {
    let soft = Soft::builder().engine_spin(spin).defer(true);
    soft.build().open("pf0").expect("a device")
}

fn rig(device: &Device, depth: u32, element: usize, count: usize) -> Rig {
    Rig::on(device.clone(), Mode::EventDriven, depth, element, count)
}

fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_io().build().expect("a runtime")
}

fn connected(rig: &Rig, peer: &WorkQ, sends: u32) -> [Rdma; 2] {
    let rdma = |workq: &WorkQ| {
        let rdma = Rdma::builder(&rig.device)
            .send_queue_size(sends)
            .rnr_timeout(Duration::from_secs(3600));
        rdma.attach(workq).expect("a context")
    };
    let pair = [rdma(&rig.workq), rdma(peer)];
    let [blob, others] = [0, 1].map(|at: usize| pair[at].export().expect("a blob"));
    pair[0].connect(&others).wait().expect("a connection");
    pair[1].connect(&blob).wait().expect("a connection");
    pair
}

/// Awaited copies into a destination that is emptied when it is full.
async fn copies(dma: &Dma, src: &Buf, dst: &Buf, jobs: u64) {
    for at in 1..=jobs {
        dma.copy(src, dst).await.expect("a copy");
        if at % u64::from(FEW) == 0 {
            dst.reset_data_len().expect("nobody has it");
        }
    }
}

/// Messages that wait for a receive of their peer, for ever. Each has its task.
async fn sleep(rdma: &Rdma, count: u32) {
    for _ in 0..count {
        let rdma = rdma.clone();
        tokio::spawn(async move { rdma.send(()).await });
    }
    while rdma.workq().in_flight() < count as usize {
        tokio::task::yield_now().await;
    }
}

/// Awaited copies by event beside so many jobs that sleep. Runs under a tool that counts.
pub(crate) fn run(scenario: &str, jobs: u64) {
    let asleep = scenario
        .strip_prefix("crowd-")
        .and_then(|count| count.parse().ok());
    // Each copy is waited for.
    let device = device(Duration::ZERO);
    let rig = rig(&device, 2 * ASLEEP, LEN * FEW as usize, 2);
    let peer = WorkQ::builder().build().expect("a WorkQ");
    let [one, _other] = connected(&rig, &peer, ASLEEP);
    let (src, dst) = rig.pair(LEN);
    runtime().block_on(async {
        sleep(&one, asleep.expect("a number")).await;
        copies(&rig.dma, &src, &dst, jobs).await;
    });
}

pub(crate) fn n8_asleep(report: &mut Report) {
    let counted = ["crowd-0", "crowd-4096"].map(scenario::instructions);
    match counted {
        [Ok(alone), Ok(beside)] => {
            let what = format!(
                "instructions of an awaited copy by event beside {ASLEEP} messages that wait \
                 ({beside:.0}) over one alone ({alone:.0})"
            );
            report.line("N8.asleep", beside / alone, AtMost(1.3), "x", &what);
        }
        [Err(why), _] | [_, Err(why)] => report.skip("N8.asleep", &why),
    }
}

/// Nanoseconds of a copy of so many that are in flight at once.
fn in_flight(device: &Device, jobs: u32) -> f64 {
    let rig = rig(device, jobs, LEN, 1 + jobs as usize);
    let src = rig.pool.try_alloc().expect("one of them");
    src.set_data(0, LEN).expect("all of it");
    let dsts: Vec<_> = (0..jobs)
        .map(|_| rig.pool.try_alloc().expect("as many"))
        .collect();
    runtime().block_on(async {
        let start = Instant::now();
        for _ in 0..MANY / jobs {
            let started = dsts
                .iter()
                .map(|dst| rig.dma.copy(&src, dst).start().expect("a slot"));
            let started: Vec<_> = started.collect();
            for copy in started {
                copy.await.expect("a copy");
            }
            for dst in &dsts {
                dst.reset_data_len().expect("nobody has it");
            }
        }
        per_op(start, MANY.into())
    })
}

pub(crate) fn n8_flight(report: &mut Report) {
    let device = device(Duration::from_secs(1));
    let cases = interleave(
        ROUNDS,
        [&mut || in_flight(&device, FEW), &mut || {
            in_flight(&device, MANY)
        }],
    );
    let [few, many] = cases.map(|samples| samples.min());
    let what = format!(
        "a copy of {MANY} that are in flight ({many:.0} ns) over one of {FEW} ({few:.0} ns)"
    );
    report.line("N8.flight", many / few, AtMost(1.3), "x", &what);
}

/// Nanoseconds of a copy by event of a WorkQ with so many peer queues, which do nothing.
fn beside_peers(count: usize) -> f64 {
    const FILLINGS: u64 = 30;
    let rig = rig(&device(Duration::ZERO), 256, LEN * FEW as usize, 2);
    let (src, dst) = rig.pair(LEN);
    let peers = (0..count).map(|_| {
        let peer = WorkQ::builder().depth(1).build().expect("a WorkQ");
        connected(&rig, &peer, 1)
    });
    let peers: Vec<_> = peers.collect();
    let runtime = runtime();
    let copies = || {
        let start = Instant::now();
        runtime.block_on(copies(&rig.dma, &src, &dst, FILLINGS * u64::from(FEW)));
        per_op(start, FILLINGS * u64::from(FEW))
    };
    let took = interleave(ROUNDS, [&mut { copies }]);
    drop(peers);
    took[0].min()
}

pub(crate) fn n8_peers(report: &mut Report) {
    let [few, many] = [10, 1_000].map(beside_peers);
    let what = format!(
        "an awaited copy by event beside 1,000 idle peer queues ({many:.0} ns) over one beside 10 \
         ({few:.0} ns)"
    );
    report.line("N8.peers", many / few, AtMost(3.0), "x", &what);
}
