//! Runs of a graph: a chain of copies, each between two Bufs of its own.

use tokio_doca::graph::{CopyNode, Graph, Instance, Node};
use tokio_doca::{Buf, BufPool, Dma};

use super::memory::{filled, pool, touched};
use super::{Lanes, NODES, Plan, Result};

pub(super) struct Lane {
    instance: Instance,
    dsts: Vec<Buf>,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let pool = pool(&plan.device, plan.size, 2 * NODES * plan.depth)?;
    let workq = plan.workq(NODES * plan.depth)?;
    let dma = Dma::builder(&plan.device).attach(&workq)?;
    let mut builder = Graph::builder();
    let nodes: Vec<Node<CopyNode>> = (0..NODES).map(|_| builder.dma_copy(&dma)).collect();
    for pair in nodes.windows(2) {
        builder.depends(pair[1], pair[0]);
    }
    let graph = builder.build()?;
    let lane = |_| lane(&graph, &nodes, &pool, plan.size);
    let lanes = (0..plan.depth).map(lane).collect::<Result<_>>()?;
    Ok(Lanes::on(workq, lanes))
}

fn lane(graph: &Graph, nodes: &[Node<CopyNode>], pool: &BufPool, size: usize) -> Result<Lane> {
    let (mut instance, mut dsts) = (graph.instance()?, Vec::new());
    for &node in nodes {
        let (src, dst) = (filled(pool, size)?, touched(pool)?);
        instance.set(node, (&src, &dst))?;
        dsts.push(dst);
    }
    Ok(Lane { instance, dsts })
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        for dst in &self.dsts {
            dst.reset_data_len()?;
        }
        self.instance.run().await?;
        Ok(())
    }
}
