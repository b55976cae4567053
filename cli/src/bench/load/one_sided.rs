//! Reads, writes and atomics on memory of a peer, which takes no part in them.

use tokio_doca::mem::{Access, RemoteBuf, RemoteMmap};
use tokio_doca::{Buf, Mmap, Rdma};

use super::memory::{LINE, filled, pool};
use super::pair::{ALL, connected};
use super::{Kind, Lanes, Plan, Result};

pub(super) struct Lane {
    kind: Kind,
    rdma: Rdma,
    /// It stays connected, and its memory stays where it is.
    _peer: (Rdma, Mmap),
    buf: Buf,
    remote: RemoteBuf,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let (device, depth) = (&plan.device, plan.depth);
    let step = plan.size.next_multiple_of(LINE);
    let workq = plan.workq(depth)?;
    let [rdma, peer] = connected(device, [&workq, &workq], depth).await?;
    let mmap = Mmap::builder().device(device);
    let mmap = mmap.access(Access::LOCAL_READ_WRITE | ALL);
    let mmap = mmap.alloc(step * depth)?;
    let remote = RemoteMmap::from_export(device, &mmap.export_rdma(device)?).await?;
    let pool = pool(device, plan.size, depth)?;
    let lane = |at| {
        let begin = at * step;
        Ok(Lane {
            kind: plan.kind,
            rdma: rdma.clone(),
            _peer: (peer.clone(), mmap.clone()),
            buf: filled(&pool, plan.size)?,
            remote: remote.buf(begin..begin + plan.size)?,
        })
    };
    let lanes = (0..depth).map(lane).collect::<Result<_>>()?;
    Ok(Lanes::on(workq, lanes))
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        let (rdma, buf, remote) = (&self.rdma, &self.buf, &self.remote);
        match self.kind {
            Kind::RdmaRead => {
                buf.reset_data_len()?;
                rdma.read(remote, buf).await?;
            }
            Kind::RdmaWrite => {
                rdma.write(buf, remote).await?;
            }
            _ => {
                rdma.fetch_add(remote, 1).await?;
            }
        }
        Ok(())
    }
}
