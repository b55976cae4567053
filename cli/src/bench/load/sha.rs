//! Hashes by a SHA context: SHA-256, or else the first algorithm that the device has.

use tokio_doca::Buf;
use tokio_doca::device::JobKind;
use tokio_doca::sha::{Algorithm, Sha};

use super::memory::{filled, pool, touched};
use super::{Failed, Lanes, Plan, Result};

pub(super) struct Lane {
    sha: Sha,
    algorithm: Algorithm,
    src: Buf,
    digest: Buf,
}

/// The length of the longest digest, in bytes.
const DIGEST: usize = 64;

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let caps = plan.device.info().caps();
    let has = |it: &Algorithm| caps.supports(JobKind::Sha(*it));
    let known = [Algorithm::Sha256].into_iter().chain(Algorithm::ALL);
    let none = || Failed::Said("the device has no hash".to_owned());
    let algorithm = known.into_iter().find(has).ok_or_else(none)?;
    let sources = pool(&plan.device, plan.size, plan.depth)?;
    let digests = pool(&plan.device, DIGEST, plan.depth)?;
    let workq = plan.workq(plan.depth)?;
    let sha = Sha::builder(&plan.device).attach(&workq)?;
    let lane = |_| {
        Ok(Lane {
            sha: sha.clone(),
            algorithm,
            src: filled(&sources, plan.size)?,
            digest: touched(&digests)?,
        })
    };
    let lanes = (0..plan.depth).map(lane).collect::<Result<_>>()?;
    Ok(Lanes::on(workq, lanes))
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        self.digest.reset_data_len()?;
        let hash = self.sha.hash(self.algorithm, &self.src, &self.digest);
        hash.await?;
        Ok(())
    }
}
