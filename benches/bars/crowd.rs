//! N8: the cost of a job beside others that do nothing: sleeping jobs, jobs in flight, and idle
//! peers.

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

/// Opens a device whose engine polls for `spin` after a job before it sleeps.
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

/// Connects two contexts. The peer has another device, so that the engine of the measured device
/// does not know the peer's queue.
fn connected(rig: &Rig, peer: (&Device, &WorkQ), sends: u32) -> [Rdma; 2] {
    let rdma = |(device, workq): (&Device, &WorkQ)| {
        let rdma = Rdma::builder(device)
            .send_queue_size(sends)
            .rnr_timeout(Duration::from_secs(3600));
        rdma.attach(workq).expect("a context")
    };
    let pair = [rdma((&rig.device, &rig.workq)), rdma(peer)];
    let [blob, others] = [0, 1].map(|at: usize| pair[at].export().expect("a blob"));
    pair[0].connect(&others).wait().expect("a connection");
    pair[1].connect(&blob).wait().expect("a connection");
    pair
}

/// Awaits `jobs` copies one after the other, and empties the destination whenever it is full.
async fn copies(dma: &Dma, src: &Buf, dst: &Buf, jobs: u64) {
    for at in 1..=jobs {
        dma.copy(src, dst).await.expect("a copy");
        if at % u64::from(FEW) == 0 {
            dst.reset_data_len().expect("no job has it");
        }
    }
}

/// Starts `count` messages that wait forever for a receive of their peer, each in a task of its
/// own.
async fn sleep(rdma: &Rdma, count: u32) {
    for _ in 0..count {
        let rdma = rdma.clone();
        tokio::spawn(async move { rdma.send(()).await });
    }
    while rdma.workq().in_flight() < count as usize {
        tokio::task::yield_now().await;
    }
}

/// Awaits copies by event, beside the number of sleeping jobs or idle peer queues that the
/// scenario's name says. Runs under a counting tool.
pub(crate) fn run(scenario: &str, jobs: u64) {
    let number = |what| scenario.strip_prefix(what)?.parse::<u32>().ok();
    let (asleep, peers) = (number("crowd-asleep-"), number("crowd-peers-"));
    // The engine does not spin, so that each copy is waited for.
    let rig = rig(&device(Duration::ZERO), 2 * ASLEEP, LEN * FEW as usize, 2);
    let others = Soft::builder().build().open("pf0").expect("a device");
    let peer = |_| {
        let peer = WorkQ::builder().depth(1).build().expect("a WorkQ");
        connected(&rig, (&others, &peer), ASLEEP)
    };
    let pairs: Vec<_> = (0..peers.unwrap_or(1)).map(peer).collect();
    let (src, dst) = rig.pair(LEN);
    runtime().block_on(async {
        sleep(&pairs[0][0], asleep.unwrap_or(0)).await;
        copies(&rig.dma, &src, &dst, jobs).await;
    });
}

/// Reports the ratio of the instructions of two scenarios.
fn compare(report: &mut Report, name: &str, goal: f64, scenarios: [&str; 2], what: [&str; 2]) {
    match scenarios.map(scenario::instructions) {
        [Ok(few), Ok(many)] => {
            let [beside, alone] = what;
            let what = format!(
                "instructions of an awaited copy by event beside {beside} ({many:.0}) over one \
                 {alone} ({few:.0})"
            );
            report.line(name, many / few, AtMost(goal), "x", &what);
        }
        [Err(why), _] | [_, Err(why)] => report.skip(name, &why),
    }
}

pub(crate) fn n8_asleep(report: &mut Report) {
    let what = ["4,096 messages that wait", "alone"];
    let scenarios = ["crowd-asleep-0", "crowd-asleep-4096"];
    compare(report, "N8.asleep", 1.3, scenarios, what);
}

pub(crate) fn n8_peers(report: &mut Report) {
    let what = ["1,000 idle peer queues", "beside 10"];
    let scenarios = ["crowd-peers-10", "crowd-peers-1000"];
    compare(report, "N8.peers", 3.0, scenarios, what);
}

/// Returns the nanoseconds per copy if `jobs` copies are in flight at once.
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
                dst.reset_data_len().expect("no job has it");
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
