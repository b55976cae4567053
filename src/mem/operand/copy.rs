//! What a job may read from and write to: a Buf, a slice (source only), a chain; borrowed or owned.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]

use std::ops::Range;

use super::leases::{Grow, Reading, Writing};
use crate::device::Segments;
use crate::error::JobError;
use crate::mem::buf::{Buf, BufChain, BufSlice, ChainRead, ChainWrite, Extent};
use crate::mem::element::{ReadLease, WriteLease};
use crate::mem::mmap::Holder;

/// A source of a job: [`Buf`], [`BufSlice`] or [`BufChain`], or a reference to one.
pub trait Source: CopySource + sealed::Local {}

/// A destination of a job: [`Buf`] or [`BufChain`], or a reference to one.
pub trait Destination: CopyDestination + sealed::Local {}

/// A source of a copy: any [`Source`], or a [`RemoteBuf`](crate::RemoteBuf) that was exported to the DPU.
pub trait CopySource: sealed::Reads {}

/// A destination of a copy: any [`Destination`], or a [`RemoteBuf`](crate::RemoteBuf) that was exported to the DPU.
pub trait CopyDestination: sealed::Writes {}

impl<T: sealed::Reads + sealed::Local> Source for T {}
impl<T: sealed::Writes + sealed::Local> Destination for T {}
impl<T: sealed::Reads> CopySource for T {}
impl<T: sealed::Writes> CopyDestination for T {}

/// Whether a job is one piece on each side, of at most so many bytes, whatever the rooms are.
#[inline(always)]
pub(crate) fn surely_within<S: CopySource, D: CopyDestination>(
    src: &S,
    dst: &D,
    bytes: u64,
) -> bool {
    src.is_single() && dst.is_single() && src.most() as u64 <= bytes
}

/// The traits behind [`Source`] and [`Destination`], which nobody else implements.
pub mod sealed {
    use super::*;

    pub trait Spans {
        /// Calls `f` with the addresses of every Buf.
        fn each(&self, f: &mut dyn FnMut(Range<usize>));
    }

    /// Memory of this process alone, by its own right.
    pub trait Local {}

    pub trait Reads: Spans {
        type Lease: Into<Reading>;
        /// Whether its Leases keep jobs off that share its bytes.
        #[inline(always)]
        fn is_leased(&self) -> bool {
            true
        }
        /// Whether it is one piece, always.
        fn is_single(&self) -> bool;
        /// More bytes of data than this it cannot come to have.
        fn most(&self) -> usize;
        /// Its data now, without a Lease.
        fn data_extent(&self) -> Extent;
        /// Leases, Segments, and how many bytes of data.
        fn begin_read(&self, holder: Holder) -> Result<(Self::Lease, Segments, usize), JobError>;
    }

    pub trait Writes: Spans {
        type Lease: Into<Writing> + Grow;
        /// Whether its Leases keep jobs off that share its bytes.
        #[inline(always)]
        fn is_leased(&self) -> bool {
            true
        }
        /// Whether it is one piece, always.
        fn is_single(&self) -> bool;
        /// Its tailroom now, without a Lease.
        fn room_extent(&self) -> Extent;
        /// Leases, Segments, and how many bytes of tailroom.
        fn begin_write(&self, holder: Holder) -> Result<(Self::Lease, Segments, usize), JobError>;
        /// Whether this is a write Lease on it.
        fn is_leased_by(&self, lease: &Writing) -> bool;
    }
}

use sealed::{Local, Reads, Spans, Writes};

impl Local for Buf {}
impl Local for BufSlice {}
impl Local for BufChain {}
impl<T: Local> Local for &T {}

impl Spans for Buf {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        f(self.0.span());
    }
}

impl Spans for BufSlice {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        f(self.buf.0.span());
    }
}

impl Spans for BufChain {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        self.each_span(f);
    }
}

impl<T: Spans> Spans for &T {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        T::each(self, f);
    }
}

