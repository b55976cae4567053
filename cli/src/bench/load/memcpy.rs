//! The baselines that copy by the CPU: in the task, and by `spawn_blocking`.
//!
//! They copy between Bufs of a pool, as the measured kinds do: where memory lies, and the size of
//! its pages, can make a copy several times slower.

use std::hint::black_box;
use std::mem;

use tokio::task::spawn_blocking;
use tokio_doca::Buf;

use super::memory::{filled, pool};
use super::{Failed, Lanes, Plan, Result};

/// The source and destination of each copy of an operation. A graph has a pair per node.
#[derive(Default)]
struct Pairs(Vec<(Buf, Buf)>);

/// Allocates the pairs of each lane.
fn pairs(plan: &Plan, lanes: usize) -> Result<Vec<Pairs>> {
    let each = plan.kind.copies();
    let pool = pool(&plan.device, plan.size, 2 * each * lanes)?;
    let pair = |_| Ok((filled(&pool, plan.size)?, filled(&pool, plan.size)?));
    let lane = |_| (0..each).map(pair).collect::<Result<_>>().map(Pairs);
    (0..lanes).map(lane).collect()
}

impl Pairs {
    fn copy(&self) -> Result {
        for (src, dst) in &self.0 {
            let (src, mut dst) = (src.data()?, dst.data_mut()?);
            dst.copy_from_slice(black_box(&src));
            black_box(&mut dst[..]);
        }
        Ok(())
    }
}

pub(super) struct InTask(Pairs);

/// Returns a single lane whatever the depth is: a copy in the task ends before the next one begins.
pub(super) async fn in_task(plan: &Plan) -> Result<Lanes<InTask>> {
    let lanes = pairs(plan, 1)?.into_iter().map(InTask);
    Ok(Lanes::by_runtime(lanes.collect()))
}

impl super::Lane for InTask {
    async fn once(&mut self) -> Result {
        self.0.copy()
    }
}

pub(super) struct Blocking(Pairs);

pub(super) async fn blocking(plan: &Plan) -> Result<Lanes<Blocking>> {
    let lanes = pairs(plan, plan.depth)?.into_iter().map(Blocking);
    Ok(Lanes::by_runtime(lanes.collect()))
}

impl super::Lane for Blocking {
    async fn once(&mut self) -> Result {
        let pairs = mem::take(&mut self.0);
        let copied = spawn_blocking(move || pairs.copy().map(|()| pairs));
        let panicked = |error| Failed::Said(format!("a thread that copies: {error}"));
        self.0 = copied.await.map_err(panicked)??;
        Ok(())
    }
}
