//! Round trips over two sync events: one wakes a wait, and the other one answers. Both are on the
//! WorkQ of the thread.

use tokio_doca::sync_event::{Location, SyncEvent};

use super::{Kind, Lanes, Plan, Result};

pub(super) struct Lane {
    there: SyncEvent,
    back: SyncEvent,
    turn: u64,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let workq = plan.workq(Kind::SyncEvent.jobs() * plan.depth)?;
    let cpu = || Location::Cpu(&plan.device);
    let event = || {
        let builder = SyncEvent::builder().publisher(cpu()).subscriber(cpu());
        builder.waits(1).attach(&workq)
    };
    let lane = |_| {
        Ok(Lane {
            there: event()?,
            back: event()?,
            turn: 0,
        })
    };
    let lanes = (0..plan.depth).map(lane).collect::<Result<_>>()?;
    Ok(Lanes::on(workq, lanes))
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        let Lane { there, back, turn } = self;
        let ask = async {
            there.set(*turn + 1).await?;
            back.wait_gt(*turn).await
        };
        let answer = async {
            there.wait_gt(*turn).await?;
            back.set(*turn + 1).await
        };
        tokio::try_join!(ask, answer)?;
        *turn += 1;
        Ok(())
    }
}
