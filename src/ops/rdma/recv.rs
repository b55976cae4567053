//! One receive, from its first poll to its message.
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{self, Poll};

use pin_project::pin_project;

use super::Rdma;
use crate::device::Use;
use crate::error::{JobError, Reason, Result};
use crate::mem::{self, Extent, MaybeDestination};
use crate::reactor::{Attachment, Landed, QueuePair, Received, Receiver, RecvFlight, Room};

/// Where a message shall go.
pub(super) struct RecvRequest<C, D> {
    pub(super) rdma: C,
    pub(super) dst: D,
}

impl<C: AsRef<Rdma>, D> Deref for RecvRequest<C, D> {
    type Target = Attachment;

    #[inline(always)]
    fn deref(&self) -> &Attachment {
        &self.rdma.as_ref().0
    }
}

impl<C: AsRef<Rdma>, D: MaybeDestination> RecvRequest<C, D> {
    fn check_extent(&self, room: Option<Extent>) -> Result<(), JobError> {
        let Some(Extent { pieces, .. }) = room else {
            return Ok(());
        };
        let limit = self.rdma.as_ref().recv_chain_len() as usize;
        match pieces {
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
    fn pair(&self) -> &QueuePair {
        self.rdma.as_ref().pair()
    }

    fn check(&self) -> Result<(), JobError> {
        self.check_extent(self.dst.extent_now())
    }

    fn begin(&self) -> Result<Room, JobError> {
        let begun = mem::begin_receive(&self.dst, self.holder(Use::Rdma))?;
        // Once more: without the Lease somebody may have changed it meanwhile.
        let extent = Extent::of(begun.job());
        let room = Room::new(begun);
        self.check_extent(room.lease().map(|_| extent))?;
        Ok(room)
    }

    fn adopt(&self, landed: &Landed) -> Result<(), JobError> {
        let len = landed.len();
        if len == 0 {
            return Ok(());
        }
        if landed.room.lease().is_some_and(|lease| self.dst.has(lease)) {
            landed.grow();
            return Ok(());
        }
        let too_small =
            |room: usize| JobError::new(Reason::ReceiveTooSmall, len as u64, room as u64);
        let room = self.begin().map_err(|error| match error.reason() {
            Reason::NoTailroom => too_small(0),
            _ => error,
        })?;
        if len > room.len() {
            return Err(too_small(room.len()));
        }
        landed.hand_over(&room);
        Ok(())
    }
}

/// The future of [`Rdma::recv`], [`Rdma::recv_owned`] and [`Rdma::try_recv`]: what came.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct RdmaRecv<C: AsRef<Rdma>, D: MaybeDestination>(#[pin] RecvFlight<RecvRequest<C, D>>);

impl<C: AsRef<Rdma>, D: MaybeDestination> RdmaRecv<C, D> {
    pub(super) fn new(rdma: C, dst: D) -> RdmaRecv<C, D> {
        RdmaRecv(RecvFlight::new(RecvRequest { rdma, dst }))
    }

    /// Posted now, or refused.
    pub(super) fn posted(rdma: C, dst: D) -> Result<RdmaRecv<C, D>, JobError> {
        RecvFlight::posted(RecvRequest { rdma, dst }).map(RdmaRecv)
    }

    pub(super) fn is_begun(&self) -> bool {
        self.0.is_begun()
    }

    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        self.0.is_older_than(&other.0)
    }
}

impl<C: AsRef<Rdma>, D: MaybeDestination> Future for RdmaRecv<C, D> {
    type Output = Result<Received, JobError>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        self.project().0.poll(cx)
    }
}
