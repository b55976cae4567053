//! CRC-32C checksums by a CRC context.

use tokio_doca::Buf;
use tokio_doca::crc::Crc;

use super::memory::{filled, pool};
use super::{Lanes, Plan, Result};

pub(super) struct Lane {
    crc: Crc,
    src: Buf,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let pool = pool(&plan.device, plan.size, plan.depth)?;
    let workq = plan.workq(plan.depth)?;
    let crc = Crc::builder(&plan.device).attach(&workq)?;
    let lane = |_| {
        let (crc, src) = (crc.clone(), filled(&pool, plan.size)?);
        Ok(Lane { crc, src })
    };
    let lanes = (0..plan.depth).map(lane).collect::<Result<_>>()?;
    Ok(Lanes::on(workq, lanes))
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        self.crc.crc32c(&self.src).await?;
        Ok(())
    }
}
