//! A piece of a chain: what a job reads or writes of it, and the lease that it takes.

use std::fmt;

use crate::device::Segment;
use crate::error::{JobError, Reason};
use crate::mem::buf::{Buf, BufSlice, Span};
use crate::mem::element::{ReadLease, WriteLease};
use crate::mem::mmap::Holder;
use crate::mem::remote::RemoteBuf;

/// The lease of a piece, if it takes one, and its bytes as the device sees them. The lease is
/// returned even if the bytes are refused, since its drop may run the application's code, which
/// must not run while the chain is locked.
pub(super) type Leased<L> = (Option<L>, Result<Segment, JobError>);

/// One piece of a [`BufChain`](crate::mem::BufChain): a Buf, a slice of one, or a range of imported
/// memory.
///
/// ```
/// use tokio_doca::mem::{BufChain, ChainPiece};
/// # use tokio_doca::{BufPool, Device, Mmap};
///
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let (head, body) = (pool.try_alloc()?, pool.try_alloc()?);
/// # head.extend_from_slice(b"head")?;
/// # body.extend_from_slice(b"body")?;
/// let pieces: [ChainPiece; 2] = [head.into(), body.slice(1..3)?.into()];
/// let chain = BufChain::with_capacity(2);
/// for piece in pieces {
///     chain.push(piece)?;
/// }
/// assert_eq!((chain.len(), chain.data_len()), (2, 6));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
pub struct ChainPiece(Repr);

#[derive(Clone)]
enum Repr {
    Whole(Buf),
    Slice(BufSlice),
    Remote(RemoteBuf),
}

impl From<&Buf> for ChainPiece {
    fn from(buf: &Buf) -> ChainPiece {
        ChainPiece(Repr::Whole(buf.clone()))
    }
}

impl From<Buf> for ChainPiece {
    fn from(buf: Buf) -> ChainPiece {
        ChainPiece(Repr::Whole(buf))
    }
}

impl From<BufSlice> for ChainPiece {
    fn from(slice: BufSlice) -> ChainPiece {
        ChainPiece(Repr::Slice(slice))
    }
}

impl From<&RemoteBuf> for ChainPiece {
    fn from(range: &RemoteBuf) -> ChainPiece {
        ChainPiece(Repr::Remote(range.clone()))
    }
}

impl From<RemoteBuf> for ChainPiece {
    fn from(range: RemoteBuf) -> ChainPiece {
        ChainPiece(Repr::Remote(range))
    }
}

impl ChainPiece {
    /// Returns how many bytes of the piece a job reads.
    pub(super) fn data_len(&self) -> usize {
        match &self.0 {
            Repr::Whole(buf) => buf.data_len(),
            Repr::Slice(slice) => slice.len(),
            Repr::Remote(range) => range.len(),
        }
    }

    /// Returns how many bytes a job can write to the piece.
    pub(super) fn free(&self) -> usize {
        match &self.0 {
            Repr::Whole(buf) => buf.tailroom(),
            Repr::Slice(slice) => slice.buf.tailroom(),
            Repr::Remote(range) => range.len(),
        }
    }

    /// Returns the addresses of the piece: those of its whole Buf, or of its range.
    pub(super) fn span(&self) -> Span {
        match &self.0 {
            Repr::Whole(buf) => buf.span(),
            Repr::Slice(slice) => slice.buf.span(),
            Repr::Remote(range) => range.span(),
        }
    }

    /// Returns true if the piece is imported memory.
    pub(super) fn is_imported(&self) -> bool {
        matches!(self.0, Repr::Remote(_))
    }

    /// Returns true if jobs on the piece take a lease.
    pub(super) fn is_leased(&self) -> bool {
        match &self.0 {
            Repr::Whole(_) | Repr::Slice(_) => true,
            Repr::Remote(range) => range.own().is_some(),
        }
    }

    /// Takes the lease for reading, if there is one. Returns the bytes as the device sees them.
    ///
    /// # Errors
    ///
    /// As for a job on the Buf, the slice or the range by itself.
    pub(super) fn read(&self, holder: Holder) -> Result<Leased<ReadLease>, JobError> {
        let local = |buf: &Buf, part: Option<(usize, usize)>| {
            let lease = buf.0.read()?;
            let segment = match part {
                Some((from, len)) => lease.segment(holder, from, len),
                None => lease.whole(holder),
            };
            Ok((Some(lease), segment))
        };
        match &self.0 {
            Repr::Whole(buf) => local(buf, None),
            Repr::Slice(slice) => local(&slice.buf, Some((slice.from, slice.len))),
            Repr::Remote(range) => {
                let segment = range.readable(holder)?;
                let lease = range.own().map(|buf| buf.0.read()).transpose()?;
                Ok((lease, Ok(segment)))
            }
        }
    }

    /// Takes the lease for writing, if there is one. Returns the bytes that a job may write, as the
    /// device sees them.
    ///
    /// # Errors
    ///
    /// As [`ChainPiece::read`], and [`Reason::SliceAsDestination`] for a slice.
    pub(super) fn write(&self, holder: Holder) -> Result<Leased<WriteLease>, JobError> {
        match &self.0 {
            Repr::Whole(buf) => {
                let lease = buf.0.write()?;
                let segment = lease.segment(holder);
                Ok((Some(lease), segment))
            }
            Repr::Slice(_) => Err(JobError::of(Reason::SliceAsDestination)),
            Repr::Remote(range) => {
                let segment = range.writable(holder)?;
                let lease = range.own().map(|buf| buf.0.write()).transpose()?;
                Ok((lease, Ok(segment)))
            }
        }
    }
}

impl fmt::Debug for ChainPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Whole(buf) => buf.fmt(f),
            Repr::Slice(slice) => slice.fmt(f),
            Repr::Remote(range) => range.fmt(f),
        }
    }
}
