//! Traits for what jobs read and for what they write, implemented for each type of operand.
//!
//! The public traits of [`super::marks`] say which operands an operation takes; these do the work.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]

use super::leases::{Grow, IntoKept, Reading, Writing};
use super::rule::Rule;
use crate::device::Segments;
use crate::error::JobError;
use crate::mem::buf::{Buf, BufSlice, Extent, Span};
use crate::mem::chain::{BufChain, ChainRead, ChainWrite};
use crate::mem::element::{ReadLease, WriteLease};
use crate::mem::mmap::Holder;
use crate::mem::remote::{RemoteBuf, RemoteRead, RemoteWrite};

/// Where the memory of an operand is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The job has no such side.
    None,
    /// Memory of this process: leases keep away other jobs on the same bytes.
    Local,
    /// Imported memory: others may touch it at any time.
    Remote,
}

/// The traits behind the public ones, which only this crate implements.
pub mod sealed {
    use super::*;

    /// An operand: one side of a job, its source or its destination.
    pub trait Operand {
        fn reach(&self) -> Reach;
        /// Returns true if the operand is always one piece at most.
        #[inline(always)]
        fn is_single(&self) -> bool {
            true
        }
        /// Returns true if jobs take leases on all of the operand. For a chain, called under its
        /// lease.
        #[inline(always)]
        fn is_leased(&self) -> bool {
            true
        }
        /// Returns the offset of the operand in the exported memory, if it is imported.
        fn offset(&self) -> usize {
            0
        }
        /// Returns the addresses of the operand if it is one piece; `None` for a list.
        fn span(&self) -> Option<Span>;
        /// Calls `f` with the spans of the operand's non-empty pieces, sorted. A list is locked
        /// meanwhile.
        fn with_spans(&self, f: &mut dyn FnMut(&[Span])) {
            f(self.span().as_ref().map_or(&[], Span::as_list));
        }
    }

    /// An operand that a job reads.
    pub trait ReadFrom: Operand {
        type Lease: IntoKept<Reading>;
        /// Returns the maximum number of bytes of data that the operand can ever have.
        fn most(&self) -> usize;
        /// Returns the extent of the operand's data now, without a lease.
        fn data(&self) -> Extent;
        /// Takes the leases. Also returns the segments and the number of bytes.
        fn lease_data(&self, holder: Holder, rule: Rule) -> LeasedOperand<Self::Lease>;
    }

    /// An operand that a job writes.
    pub trait WriteTo: Operand {
        type Lease: IntoKept<Writing> + Grow;
        /// Returns the extent of the operand's tailroom now, without a lease.
        fn tail_extent(&self) -> Extent;
        /// Takes the leases. Also returns the segments and the number of bytes.
        fn lease_tail(&self, holder: Holder, rule: Rule) -> LeasedOperand<Self::Lease>;
        /// Returns true if `_lease` is a write lease on the operand.
        fn is_leased_by(&self, _lease: &Writing) -> bool {
            false
        }
    }

    /// The leases, the segments that they are on, and the number of bytes.
    pub type LeasedOperand<L> = Result<(L, Segments, usize), JobError>;
}

use sealed::{LeasedOperand, Operand, ReadFrom, WriteTo};

impl Operand for Buf {
    #[inline(always)]
    fn reach(&self) -> Reach {
        Reach::Local
    }

    #[inline(always)]
    fn span(&self) -> Option<Span> {
        Some(Buf::span(self))
    }
}

impl ReadFrom for Buf {
    type Lease = ReadLease;

    #[inline(always)]
    fn most(&self) -> usize {
        self.0.len()
    }

    fn data(&self) -> Extent {
        Extent::one(self.data_len())
    }

    #[inline(always)]
    fn lease_data(&self, holder: Holder, _rule: Rule) -> LeasedOperand<ReadLease> {
        let lease = self.0.read()?;
        let segment = lease.whole(holder)?;
        Ok((lease, Segments::one(segment), segment.len()))
    }
}

impl WriteTo for Buf {
    type Lease = WriteLease;

    fn tail_extent(&self) -> Extent {
        Extent::one(self.tailroom())
    }

    #[inline(always)]
    fn lease_tail(&self, holder: Holder, _rule: Rule) -> LeasedOperand<WriteLease> {
        let lease = self.0.write()?;
        let segment = lease.segment(holder)?;
        Ok((lease, Segments::one(segment), segment.len()))
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        matches!(lease, Writing::Buf(lease) if std::ptr::eq(&**lease, &*self.0))
    }
}

impl Operand for BufSlice {
    #[inline(always)]
    fn reach(&self) -> Reach {
        Reach::Local
    }

    #[inline(always)]
    fn span(&self) -> Option<Span> {
        Some(self.buf.span())
    }
}

impl ReadFrom for BufSlice {
    type Lease = ReadLease;

    #[inline(always)]
    fn most(&self) -> usize {
        self.len
    }

    fn data(&self) -> Extent {
        Extent::one(self.len)
    }

    #[inline(always)]
    fn lease_data(&self, holder: Holder, _rule: Rule) -> LeasedOperand<ReadLease> {
        let lease = self.buf.0.read()?;
        let segment = lease.segment(holder, self.from, self.len)?;
        Ok((lease, Segments::one(segment), self.len))
    }
}

