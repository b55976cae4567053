//! [`RdmaRecv`]: a receive, from its first poll to its message.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::pin::Pin;
use std::task::{self, Poll};

use super::Rdma;
use crate::device::{RecvOpcode, RegistrationUse};
use crate::error::{JobError, Reason, Result};
use crate::mem::{self, Buf, Extent, Handle, MaybeDestination, Reach, Writing};
use crate::ops::operation::Op;
use crate::ops::operation::sealed::{Kind, Own, Post};
use crate::reactor::{
    Attachment, EndpointPort, HasAttachment, Received, Receiver, RecvBuf, RecvCompletion,
    RecvFuture,
};

/// A receive: the [`Rdma`] that it is posted to, and its destination.
pub struct RecvRequest<C, D> {
    pub(super) rdma: C,
    pub(super) dst: D,
}

impl<C: AsRef<Rdma>, D> HasAttachment for RecvRequest<C, D> {
    #[inline(always)]
    fn attachment(&self) -> &Attachment {
        self.rdma.as_ref().attachment()
    }
}

impl<C: AsRef<Rdma>, D: MaybeDestination> RecvRequest<C, D> {
    fn check_extent(&self, Extent { pieces, .. }: Extent) -> Result<(), JobError> {
        let rdma = self.rdma.as_ref();
        if rdma.recv_pool().is_some() {
            return Err(JobError::of(Reason::ReceivesFromPool));
        }
        let limit = rdma.recv_chain_len() as usize;
        match pieces {
            0 if self.dst.reach() == Reach::None => Ok(()),
            // Any message with data would be too long, and break the connection.
            0 => Err(JobError::of(Reason::NoTailroom)),
            _ if pieces > limit => {
                let (have, limit) = (pieces as u64, limit as u64);
                Err(JobError::new(Reason::ListTooLong, have, limit))
            }
            _ => Ok(()),
        }
    }
}

impl<C: AsRef<Rdma>, D: MaybeDestination> Receiver for RecvRequest<C, D> {
    #[inline(always)]
    fn port(&self) -> &EndpointPort {
        self.rdma.as_ref().port()
    }

    fn check(&self) -> Result<(), JobError> {
        self.check_extent(self.dst.tail_extent())
    }

    #[inline(always)]
    fn begin(&self) -> Result<RecvBuf, JobError> {
        let begun = mem::receive(&self.dst, self.attachment().holder(RegistrationUse::Rdma))?;
        // The extent is checked again: before the Lease, another thread may have changed the
        // destination.
        self.check_extent(Extent::of(begun.job()))?;
        Ok(RecvBuf::new(begun))
    }

    fn adopt(&self, landed: &RecvCompletion) -> Result<(), JobError> {
        let len = landed.len();
        if len == 0 {
            return Ok(());
        }
        if landed.buf.lease().is_some_and(|lease| self.is_for(lease)) {
            landed.grow();
            return Ok(());
        }
        let buf = self.begin().map_err(|error| match error.reason() {
            Reason::NoTailroom => JobError::new(Reason::ReceiveTooSmall, len as u64, 0),
            _ => error,
        })?;
        landed.hand_over(&buf)
    }

    fn is_for(&self, lease: &Writing) -> bool {
        self.dst.is_leased_by(lease)
    }
}

impl<C: AsRef<Rdma>, D: MaybeDestination> Kind for RecvRequest<C, D> {
    type Output = Result<Received, JobError>;
    type JobFuture = RecvFuture<RecvRequest<C, D>>;

    #[inline(always)]
    fn flight(self) -> Self::JobFuture {
        RecvFuture::new(self)
    }

    fn poll(
        flight: Pin<&mut Self::JobFuture>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Received, JobError>> {
        flight.poll(cx)
    }

    #[inline(always)]
    fn start(flight: &mut Self::JobFuture) -> Result<(), JobError> {
        flight.start()
    }
}

impl<C: AsRef<Rdma>, D: MaybeDestination> Post for RecvRequest<C, D> {
    fn post(flight: &mut Self::JobFuture, user_data: u64) -> Result<(), JobError> {
        flight.post(user_data)
    }
}

impl<C, D> Own for RecvRequest<C, D>
where
    C: AsRef<Rdma> + Handle<Owned = Rdma>,
    D: MaybeDestination + Handle<Owned: MaybeDestination>,
{
    type Owned = RecvRequest<Rdma, D::Owned>;

    fn own(flight: &Self::JobFuture) -> Self::Owned {
        let RecvRequest { rdma, dst } = flight.receiver();
        RecvRequest {
            rdma: rdma.cloned(),
            dst: dst.cloned(),
        }
    }
}

/// The operation of [`Rdma::recv`]. Its output describes the message.
pub type RdmaRecv<C, D> = Op<RecvRequest<C, D>>;

/// A message, as a [`RecvStream`](super::RecvStream) yields it.
///
/// ```
/// use futures::TryStreamExt;
/// use tokio_doca::rdma::Message;
/// # use tokio_doca::{BufPool, Device, Mmap, Rdma, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let (a, b) = (Rdma::builder(&device).attach(&workq)?, Rdma::builder(&device).attach(&workq)?);
/// # let (of_a, of_b) = (a.export()?, b.export()?);
/// # tokio::try_join!(a.connect(&of_b), b.connect(&of_a))?;
/// // `a` and `b` are connected.
/// # let src = pool.alloc().await;
/// # src.extend_from_slice(b"hello")?;
/// let mut messages = b.recv_stream(&pool, 4);
/// let (sent, came) = tokio::try_join!(a.send_imm(&src, 7), messages.try_next())?;
/// let Message { buf, received, .. } = came.expect("the connection has not ended");
/// assert_eq!((received.len, received.immediate), (sent, Some(7)));
/// let buf = buf.expect("the message is not empty");
/// assert_eq!(&buf.data()?[..], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The data of the message. `None` if the peer sent an empty message, or a write with an
    /// immediate.
    pub buf: Option<Buf>,
    /// The length of the message, its kind, and its immediate.
    pub received: Received,
}

impl Message {
    pub(super) fn new(buf: Buf, received: Received) -> Message {
        let empty = received.len == 0 || received.opcode == RecvOpcode::WriteImm;
        Message {
            buf: (!empty).then_some(buf),
            received,
        }
    }
}
