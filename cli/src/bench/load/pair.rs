//! Rdma contexts, and two in this process that are connected.

use tokio_doca::mem::Access;
use tokio_doca::{Device, Rdma, WorkQ};

use super::Result;

/// What a side may do with exported memory of the other one.
pub(in crate::bench) const ALL: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// A context with room for `depth` jobs of either direction.
pub(in crate::bench) fn context(device: &Device, workq: &WorkQ, depth: usize) -> Result<Rdma> {
    let queue = u32::try_from(depth).unwrap_or(u32::MAX);
    let builder = Rdma::builder(device).permissions(ALL);
    let builder = builder.send_queue_size(queue).recv_queue_size(queue);
    Ok(builder.attach(workq)?)
}

/// Connects two contexts, each with room for `depth` jobs of either direction.
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
