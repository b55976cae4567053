//! Reads, writes and atomics on memory of a peer, which takes no part in them.

use std::any::Any;
use std::rc::Rc;

use tokio_doca::mem::{RemoteBuf, RemoteMmap};
use tokio_doca::{Buf, Rdma};

use super::memory::{LINE, filled, lent, pool};
use super::pair::connected;
use super::{Kind, Lanes, Plan, Result};

pub(super) struct Lane {
    kind: Kind,
    rdma: Rdma,
    /// Keeps the peer connected and its memory allocated.
    _peer: Rc<dyn Any>,
    buf: Buf,
    remote: RemoteBuf,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let (device, depth) = (&plan.device, plan.depth);
    let step = plan.size.next_multiple_of(LINE);
    let workq = plan.workq(depth)?;
    let (rdma, blob, peer): (Rdma, Vec<u8>, Rc<dyn Any>) = match &plan.peer {
        Some(peer) => {
            let (rdma, far) = peer.connected(&workq, plan).await?;
            (rdma, far.memory, Rc::new(far.stream))
        }
        None => {
            let [rdma, peer] = connected(device, [&workq, &workq], depth).await?;
            let mmap = lent(device, plan.size, depth)?;
            (rdma, mmap.export_rdma(device)?, Rc::new((peer, mmap)))
        }
    };
    let remote = RemoteMmap::from_export(device, &blob).await?;
    let pool = pool(device, plan.size, depth)?;
    let lane = |at| {
        let begin = at * step;
        Ok(Lane {
            kind: plan.kind,
            rdma: rdma.clone(),
            _peer: Rc::clone(&peer),
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