impl Reads for Buf {
    type Lease = ReadLease;

    #[inline(always)]
    fn is_single(&self) -> bool {
        true
    }

    #[inline(always)]
    fn most(&self) -> usize {
        self.0.len()
    }

    fn data_extent(&self) -> Extent {
        Extent::one(self.data_len())
    }

    #[inline(always)]
    fn begin_read(&self, holder: Holder) -> Result<(ReadLease, Segments, usize), JobError> {
        let lease = self.0.read()?;
        let segment = lease.whole(holder)?;
        Ok((lease, Segments::one(segment), segment.len()))
    }
}

impl Reads for BufSlice {
    type Lease = ReadLease;

    #[inline(always)]
    fn is_single(&self) -> bool {
        true
    }

    #[inline(always)]
    fn most(&self) -> usize {
        self.len
    }

    fn data_extent(&self) -> Extent {
        Extent::one(self.len)
    }

    #[inline(always)]
    fn begin_read(&self, holder: Holder) -> Result<(ReadLease, Segments, usize), JobError> {
        let lease = self.buf.0.read()?;
        let segment = lease.segment(holder, self.from, self.len)?;
        Ok((lease, Segments::one(segment), self.len))
    }
}

impl Reads for BufChain {
    type Lease = ChainRead;

    #[inline(always)]
    fn is_single(&self) -> bool {
        false
    }

    fn most(&self) -> usize {
        usize::MAX
    }

    fn data_extent(&self) -> Extent {
        BufChain::data_extent(self)
    }

    fn begin_read(&self, holder: Holder) -> Result<(ChainRead, Segments, usize), JobError> {
        BufChain::begin_read(self, holder)
    }
}

impl<T: Reads> Reads for &T {
    type Lease = T::Lease;

    #[inline(always)]
    fn is_leased(&self) -> bool {
        T::is_leased(self)
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        T::is_single(self)
    }

    #[inline(always)]
    fn most(&self) -> usize {
        T::most(self)
    }

    fn data_extent(&self) -> Extent {
        T::data_extent(self)
    }

    #[inline(always)]
    fn begin_read(&self, holder: Holder) -> Result<(T::Lease, Segments, usize), JobError> {
        T::begin_read(self, holder)
    }
}

impl Writes for Buf {
    type Lease = WriteLease;

    #[inline(always)]
    fn is_single(&self) -> bool {
        true
    }

    fn room_extent(&self) -> Extent {
        Extent::one(self.tailroom())
    }

    #[inline(always)]
    fn begin_write(&self, holder: Holder) -> Result<(WriteLease, Segments, usize), JobError> {
        let lease = self.0.write()?;
        let segment = lease.segment(holder)?;
        Ok((lease, Segments::one(segment), segment.len()))
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        matches!(lease, Writing::Buf(lease) if std::ptr::eq(&**lease, &*self.0))
    }
}

impl Writes for BufChain {
    type Lease = ChainWrite;

    #[inline(always)]
    fn is_single(&self) -> bool {
        false
    }

    fn room_extent(&self) -> Extent {
        BufChain::room_extent(self)
    }

    fn begin_write(&self, holder: Holder) -> Result<(ChainWrite, Segments, usize), JobError> {
        BufChain::begin_write(self, holder)
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        matches!(lease, Writing::Chain(lease) if lease.is_of(self))
    }
}

impl<T: Writes> Writes for &T {
    type Lease = T::Lease;

    #[inline(always)]
    fn is_leased(&self) -> bool {
        T::is_leased(self)
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        T::is_single(self)
    }

    fn room_extent(&self) -> Extent {
        T::room_extent(self)
    }

    #[inline(always)]
    fn begin_write(&self, holder: Holder) -> Result<(T::Lease, Segments, usize), JobError> {
        T::begin_write(self, holder)
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        T::is_leased_by(self, lease)
    }
}
