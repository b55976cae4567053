//! [`RecvPool`]: one pool of Bufs for the messages of many connections.

use crate::mem::BufPool;

/// The default of [`RecvPool::credits`], for each connection.
const CREDITS: u32 = 16;

/// A pool of Bufs for the messages of many [`Rdma`](crate::Rdma)s (a shared receive queue). Clones
/// are the same pool.
///
/// [`RdmaBuilder::recv_pool`](super::RdmaBuilder::recv_pool) sets the pool of an Rdma, and
/// [`Rdma::messages`](crate::Rdma::messages) returns the stream of its messages. A connection has a
/// Buf only while the application handles one of its messages, so that thousands of idle
/// connections need only a few Bufs.
///
/// **Credits.** Each connection lends its peer the same number of [`credits`](RecvPool::credits),
/// independently of other connections. Each message of the peer uses one credit. The message waits
/// outside of the pool until the stream takes it; then the connection lends the credit again. So if
/// a stream is not polled, its peer must stop once it has used all credits or, on the software
/// device, has sent 512 KiB. The peer's next send waits, and fails after its
/// [`rnr_timeout`](super::RdmaBuilder::rnr_timeout) with
/// [`Reason::NoReceive`](crate::error::Reason::NoReceive). The peers of other connections continue.
///
/// On an adapter the receives of all connections of a WorkQ are one shared receive queue, whose
/// size is the sum of their credits. While other peers do not use all their credits, a peer may
/// have more messages waiting than it has credits. If no receive is left, and this peer's messages
/// are not taken for a quarter of the connection's `rnr_timeout`, its connection fails with
/// [`Reason::CreditsExceeded`](crate::error::Reason::CreditsExceeded).
///
/// **Fairness.** A stream that has a message and finds the pool empty waits in line for a Buf,
/// together with the callers of [`BufPool::alloc`], and takes one message at its turn. While it
/// waits, the stream also notices the end of its connection. A message without data needs a Buf
/// only while it is taken.
///
/// ```
/// use futures::TryStreamExt;
/// # use tokio_doca::{BufPool, Rdma, WorkQ, Device, error::JobError, rdma::RecvPool};
///
/// fn accept(device: &Device, workq: &WorkQ, pool: &BufPool) -> Result<Rdma, tokio_doca::Error> {
///     Rdma::builder(device).recv_pool(&RecvPool::new(pool)).attach(workq)
/// }
///
/// async fn serve(rdma: Rdma) -> Result<(), JobError> {
///     let mut messages = rdma.messages();
///     while let Some(message) = messages.try_next().await? {
///         println!("{} bytes", message.received.len);
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "ibv_srq")]
pub struct RecvPool {
    bufs: BufPool,
    credits: u32,
}

impl RecvPool {
    /// Returns a pool that receives into `bufs`. Messages have at most
    /// [`element_size`](BufPool::element_size) bytes.
    #[doc(alias = "ibv_create_srq")]
    pub fn new(bufs: &BufPool) -> RecvPool {
        RecvPool {
            bufs: bufs.clone(),
            credits: CREDITS,
        }
    }

    /// Sets how many messages of each connection may wait to be taken. Defaults to 16. The number
    /// is rounded up to a power of two.
    pub fn credits(mut self, messages: u32) -> RecvPool {
        self.credits = messages;
        self
    }

    /// Returns the pool from which the Bufs are taken.
    pub fn bufs(&self) -> &BufPool {
        &self.bufs
    }

    pub(super) fn credits_per_connection(&self) -> u32 {
        self.credits
    }
}
