//! Two Rdma contexts that are connected, both in this process.

use tokio_doca::mem::Access;
use tokio_doca::{Device, Rdma, WorkQ};

use super::Result;

/// What a side may do with exported memory of the other one.
pub(super) const ALL: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// Connects two contexts, each with room for `depth` jobs of either direction.
pub(super) async fn connected(
    device: &Device,
    workqs: [&WorkQ; 2],
    depth: usize,
) -> Result<[Rdma; 2]> {
    let queue = u32::try_from(depth).unwrap_or(u32::MAX);
    let context = |workq| {
        let builder = Rdma::builder(device).permissions(ALL);
        let builder = builder.send_queue_size(queue).recv_queue_size(queue);
        builder.attach(workq)
    };
    let (one, other) = (context(workqs[0])?, context(workqs[1])?);
    let (first, second) = (one.export()?, other.export()?);
    tokio::try_join!(one.connect(&second), other.connect(&first))?;
    Ok([one, other])
}
