//! A range of imported memory.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::mmap::{RemoteMmap, RemoteMmapInner};
use super::own::Own;
use crate::device::{Audience, Segment};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::mem::buf::{Buf, Span};
use crate::mem::mmap::{Holder, MmapInner};
use crate::mem::ranges::Busy;

/// A plain range of a [`RemoteMmap`], without headroom and tailroom. Clones are the same range.
///
/// A copy or a remote operation reads all of the range, or writes it from its start on. (DOCA gives
/// remote descriptors headroom, data and tailroom too, which makes a read from a fresh one silently
/// empty.)
///
/// A range is a few words in size. Making, slicing and cloning one allocate nothing, so that a
/// service can take another range for each job. The exception is memory of this process that it
/// imported itself ([`RemoteMmap::is_own`]). Such an import has descriptors for 16 ranges that are
/// alive at once; whenever these are used up, it adds a table of twice the size of the last. A job
/// in flight counts as a range.
///
/// ```
/// use tokio_doca::{Device, Mmap, mem::{Access, RemoteBuf, RemoteMmap}};
///
/// # let device = Device::open_default()?;
/// # let access = Access::LOCAL_READ_WRITE | Access::RDMA_READ;
/// # let mmap = Mmap::builder().device(&device).access(access).alloc(4096)?;
/// # let blob = mmap.export_rdma(&device)?;
/// let remote = RemoteMmap::from_export(&device, &blob).wait()?;
/// let page: RemoteBuf = remote.buf(1024..2048)?;
/// let head = page.slice(..16)?;                       // of the page: bytes 1024 to 1039
/// assert_eq!((page.len(), head.len()), (1024, 16));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
pub struct RemoteBuf {
    mmap: RemoteMmap,
    /// The Buf on which leases are taken, if the range is memory of this process that takes any.
    own: Option<Buf>,
    /// Its bytes, as the device knows them.
    segment: Segment,
}

impl RemoteBuf {
    /// Returns the number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.segment.len()
    }

    /// Returns true if the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the offset of the range in the exported memory.
    pub(in crate::mem) fn offset(&self) -> usize {
        self.segment.addr().addr().get() - self.inner().whole.addr().addr().get()
    }

    /// Returns the imported memory that this is a range of.
    #[inline(always)]
    pub fn mmap(&self) -> &RemoteMmap {
        &self.mmap
    }

    /// Returns a part of this range.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the range ends before it begins ([`Reason::RangeReversed`]), or reaches
    /// past the end ([`Reason::OutOfRange`]).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RemoteBuf, JobError> {
        let range = MmapInner::resolve(range, self.len())
            .map_err(|range| MmapInner::not_within(&range, self.len()))?;
        let from = self.offset() + range.start;
        // Leases of the part are on its bytes alone.
        let part = |(own, whole): (&Own, &Buf)| {
            // While `whole` exists no caller can claim its range or stop the Mmap, so this does not
            // fail.
            own.buf(from..from + range.len())
                .unwrap_or_else(|_| whole.clone())
        };
        let own = self.inner().own.as_deref().zip(self.own.as_ref());
        Ok(RemoteBuf {
            mmap: self.mmap.clone(),
            own: own.map(part),
            segment: self.segment.part(range.start, range.len()),
        })
    }

    /// Returns the addresses of its bytes.
    pub(in crate::mem) fn span(&self) -> Span {
        let start = self.segment.addr().addr().get();
        let space = match self.mmap.is_own() {
            true => 0,
            false => Arc::as_ptr(&self.mmap.0).addr(),
        };
        Span::of(space, start..start + self.len())
    }

    /// Returns the Buf on which leases are taken, if the range takes any.
    #[inline(always)]
    pub(in crate::mem) fn own(&self) -> Option<&Buf> {
        self.own.as_ref()
    }

    #[inline(always)]
    fn inner(&self) -> &RemoteMmapInner {
        &self.mmap.0
    }

    /// Returns the range as a segment for a job that reads it.
    ///
    /// # Errors
    ///
    /// Fails if the job's device did not import the memory, if the memory was exported for another
    /// use, or if its exporter does not let this peer read.
    #[inline(always)]
    pub(in crate::mem) fn readable(&self, holder: Holder) -> Result<Segment, JobError> {
        let may = |by: Audience| by.may_read(self.mmap.access());
        self.segment(holder, may, Reason::RemoteNotReadable)
    }

    /// Returns the range as a segment for an atomic. The errors are those of
    /// [`RemoteBuf::readable`].
    #[inline(always)]
    pub(in crate::mem) fn atomic(&self, holder: Holder) -> Result<Segment, JobError> {
        let may = |by: Audience| by.may_do_atomics(self.mmap.access());
        self.segment(holder, may, Reason::RemoteNotAtomic)
    }

    /// Returns the range as a segment for a job that writes it. The errors are those of
    /// [`RemoteBuf::readable`].
    #[inline(always)]
    pub(in crate::mem) fn writable(&self, holder: Holder) -> Result<Segment, JobError> {
        let may = |by: Audience| by.may_write(self.mmap.access());
        self.segment(holder, may, Reason::RemoteNotWritable)
    }

    #[inline(always)]
    fn segment(
        &self,
        holder: Holder,
        may: impl Fn(Audience) -> bool,
        or: Reason,
    ) -> Result<Segment, JobError> {
        let (inner, by) = (self.inner(), holder.audience());
        if !holder.is(inner.device.id()) {
            return Err(JobError::of(Reason::ForeignDevice));
        }
        if inner.audience != by {
            return Err(JobError::of(match by {
                Audience::Dpu => Reason::NotForDma,
                Audience::Rdma => Reason::NotForRdma,
            }));
        }
        match may(by) {
            true => Ok(self.segment),
            false => Err(JobError::of(or)),
        }
    }
}

impl fmt::Debug for RemoteBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.offset();
        f.debug_struct("RemoteBuf")
            .field("range", &(from..from + self.len()))
            .field("of", &self.mmap)
            .finish()
    }
}

impl RemoteMmap {
    /// Returns a range of this memory.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the range ends before it begins or reaches past the memory. If the memory
    /// is an Mmap of this process: `InUse` if a pool or an array has a part of the range, and peers
    /// may not write the Mmap; `BadState` if the Mmap is stopped.
    pub fn buf(&self, range: impl RangeBounds<usize>) -> Result<RemoteBuf> {
        const OP: &str = "RemoteMmap::buf";
        let len = self.len();
        let range = MmapInner::resolve(range, len).map_err(|range| {
            let text = MmapInner::refusal(&range, len, "the exported memory");
            Error::new(ErrorKind::InvalidValue, OP, text)
        })?;
        let own = match &self.0.own {
            None => None,
            Some(own) => match own.buf(range.clone()) {
                Ok(buf) => Some(buf),
                // Bufs on this memory lend no slices that a lease would protect.
                Err(Busy::InUse(_)) if own.mmap.access().peer_writable() => None,
                Err(busy) => return Err(busy.error(OP, &range)),
            },
        };
        Ok(RemoteBuf {
            mmap: self.clone(),
            own,
            segment: self.0.whole.part(range.start, range.len()),
        })
    }
}
