//! Makes RDMA contexts, and connected pairs of them in this process.

use tokio_doca::mem::Access;
use tokio_doca::{Device, Rdma, WorkQ};

use super::Result;

/// The accesses that a side permits the other side on its exported memory.
pub(in crate::bench) const ALL: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// Makes a context whose send queue and receive queue hold `depth` jobs each.
pub(in crate::bench) fn context(device: &Device, workq: &WorkQ, depth: usize) -> Result<Rdma> {
    let queue = u32::try_from(depth).unwrap_or(u32::MAX);
    let builder = Rdma::builder(device).permissions(ALL);
    let builder = builder.send_queue_size(queue).recv_queue_size(queue);
    Ok(builder.attach(workq)?)
}

/// Makes two contexts with queues for `depth` jobs, and connects them with each other.
pub(super) async fn connected(
    device: &Device,
    workqs: [&WorkQ; 2],
    depth: usize,
) -> Result<[Rdma; 2]> {
    let [one, other] = workqs.map(|workq| context(device, workq, depth));
    let (one, other) = (one?, other?);
    let (first, second) = (one.export()?, other.export()?);
    tokio::try_join!(one.connect(&second), other.connect(&first))?;
    Ok([one, other])
}
