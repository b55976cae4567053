//! A range of imported memory.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use super::mmap::{Inner, RemoteMmap};
use crate::device::{Audience, Segments};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::mem::buf::Buf;
use crate::mem::mmap::{Holder, Mmap, MmapInner};
use crate::mem::pool::BufInventory;

/// A plain range of a [`RemoteMmap`]: it has no rooms. A copy, or a remote operation, reads all of it, and writes from its start on. (DOCA gives
/// remote descriptors rooms too, which makes a read from a fresh one silently empty.) Clones are the same range.
#[derive(Clone)]
pub struct RemoteBuf(pub(super) Arc<Piece>);

pub(super) struct Piece {
    mmap: RemoteMmap,
    /// What its Leases are taken on, if it is memory of this process.
    pub(super) own: Option<Buf>,
    from: usize,
    len: usize,
}

impl RemoteBuf {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Where it begins in the memory that was exported.
    pub(in crate::mem) fn offset(&self) -> usize {
        self.0.from
    }

    /// What it is a piece of.
    pub fn mmap(&self) -> &RemoteMmap {
        &self.0.mmap
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the range ends before it begins ([`Reason::RangeReversed`]), or reaches past
    /// the end ([`Reason::OutOfRange`]).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RemoteBuf, JobError> {
        let range = MmapInner::resolve(range, self.len())
            .map_err(|range| MmapInner::not_within(&range, self.len()))?;
        let from = self.0.from + range.start;
        // Its Leases are of these bytes alone.
        let part = |(mmap, whole): (&Mmap, &Buf)| {
            // While the whole is there nobody claims its range or stops the Mmap, and this does not fail.
            leased(mmap, from..from + range.len()).unwrap_or_else(|_| whole.clone())
        };
        let own = self.inner().own.as_ref().zip(self.0.own.as_ref()).map(part);
        Ok(RemoteBuf(Arc::new(Piece {
            mmap: self.0.mmap.clone(),
            own,
            from,
            len: range.len(),
        })))
    }

    /// The addresses of its bytes, as the device knows them.
    pub(in crate::mem) fn span(&self) -> Range<usize> {
        let start = self.inner().whole.addr().addr().get() + self.0.from;
        start..start + self.0.len
    }

    fn inner(&self) -> &Inner {
        &self.0.mmap.0
    }

    /// As the device of a Dma, or of an Rdma, sees it.
    #[inline(always)]
    pub(in crate::mem) fn segment(
        &self,
        by: Audience,
        holder: Holder,
        permitted: bool,
        or: Reason,
    ) -> Result<Segments, JobError> {
        let inner = self.inner();
        if !holder.is(inner.device.id()) {
            return Err(JobError::of(Reason::ForeignDevice));
        }
        if inner.audience != by {
            return Err(JobError::of(match by {
                Audience::Dpu => Reason::NotForDma,
                Audience::Rdma => Reason::NotForRdma,
            }));
        }
        if !permitted {
            return Err(JobError::of(or));
        }
        Ok(Segments::one(inner.whole.part(self.0.from, self.0.len)))
    }
}

impl fmt::Debug for RemoteBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteBuf")
            .field("range", &(self.0.from..self.0.from + self.0.len))
            .field("of", &self.0.mmap)
            .finish()
    }
}

impl RemoteMmap {
    /// A piece of it.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the range ends before it begins or reaches past the memory. Of
    /// this process's own Mmap: `InUse` if a pool or an array has a part of the range, and peers may
    /// not write it; `BadState` if it is stopped.
    pub fn buf(&self, range: impl RangeBounds<usize>) -> Result<RemoteBuf> {
        const OP: &str = "RemoteMmap::buf";
        let len = self.len();
        let range = MmapInner::resolve(range, len).map_err(|range| {
            let text = MmapInner::refusal(&range, len, "the exported memory");
            Error::new(ErrorKind::InvalidValue, OP, text)
        })?;
        let own = match &self.0.own {
            None => None,
            Some(mmap) => match leased(mmap, range.clone()) {
                Ok(buf) => Some(buf),
                Err(error) if error.kind() == ErrorKind::InUse && mmap.access().peer_writable() => {
                    None
                }
                Err(error) => return Err(error.with_call(OP)),
            },
        };
        Ok(RemoteBuf(Arc::new(Piece {
            mmap: self.clone(),
            own,
            from: range.start,
            len: range.len(),
        })))
    }
}

/// What the Leases on a range of this process's own memory are taken on.
fn leased(mmap: &Mmap, range: Range<usize>) -> Result<Buf> {
    BufInventory::with_capacity(1).buf_filled(mmap, range)
}
