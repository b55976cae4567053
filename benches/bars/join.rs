//! G2: a copy, a hash and a function that checks both, as a graph, against `join!` and the same
//! function.
//!
//! With 64 KiB, the engine hashes on the other CPU while the copy is done inline. With 4 KiB both
//! are inline: the cost of a run is then not hidden by any waiting.

use std::time::Instant;

use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, Error, ErrorKind, Mode, Result,
    graph::Graph,
    sha::{Algorithm, Sha},
};

use super::measure::{interleave, per_op};
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::{Rig, on_task};
use super::sys;

const RUNS: u64 = 200;

struct Trio {
    rig: Rig,
    sha: Sha,
    bufs: Bufs,
}

#[derive(Clone)]
struct Bufs {
    src: Buf,
    dst: Buf,
    digest: Buf,
}

impl Bufs {
    /// Checks that the copy equals its source, and that the digest is complete.
    fn check(&self) -> Result<()> {
        let same = self.src.data()?[..] == self.dst.data()?[..];
        match same && self.digest.data_len() == Algorithm::Sha256.digest_len() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Unexpected, "check", "they differ")),
        }
    }

    fn empty(&self) {
        for dst in [&self.dst, &self.digest] {
            dst.reset_data_len().expect("no job has it");
        }
    }
}

impl Trio {
    fn new(len: usize) -> Trio {
        let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, len, 3);
        let (src, dst) = rig.pair(len);
        let digest = rig.pool.try_alloc().expect("the third");
        let sha = Sha::builder(&rig.device).attach(&rig.workq);
        Trio {
            sha: sha.expect("the software device hashes"),
            bufs: Bufs { src, dst, digest },
            rig,
        }
    }

    /// Runs the jobs as a graph. Returns the nanoseconds per run.
    fn graph(&self) -> f64 {
        let bufs = self.bufs.clone();
        let mut g = Graph::builder();
        let hash = g.sha(&self.sha, Algorithm::Sha256);
        let copy = g.dma_copy(&self.rig.dma);
        let checked = bufs.clone();
        let check = g.user(move |_| checked.check());
        g.depends(check, (copy, hash));
        let mut instance = g.build().and_then(|g| g.instance()).expect("a graph");
        let Bufs { src, dst, digest } = &bufs;
        instance.set(copy, (src, dst)).expect("its node");
        instance.set(hash, (src, digest)).expect("its node");
        on_task(async move {
            let start = Instant::now();
            for _ in 0..RUNS {
                instance.run().await.expect("a run");
                bufs.empty();
            }
            per_op(start, RUNS)
        })
    }

    fn by_hand(&self) -> f64 {
        let (dma, sha, bufs) = (self.rig.dma.clone(), self.sha.clone(), self.bufs.clone());
        on_task(async move {
            let start = Instant::now();
            for _ in 0..RUNS {
                // Start in the order of the graph: the engine hashes while this thread copies.
                let (hashed, copied) = tokio::join!(
                    sha.hash(Algorithm::Sha256, &bufs.src, &bufs.digest),
                    dma.copy(&bufs.src, &bufs.dst)
                );
                hashed.and(copied).expect("a copy and a hash");
                bufs.check().expect("the same");
                bufs.empty();
            }
            per_op(start, RUNS)
        })
    }
}

pub(crate) fn g2(report: &mut Report) {
    let note = sys::both_cpus().err().unwrap_or_default();
    for (name, kib) in [("G2", 64), ("G2.inline", 4)] {
        // The engine inherits the CPU affinity of this thread.
        sys::pin(Some(1));
        let trio = Trio::new(kib << 10);
        sys::pin(Some(0));
        let [hand, graph] = interleave(60, [&mut || trio.by_hand(), &mut || trio.graph()]);
        sys::pin(None);
        let what = format!(
            "a copy and a SHA-256 of {kib} KiB, and a user node that checks them, over join! ({:.0} ns against {:.0}){note}",
            graph.min(),
            hand.min()
        );
        report.line(name, graph.min() / hand.min(), AtMost(1.05), "x", &what);
    }
}
