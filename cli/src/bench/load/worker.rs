//! A measuring thread: it makes its lanes, and drives them in each round.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, spawn_local};

use super::{Baseline, Failed, Kind, Lane, Lanes, Plan, Result, Round};
use super::{
    channel, crc, dma, graph, memcpy, one_sided, rdma_send, sha, stream, sync_event, uring,
};

type Orders = Receiver<Duration>;
type Said = Sender<Result<Round>>;

/// Makes the lanes of the plan, sends an empty round once they are ready, and then measures a round
/// per order until the orders end.
pub(super) fn run(plan: &Plan, orders: &Orders, said: &Said) {
    let link = (orders, said);
    match (plan.baseline, plan.kind) {
        (Some(Baseline::Memcpy), _) => measure(plan, memcpy::in_task, link),
        (Some(Baseline::SpawnBlocking), _) => measure(plan, memcpy::blocking, link),
        (Some(Baseline::IoUring), _) => measure(plan, uring::lanes, link),
        (Some(Baseline::Tcp), _) => measure(plan, stream::tcp, link),
        (Some(Baseline::Unix), _) => measure(plan, stream::unix, link),
        (None, Kind::Dma) => measure(plan, dma::lanes, link),
        (None, Kind::Sha) => measure(plan, sha::lanes, link),
        (None, Kind::Crc) => measure(plan, crc::lanes, link),
        (None, Kind::RdmaSend) => measure(plan, rdma_send::lanes, link),
        (None, Kind::RdmaRead | Kind::RdmaWrite | Kind::RdmaAtomic) => {
            measure(plan, one_sided::lanes, link);
        }
        (None, Kind::SyncEvent) => measure(plan, sync_event::lanes, link),
        (None, Kind::Channel) => measure(plan, channel::lanes, link),
        (None, Kind::Stream) => measure(plan, stream::rdma, link),
        (None, Kind::Graph) => measure(plan, graph::lanes, link),
    }
}

/// Makes a runtime for this thread.
pub(super) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn measure<L: Lane>(
    plan: &Plan,
    begin: impl AsyncFnOnce(&Plan) -> Result<Lanes<L>>,
    (orders, said): (&Orders, &Said),
) {
    let ready = runtime().and_then(|runtime| {
        let lanes = runtime.block_on(begin(plan))?;
        Ok((runtime, lanes))
    });
    let (runtime, mut lanes) = match ready {
        Ok(ready) => ready,
        Err(failed) => {
            let _ = said.send(Err(failed));
            return;
        }
    };
    if said.send(Ok(Round::new())).is_ok() {
        for length in orders {
            if said.send(lanes.round(&runtime, length)).is_err() {
                break;
            }
        }
    }
    let other = lanes.other.take();
    let entered = runtime.enter();
    drop(lanes);
    drop(entered);
    drop(runtime);
    // The other side ends now that its connection has ended.
    let _ = other.map(|other| other.join());
}

type Latency = Rc<RefCell<Histogram<u64>>>;

impl<L: Lane> Lanes<L> {
    fn round(&mut self, runtime: &Runtime, length: Duration) -> Result<Round> {
        let Round { latency, .. } = Round::new();
        let latency = Rc::new(RefCell::new(latency));
        let lanes = mem::take(&mut self.lanes);
        let begun = Instant::now();
        let driven = all(lanes, begun + length, &latency);
        self.lanes = match &self.spins {
            Some(workq) => workq.block_on(driven)?,
            None => runtime.block_on(driven)?,
        };
        Ok(Round {
            took: begun.elapsed(),
            latency: latency.replace(Round::new().latency),
        })
    }
}

/// Drives all lanes concurrently until `end`.
async fn all<L: Lane>(mut lanes: Vec<L>, end: Instant, latency: &Latency) -> Result<Vec<L>> {
    // A single lane needs no task of its own.
    if lanes.len() == 1 {
        let lane = lanes.swap_remove(0);
        return Ok(vec![drive(lane, end, Rc::clone(latency)).await?]);
    }
    let tasks = LocalSet::new();
    let driven = tasks.run_until(async {
        let drive = |lane| spawn_local(drive(lane, end, Rc::clone(latency)));
        let driven: Vec<_> = lanes.drain(..).map(drive).collect();
        for lane in driven {
            let panicked = |error| Failed::Said(format!("a task of the measurement: {error}"));
            lanes.push(lane.await.map_err(panicked)??);
        }
        Ok(lanes)
    });
    driven.await
}

/// Does one operation after the other until `end`, at least one. The end time of each is the begin
/// time of the next.
async fn drive<L: Lane>(mut lane: L, end: Instant, latency: Latency) -> Result<L> {
    let mut begun = Instant::now();
    loop {
        lane.once().await?;
        let now = Instant::now();
        let took = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
        latency.borrow_mut().saturating_record(took);
        if now >= end {
            return Ok(lane);
        }
        begun = now;
    }
}
