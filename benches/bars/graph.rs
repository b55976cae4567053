//! G1, G3 and G4: runs of graphs, against the same jobs awaited one by one or posted to a bare
//! ring.

use std::time::Instant;

use support::counting;
use tokio_doca::graph::{CopyNode, Node};
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Dma, Mmap, Mode, WorkQ,
    graph::{Graph, Instance},
};

use super::measure::{interleave, per_op};
use super::report::Goal::{AtLeast, AtMost, Exactly};
use super::report::Report;
use super::rig::{Rig, bare, on_task};
use super::{raw, scenario, sys};

/// The bytes of a small copy, and the nodes of a chain.
const SMALL: usize = 64;
const CHAIN: usize = 64;
/// The number of runs that fill the destinations.
const FILLING: u64 = 64;

/// A chain of copies, each with a source and a destination of its own.
struct Chain {
    rig: Rig,
    pairs: Vec<(Buf, Buf)>,
}

impl Chain {
    fn new(defer: bool, nodes: usize) -> Chain {
        let soft = Soft::builder().defer(defer).build();
        let room = SMALL * FILLING as usize;
        let rig = Rig::soft(&soft, Mode::BusyPoll, room, 2 * nodes);
        let pairs = (0..nodes).map(|_| rig.pair(SMALL)).collect();
        Chain { rig, pairs }
    }

    fn instance(&self) -> Instance {
        let mut g = Graph::builder();
        let nodes: Vec<Node<CopyNode>> = self
            .pairs
            .iter()
            .map(|_| g.dma_copy(&self.rig.dma))
            .collect();
        for pair in nodes.windows(2) {
            g.depends(pair[1], pair[0]);
        }
        let graph = g.build().expect("a chain");
        let mut instance = graph.instance().expect("on the WorkQ of its nodes");
        for (node, (src, dst)) in nodes.iter().zip(&self.pairs) {
            instance.set(*node, (src, dst)).expect("a node of its own");
        }
        instance
    }

    fn reset(pairs: &[(Buf, Buf)]) {
        let empty = |dst: &Buf| dst.reset_data_len().expect("no job has it");
        pairs.iter().for_each(|(_, dst)| empty(dst));
    }

    /// Runs the chain as a graph. Returns the nanoseconds per node.
    fn run(&self, runs: u64) -> f64 {
        let (mut instance, pairs) = (self.instance(), self.pairs.clone());
        on_task(async move {
            let start = Instant::now();
            for run in 1..=runs {
                instance.run().await.expect("a run");
                if run % FILLING == 0 {
                    Chain::reset(&pairs);
                }
            }
            per_op(start, runs * pairs.len() as u64)
        })
    }

    /// Awaits the same copies one by one, without a graph.
    fn awaited(&self, runs: u64) -> f64 {
        let (dma, pairs) = (self.rig.dma.clone(), self.pairs.clone());
        on_task(async move {
            let start = Instant::now();
            for run in 1..=runs {
                for (src, dst) in &pairs {
                    dma.copy(src, dst).await.expect("a copy");
                }
                if run % FILLING == 0 {
                    Chain::reset(&pairs);
                }
            }
            per_op(start, runs * pairs.len() as u64)
        })
    }

    /// Posts the same copies to a bare ring.
    fn posted(&self, runs: u64) -> f64 {
        let jobs: Vec<_> = self.pairs.iter().map(|(src, dst)| bare(src, dst)).collect();
        let mut ring = raw::Ring::new();
        let start = Instant::now();
        for _ in 0..runs {
            for &job in &jobs {
                ring.run(job);
            }
        }
        per_op(start, runs * jobs.len() as u64)
    }
}

/// Runs a scenario under callgrind.
pub(crate) fn run(scenario: &str, jobs: u64) {
    let chain = Chain::new(false, CHAIN);
    let runs = jobs / CHAIN as u64;
    match scenario {
        "graph-chain" => _ = chain.run(runs),
        "graph-awaited" => _ = chain.awaited(runs),
        "graph-posted" => {
            chain.posted(runs);
            return;
        }
        other => panic!("no scenario {other}"),
    }
    assert_eq!(
        chain.rig.device.jobs(),
        Some(jobs),
        "every node was the device's"
    );
}

/// Returns the instructions of a node beyond those of a posted copy, and beyond those of an awaited
/// copy.
pub(crate) fn instructions() -> Result<[f64; 2], String> {
    let node = scenario::instructions("graph-chain")?;
    let posted = node - scenario::instructions("graph-posted")?;
    let awaited = node - scenario::instructions("graph-awaited")?;
    Ok([posted, awaited])
}

