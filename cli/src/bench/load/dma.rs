//! Copies by a DMA context.

use tokio_doca::{Buf, Dma};

use super::memory::{filled, pool, touched};
use super::{Lanes, Plan, Result};

pub(super) struct Lane {
    dma: Dma,
    src: Buf,
    dst: Buf,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let pool = pool(&plan.device, plan.size, 2 * plan.depth)?;
    let workq = plan.workq(plan.depth)?;
    let dma = Dma::builder(&plan.device).attach(&workq)?;
    let lane = |_| {
        let (src, dst) = (filled(&pool, plan.size)?, touched(&pool)?);
        let dma = dma.clone();
        Ok(Lane { dma, src, dst })
    };
    let lanes = (0..plan.depth).map(lane).collect::<Result<_>>()?;
    Ok(Lanes::on(workq, lanes))
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        self.dst.reset_data_len()?;
        self.dma.copy(&self.src, &self.dst).await?;
        Ok(())
    }
}