impl Operand for BufChain {
    #[inline(always)]
    fn reach(&self) -> Reach {
        Reach::Local
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        false
    }

    fn is_leased(&self) -> bool {
        BufChain::is_leased(self)
    }

    #[inline(always)]
    fn span(&self) -> Option<Span> {
        None
    }

    fn with_spans(&self, f: &mut dyn FnMut(&[Span])) {
        BufChain::with_spans(self, f);
    }
}

impl ReadFrom for BufChain {
    type Lease = ChainRead;

    fn most(&self) -> usize {
        usize::MAX
    }

    fn data(&self) -> Extent {
        self.data_extent()
    }

    fn lease_data(&self, holder: Holder, rule: Rule) -> LeasedOperand<ChainRead> {
        self.begin_read(holder, rule == Rule::Copy)
    }
}

impl WriteTo for BufChain {
    type Lease = ChainWrite;

    fn tail_extent(&self) -> Extent {
        self.extent_of_tail()
    }

    fn lease_tail(&self, holder: Holder, rule: Rule) -> LeasedOperand<ChainWrite> {
        self.begin_write(holder, rule == Rule::Copy)
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        matches!(lease, Writing::Chain(lease) if lease.is_of(self))
    }
}

impl Operand for RemoteBuf {
    #[inline(always)]
    fn reach(&self) -> Reach {
        Reach::Remote
    }

    #[inline(always)]
    fn is_leased(&self) -> bool {
        self.own().is_some()
    }

    fn offset(&self) -> usize {
        RemoteBuf::offset(self)
    }

    #[inline(always)]
    fn span(&self) -> Option<Span> {
        Some(RemoteBuf::span(self))
    }
}

impl ReadFrom for RemoteBuf {
    type Lease = RemoteRead;

    #[inline(always)]
    fn most(&self) -> usize {
        self.len()
    }

    fn data(&self) -> Extent {
        Extent::one(self.len())
    }

    /// An atomic takes a read lease on memory of this process, as an atomic of a Buf does, since
    /// others may write there anyway.
    #[inline(always)]
    fn lease_data(&self, holder: Holder, rule: Rule) -> LeasedOperand<RemoteRead> {
        let segment = match rule {
            Rule::Atomic => self.atomic(holder)?,
            _ => self.readable(holder)?,
        };
        let lease = RemoteRead::begin(self)?;
        Ok((lease, Segments::one(segment), segment.len()))
    }
}

/// A range has no headroom and no tailroom: it is written from its start on.
impl WriteTo for RemoteBuf {
    type Lease = RemoteWrite;

    fn tail_extent(&self) -> Extent {
        Extent::one(self.len())
    }

    #[inline(always)]
    fn lease_tail(&self, holder: Holder, _rule: Rule) -> LeasedOperand<RemoteWrite> {
        let segment = self.writable(holder)?;
        let lease = RemoteWrite::begin(self)?;
        Ok((lease, Segments::one(segment), segment.len()))
    }
}

/// `()` is an absent operand, which has no bytes.
impl Operand for () {
    #[inline(always)]
    fn reach(&self) -> Reach {
        Reach::None
    }

    #[inline(always)]
    fn span(&self) -> Option<Span> {
        Some(Span::local(0..0))
    }
}

impl ReadFrom for () {
    type Lease = ();

    #[inline(always)]
    fn most(&self) -> usize {
        0
    }

    fn data(&self) -> Extent {
        Extent::default()
    }

    #[inline(always)]
    fn lease_data(&self, _holder: Holder, _rule: Rule) -> LeasedOperand<()> {
        Ok(((), Segments::none(), 0))
    }
}

impl WriteTo for () {
    type Lease = ();

    fn tail_extent(&self) -> Extent {
        Extent::default()
    }

    #[inline(always)]
    fn lease_tail(&self, _holder: Holder, _rule: Rule) -> LeasedOperand<()> {
        Ok(((), Segments::none(), 0))
    }
}

impl<T: Operand> Operand for &T {
    #[inline(always)]
    fn reach(&self) -> Reach {
        T::reach(self)
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        T::is_single(self)
    }

    #[inline(always)]
    fn is_leased(&self) -> bool {
        T::is_leased(self)
    }

    fn offset(&self) -> usize {
        T::offset(self)
    }

    #[inline(always)]
    fn span(&self) -> Option<Span> {
        T::span(self)
    }

    fn with_spans(&self, f: &mut dyn FnMut(&[Span])) {
        T::with_spans(self, f);
    }
}

impl<T: ReadFrom> ReadFrom for &T {
    type Lease = T::Lease;

    #[inline(always)]
    fn most(&self) -> usize {
        T::most(self)
    }

    fn data(&self) -> Extent {
        T::data(self)
    }

    #[inline(always)]
    fn lease_data(&self, holder: Holder, rule: Rule) -> LeasedOperand<T::Lease> {
        T::lease_data(self, holder, rule)
    }
}

impl<T: WriteTo> WriteTo for &T {
    type Lease = T::Lease;

    fn tail_extent(&self) -> Extent {
        T::tail_extent(self)
    }

    #[inline(always)]
    fn lease_tail(&self, holder: Holder, rule: Rule) -> LeasedOperand<T::Lease> {
        T::lease_tail(self, holder, rule)
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        T::is_leased_by(self, lease)
    }
}