/// G1: the cost of a node of a chain beyond that of the same copy awaited without a graph.
pub(crate) fn g1(report: &mut Report) {
    const RUNS: u64 = 640;
    let chain = Chain::new(false, CHAIN);
    let before = chain.rig.device.jobs();
    let [posted, awaited, node] = interleave(
        40,
        [
            &mut || chain.posted(RUNS),
            &mut || chain.awaited(RUNS),
            &mut || chain.run(RUNS),
        ],
    );
    let jobs = chain
        .rig
        .device
        .jobs()
        .zip(before)
        .map(|(now, then)| now - then);
    assert_eq!(jobs, Some(2 * 41 * RUNS * CHAIN as u64), "each was a job");
    let what = "a node of a chain of 64 copies of 64 bytes, over the same copies awaited in a loop";
    let text = format!(
        "{what} ({:.1} ns against {:.1}; {:.1} posted to a raw ring)",
        node.min(),
        awaited.min(),
        posted.min()
    );
    report.line("G1", node.min() - awaited.min(), AtMost(30.0), "ns", &text);
    match instructions() {
        Ok([posted, awaited]) => {
            let text = format!("{what} ({posted:.0} over the raw post loop)");
            report.line("G1.instr", awaited.round(), AtMost(120.0), "", &text);
        }
        Err(error) => report.skip("G1.instr", &error),
    }
}

/// Returns the allocations of runs of graphs of several sizes.
pub(crate) fn allocations() -> f64 {
    let mut all = 0;
    for (defer, nodes) in [
        (false, 1),
        (false, 64),
        (false, 1000),
        (true, 1),
        (true, 64),
    ] {
        let chain = Chain::new(defer, nodes);
        let (mut instance, pairs) = (chain.instance(), chain.pairs.clone());
        all += on_task(async move {
            // The first run starts the engine's thread, which allocates.
            instance.run().await.expect("a run");
            Chain::reset(&pairs);
            let before = counting::everywhere();
            for _ in 0..FILLING {
                instance.run().await.expect("a run");
            }
            counting::everywhere() - before
        });
    }
    all as f64
}

pub(crate) fn g3(report: &mut Report) {
    let what =
        "allocations of 320 runs of graphs of 1 to 1,000 nodes, inline and through the engine";
    report.line("G3", allocations(), Exactly(0.0), "", what);
}

/// G4: a graph of 4 by 4 copies of 1 MiB on two devices with an engine each, against the same
/// copies one after the other.
pub(crate) fn g4(report: &mut Report) {
    const LEN: usize = 1 << 20;
    const SIDE: usize = 4;
    let note = sys::both_cpus().err().unwrap_or_default();
    let soft = Soft::builder().build();
    let workq = WorkQ::builder().build().expect("a WorkQ");
    // An engine inherits the CPU affinity of this thread: put one on each CPU.
    let contexts = [("pf0", 0), ("pf1", 1)].map(|(name, cpu)| {
        sys::pin(Some(cpu));
        let device = soft.open(name).expect("both ports");
        let dma = Dma::builder(&device).attach(&workq).expect("a context");
        (device, dma)
    });
    sys::pin(None);
    let [(one, _), (two, _)] = &contexts;
    let mmap = Mmap::builder()
        .device(one)
        .device(two)
        .alloc(LEN * SIDE * (SIDE + 1));
    let pool = BufPool::builder(&mmap.expect("memory"))
        .element_size(LEN)
        .build();
    let pool = pool.expect("a pool");
    let dmas = contexts.map(|(_, dma)| dma);
    // Each column is a chain. Each device has two columns.
    let columns: Vec<Vec<Buf>> = (0..SIDE)
        .map(|_| {
            (0..=SIDE)
                .map(|_| pool.try_alloc().expect("room"))
                .collect()
        })
        .collect();
    columns
        .iter()
        .for_each(|column| column[0].set_data(0, LEN).expect("all of it"));
    let mut g = Graph::builder();
    let mut set = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let mut before = None;
        for pair in column.windows(2) {
            let node = g.dma_copy(&dmas[at % 2]);
            if let Some(before) = before.replace(node) {
                g.depends(node, before);
            }
            set.push((node, pair[0].clone(), pair[1].clone()));
        }
    }
    let mut instance = g.build().and_then(|g| g.instance()).expect("a graph");
    for (node, src, dst) in &set {
        instance.set(*node, (src, dst)).expect("its node");
    }
    let empty = |set: &[(_, Buf, Buf)]| {
        set.iter()
            .for_each(|(_, _, dst)| dst.reset_data_len().expect("no job has it"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let runtime = runtime.expect("a runtime");
    let serial = || {
        let start = Instant::now();
        runtime.block_on(async {
            for (at, (_, src, dst)) in set.iter().enumerate() {
                let dma = &dmas[at / SIDE % 2];
                dma.copy(src, dst).await.expect("a copy");
            }
        });
        let took = per_op(start, set.len() as u64);
        empty(&set);
        took
    };
    let mut graph = || {
        let start = Instant::now();
        runtime.block_on(instance.run()).expect("a run");
        let took = per_op(start, set.len() as u64);
        empty(&set);
        took
    };
    let [serial, graph] = interleave(60, [&mut { serial }, &mut graph]);
    let what = format!(
        "4 by 4 copies of 1 MiB on two engines, over one after the other ({:.0} us a copy against {:.0}){note}",
        graph.median() / 1000.0,
        serial.median() / 1000.0
    );
    report.line(
        "G4",
        serial.median() / graph.median(),
        AtLeast(1.7),
        "x",
        &what,
    );
}
