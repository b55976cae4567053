//! One pool of Bufs for the messages of many connections.
//!
//! An endpoint with a pool posts no receives. It lends its peer a credit for each of a few messages,
//! which need no Buf: the provider keeps them until a stream takes them, one by one, into Bufs of
//! the pool. So an idle connection has no Buf, and a connection whose messages nobody takes stops
//! its own peer alone (ADR 0040).

use std::pin::Pin;
use std::task::{Context, Poll};

use super::Rdma;
use super::context::Pair;
use super::stream::Message;
use crate::device::RegistrationUse;
use crate::error::{JobError, Reason};
use crate::mem::{self, Buf, BufPool, BufWait};
use crate::reactor::{DisconnectWait, RecvBuf};

/// The credits of each connection, if [`RecvPool::credits`] says nothing else.
const CREDITS: u32 = 16;

/// A pool of Bufs for the messages of many [`Rdma`]s (a shared receive queue). Clones are the same
/// pool.
///
/// [`RdmaBuilder::recv_pool`](super::RdmaBuilder::recv_pool) names it, and [`Rdma::messages`] is the
/// stream of the messages. A connection has a Buf only while the application handles one of its
/// messages, so that thousands of idle connections need a few Bufs.
///
/// **Credits.** Each connection lends its peer the same number of credits, whatever the others do.
/// A message of the peer takes a credit. It waits outside of the pool until the stream takes it,
/// which lends the credit anew. So the peer of a stream that is not polled stops after so many
/// messages, or 512 KiB on the software device: its next send waits, and fails after its
/// [`rnr_timeout`](super::RdmaBuilder::rnr_timeout) with
/// [`Reason::NoReceive`](crate::error::Reason::NoReceive). The peers of other connections go on.
///
/// **Fairness.** A stream that has a message and finds the pool empty stands in line for a Buf, with
/// others that wait for one ([`BufPool::alloc`]), and takes one message at its turn. It waits for
/// the end of its connection as well.
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
    /// A pool of these Bufs. The longest message of a connection has
    /// [`element_size`](BufPool::element_size) bytes.
    #[doc(alias = "ibv_create_srq")]
    pub fn new(bufs: &BufPool) -> RecvPool {
        RecvPool {
            bufs: bufs.clone(),
            credits: CREDITS,
        }
    }

    /// How many messages of each connection may wait to be taken; 16 if not said. It is rounded up
    /// to a power of two.
    pub fn credits(self, messages: u32) -> RecvPool {
        RecvPool {
            credits: messages,
            ..self
        }
    }

    /// The Bufs.
    pub fn bufs(&self) -> &BufPool {
        &self.bufs
    }

    pub(super) fn credits_per_connection(&self) -> u32 {
        self.credits
    }
}

/// Messages that a stream takes from its endpoint.
pub(super) struct PooledReceives {
    /// Where it takes Bufs from; in line while the pool is empty.
    bufs: Option<Pin<Box<BufWait>>>,
    /// For a message, and for the end of the connection.
    wait: Pin<Box<DisconnectWait<Pair>>>,
    rdma: Rdma,
}

impl PooledReceives {
    pub(super) fn new(rdma: &Rdma) -> PooledReceives {
        let bufs = rdma.recv_pool().map(|pool| BufWait::new(pool.bufs()));
        PooledReceives {
            bufs: bufs.map(Box::pin),
            wait: Box::pin(DisconnectWait::new(Pair(rdma.clone()))),
            rdma: rdma.clone(),
        }
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message, JobError>> {
        let Some(bufs) = &mut self.bufs else {
            return Poll::Ready(Err(JobError::of(Reason::NoRecvPool)));
        };
        let port = self.rdma.port();
        loop {
            if !port.has_message() {
                // A Buf that comes home is for others meanwhile.
                bufs.as_mut().stop();
                if let Poll::Ready(error) = self.wait.as_mut().poll(cx) {
                    return Poll::Ready(Err(error));
                }
                // One may have been told of before this stood in the list.
                if !port.has_message() {
                    return Poll::Pending;
                }
            }
            let Some(buf) = bufs.as_mut().poll(cx.waker()) else {
                return self.wait.as_mut().poll(cx).map(Err);
            };
            self.wait.as_mut().stop();
            if let Some(message) = take(&self.rdma, buf)? {
                return Poll::Ready(Ok(message));
            }
            // Another stream was faster.
        }
    }

    /// Waits for nothing any more.
    pub(super) fn end(&mut self) {
        if let Some(bufs) = &mut self.bufs {
            bufs.as_mut().stop();
        }
        self.wait.as_mut().stop();
    }
}

/// Takes the oldest message, if there is one.
fn take(rdma: &Rdma, buf: Buf) -> Result<Option<Message>, JobError> {
    let holder = rdma.attachment().holder(RegistrationUse::Rdma);
    let room = RecvBuf::new(mem::receive(&buf, holder)?);
    let taken = rdma.port().take_message(room)?;
    Ok(taken.map(|received| Message::new(buf, received)))
}
