//! One pool of Bufs for the messages of many connections.

use crate::mem::BufPool;

/// The credits of each connection, if [`RecvPool::credits`] says nothing else.
const CREDITS: u32 = 16;

/// A pool of Bufs for the messages of many [`Rdma`](crate::Rdma)s (a shared receive queue). Clones
/// are the same pool.
///
/// [`RdmaBuilder::recv_pool`](super::RdmaBuilder::recv_pool) names it, and
/// [`Rdma::messages`](crate::Rdma::messages) is the stream of the messages. A connection has a Buf
/// only while the application handles one of its messages, so that thousands of idle connections
/// need a few Bufs.
///
/// **Credits.** Each connection lends its peer the same number of credits, whatever the others do.
/// A message of the peer takes a credit. It waits outside of the pool until the stream takes it,
/// which lends the credit anew. So the peer of a stream that is not polled stops once it has used
/// its credits, one for each message, or after 512 KiB on the software device: its next send waits,
/// and fails after its [`rnr_timeout`](super::RdmaBuilder::rnr_timeout) with
/// [`Reason::NoReceive`](crate::error::Reason::NoReceive). The peers of other connections continue.
///
/// On an adapter the receives of all connections of a WorkQ are one shared receive queue, whose
/// size is the sum of their credits. A peer may have more messages waiting than its credits while
/// others leave theirs. If none is left, and its messages are not taken for a quarter of the
/// connection's `rnr_timeout`, its connection fails with
/// [`Reason::CreditsExceeded`](crate::error::Reason::CreditsExceeded).
///
/// **Fairness.** A stream that has a message and finds the pool empty waits in line for a Buf, with
/// others that wait for one ([`BufPool::alloc`]), and takes one message at its turn. It waits for
/// the end of its connection as well. A message without data takes a Buf for that moment.
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
    /// Returns a pool of these Bufs. The longest message of a connection has
    /// [`element_size`](BufPool::element_size) bytes.
    #[doc(alias = "ibv_create_srq")]
    pub fn new(bufs: &BufPool) -> RecvPool {
        RecvPool {
            bufs: bufs.clone(),
            credits: CREDITS,
        }
    }

    /// Sets how many messages of each connection may wait to be taken. Defaults to 16. It is
    /// rounded up to a power of two.
    pub fn credits(self, messages: u32) -> RecvPool {
        RecvPool {
            credits: messages,
            ..self
        }
    }

    /// Returns the Bufs.
    pub fn bufs(&self) -> &BufPool {
        &self.bufs
    }

    pub(super) fn credits_per_connection(&self) -> u32 {
        self.credits
    }
}
