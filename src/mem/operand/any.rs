//! Operands of whatever kind, owned: what a node of a graph keeps from run to run.

use std::ops::Range;

use super::copy::sealed::{Local, Reads, Spans, Writes};
use super::leases::{Grow, Reading, Writing};
use super::rdma::sealed as rdma;
use super::side::sealed::{MayRead, MayWrite};
use crate::device::Segments;
use crate::error::JobError;
use crate::mem::buf::{Buf, BufChain, BufSlice, ChainRead, ChainWrite, Extent};
use crate::mem::element::{ReadLease, WriteLease};
use crate::mem::handle::{Handle, handles};
use crate::mem::mmap::Holder;
use crate::mem::remote::{RemoteBuf, RemoteRead, RemoteWrite};

/// A [`Source`](crate::Source) of any kind: it counts as a handle.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnySource {
    /// All of its data.
    Buf(Buf),
    /// A part of it.
    Slice(BufSlice),
    /// Gathered.
    Chain(BufChain),
}

/// A [`Destination`](crate::Destination) of any kind: it counts as a handle.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyDestination {
    /// Its tailroom.
    Buf(Buf),
    /// Scattered.
    Chain(BufChain),
}

/// An operand, or none.
#[derive(Clone, Debug, Default)]
pub struct MaybeAny<T>(Option<T>);

macro_rules! from {
    ($($from:ty => $to:ident::$variant:ident;)*) => {$(
        impl From<$from> for $to {
            fn from(operand: $from) -> $to {
                $to::$variant(operand)
            }
        }

        impl From<&$from> for $to {
            fn from(operand: &$from) -> $to {
                $to::$variant(operand.clone())
            }
        }

        impl From<$from> for MaybeAny<$to> {
            fn from(operand: $from) -> MaybeAny<$to> {
                MaybeAny(Some(operand.into()))
            }
        }

        impl From<&$from> for MaybeAny<$to> {
            fn from(operand: &$from) -> MaybeAny<$to> {
                MaybeAny(Some(operand.into()))
            }
        }
    )*};
}

from! {
    Buf => AnySource::Buf;
    BufSlice => AnySource::Slice;
    BufChain => AnySource::Chain;
    Buf => AnyDestination::Buf;
    BufChain => AnyDestination::Chain;
}

impl From<RemoteBuf> for MaybeAny<RemoteBuf> {
    fn from(remote: RemoteBuf) -> MaybeAny<RemoteBuf> {
        MaybeAny(Some(remote))
    }
}

impl From<&RemoteBuf> for MaybeAny<RemoteBuf> {
    fn from(remote: &RemoteBuf) -> MaybeAny<RemoteBuf> {
        MaybeAny(Some(remote.clone()))
    }
}

impl<T> From<()> for MaybeAny<T> {
    fn from((): ()) -> MaybeAny<T> {
        MaybeAny(None)
    }
}

/// The read Leases of an [`AnySource`]. It is never of another process, which each node of a run would ask again when it gives them back.
pub enum AnyRead {
    Buf(ReadLease),
    Chain(ChainRead),
}

/// The write Leases of an [`AnyDestination`].
pub enum AnyWrite {
    Buf(WriteLease),
    Chain(ChainWrite),
}

impl From<AnyRead> for Reading {
    #[inline(always)]
    fn from(lease: AnyRead) -> Reading {
        match lease {
            AnyRead::Buf(lease) => Reading::Buf(lease),
            AnyRead::Chain(lease) => Reading::Chain(lease),
        }
    }
}

impl From<AnyWrite> for Writing {
    #[inline(always)]
    fn from(lease: AnyWrite) -> Writing {
        match lease {
            AnyWrite::Buf(lease) => Writing::Buf(lease),
            AnyWrite::Chain(lease) => Writing::Chain(lease),
        }
    }
}

impl Grow for AnyWrite {
    #[inline(always)]
    fn grow(&self, by: usize) {
        match self {
            AnyWrite::Buf(lease) => lease.grow(by),
            AnyWrite::Chain(lease) => lease.grow(by),
        }
    }
}

impl Local for AnySource {}
impl Local for AnyDestination {}

impl Spans for AnySource {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        match self {
            AnySource::Buf(buf) => buf.each(f),
            AnySource::Slice(slice) => slice.each(f),
            AnySource::Chain(chain) => chain.each(f),
        }
    }
}

impl Reads for AnySource {
    type Lease = AnyRead;

    #[inline(always)]
    fn is_single(&self) -> bool {
        !matches!(self, AnySource::Chain(_))
    }

    #[inline(always)]
    fn most(&self) -> usize {
        match self {
            AnySource::Buf(buf) => buf.most(),
            AnySource::Slice(slice) => slice.most(),
            AnySource::Chain(chain) => chain.most(),
        }
    }

    fn data_extent(&self) -> Extent {
        match self {
            AnySource::Buf(buf) => Reads::data_extent(buf),
            AnySource::Slice(slice) => slice.data_extent(),
            AnySource::Chain(chain) => Reads::data_extent(chain),
        }
    }

    #[inline(always)]
    fn begin_read(&self, holder: Holder) -> Result<(AnyRead, Segments, usize), JobError> {
        let read = |(lease, segments, len): (ReadLease, Segments, usize)| {
            (AnyRead::Buf(lease), segments, len)
        };
        match self {
            AnySource::Buf(buf) => buf.begin_read(holder).map(read),
            AnySource::Slice(slice) => slice.begin_read(holder).map(read),
            AnySource::Chain(chain) => {
                let (lease, segments, len) = Reads::begin_read(chain, holder)?;
                Ok((AnyRead::Chain(lease), segments, len))
            }
        }
    }
}

impl Spans for AnyDestination {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        match self {
            AnyDestination::Buf(buf) => buf.each(f),
            AnyDestination::Chain(chain) => chain.each(f),
        }
    }
}

impl Writes for AnyDestination {
    type Lease = AnyWrite;

    #[inline(always)]
    fn is_single(&self) -> bool {
        matches!(self, AnyDestination::Buf(_))
    }

    fn room_extent(&self) -> Extent {
        match self {
            AnyDestination::Buf(buf) => buf.room_extent(),
            AnyDestination::Chain(chain) => Writes::room_extent(chain),
        }
    }

    #[inline(always)]
    fn begin_write(&self, holder: Holder) -> Result<(AnyWrite, Segments, usize), JobError> {
        match self {
            AnyDestination::Buf(buf) => {
                let (lease, segments, room): (WriteLease, Segments, usize) =
                    buf.begin_write(holder)?;
                Ok((AnyWrite::Buf(lease), segments, room))
            }
            AnyDestination::Chain(chain) => {
                let (lease, segments, room) = Writes::begin_write(chain, holder)?;
                Ok((AnyWrite::Chain(lease), segments, room))
            }
        }
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        match self {
            AnyDestination::Buf(buf) => buf.is_leased_by(lease),
            AnyDestination::Chain(chain) => chain.is_leased_by(lease),
        }
    }
}

impl<T: Spans> Spans for MaybeAny<T> {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        if let Some(operand) = &self.0 {
            operand.each(f);
        }
    }
}

impl MayRead for MaybeAny<AnySource> {
    fn extent_now(&self) -> Option<Extent> {
        self.0.as_ref().map(Reads::data_extent)
    }

    fn may_read(&self, holder: Holder) -> Result<(Option<Reading>, Segments, usize), JobError> {
        match &self.0 {
            Some(operand) => operand.may_read(holder),
            None => ().may_read(holder),
        }
    }
}

impl MayWrite for MaybeAny<AnyDestination> {
    fn extent_now(&self) -> Option<Extent> {
        self.0.as_ref().map(Writes::room_extent)
    }

    fn may_write(&self, holder: Holder) -> Result<(Option<Writing>, Segments, usize), JobError> {
        match &self.0 {
            Some(operand) => operand.may_write(holder),
            None => ().may_write(holder),
        }
    }

    fn has(&self, lease: &Writing) -> bool {
        self.0
            .as_ref()
            .is_some_and(|operand| operand.is_leased_by(lease))
    }
}

impl rdma::Gives for MaybeAny<AnySource> {
    type Lease = Option<Reading>;

    fn is_none(&self) -> bool {
        self.0.is_none()
    }

    fn is_single(&self) -> bool {
        self.0.as_ref().is_none_or(Reads::is_single)
    }

    fn most(&self) -> usize {
        self.0.as_ref().map_or(0, Reads::most)
    }

    fn extent(&self) -> Extent {
        self.extent_now().unwrap_or_default()
    }

    fn begin_give(
        &self,
        holder: Holder,
        _atomic: bool,
    ) -> Result<(Option<Reading>, Segments, usize), JobError> {
        self.may_read(holder)
    }

    fn held(lease: Option<Reading>) -> Option<Reading> {
        lease
    }
}

impl rdma::Gets for MaybeAny<AnyDestination> {
    type Lease = Option<Writing>;

    fn is_none(&self) -> bool {
        self.0.is_none()
    }

    fn is_single(&self) -> bool {
        self.0.as_ref().is_none_or(Writes::is_single)
    }

    fn extent(&self) -> Extent {
        self.extent_now().unwrap_or_default()
    }

    fn begin_get(&self, holder: Holder) -> Result<(Option<Writing>, Segments, usize), JobError> {
        self.may_write(holder)
    }

    fn grow(lease: &Option<Writing>, by: usize) {
        if let Some(lease) = lease {
            lease.grow(by);
        }
    }

    fn held(lease: Option<Writing>) -> Option<Writing> {
        lease
    }
}

impl rdma::Remote for MaybeAny<RemoteBuf> {}

impl rdma::Gives for MaybeAny<RemoteBuf> {
    type Lease = Option<RemoteRead>;
    const LEASED: bool = <RemoteBuf as rdma::Gives>::LEASED;

    fn is_none(&self) -> bool {
        self.0.is_none()
    }

    fn is_single(&self) -> bool {
        true
    }

    fn most(&self) -> usize {
        self.0.as_ref().map_or(0, rdma::Gives::most)
    }

    fn extent(&self) -> Extent {
        self.0.as_ref().map(rdma::Gives::extent).unwrap_or_default()
    }

    fn begin_give(
        &self,
        holder: Holder,
        atomic: bool,
    ) -> Result<(Option<RemoteRead>, Segments, usize), JobError> {
        let Some(remote) = &self.0 else {
            return Ok((None, Segments::none(), 0));
        };
        let (lease, segments, len) = remote.begin_give(holder, atomic)?;
        Ok((Some(lease), segments, len))
    }

    fn held(lease: Option<RemoteRead>) -> Option<Reading> {
        lease.map(Reading::from)
    }
}

impl rdma::Gets for MaybeAny<RemoteBuf> {
    type Lease = Option<RemoteWrite>;
    const LEASED: bool = <RemoteBuf as rdma::Gets>::LEASED;

    fn is_none(&self) -> bool {
        self.0.is_none()
    }

    fn is_single(&self) -> bool {
        true
    }

    fn extent(&self) -> Extent {
        self.0.as_ref().map(rdma::Gets::extent).unwrap_or_default()
    }

    fn begin_get(
        &self,
        holder: Holder,
    ) -> Result<(Option<RemoteWrite>, Segments, usize), JobError> {
        let Some(remote) = &self.0 else {
            return Ok((None, Segments::none(), 0));
        };
        let (lease, segments, len) = remote.begin_get(holder)?;
        Ok((Some(lease), segments, len))
    }

    /// It has no rooms.
    fn grow(_lease: &Option<RemoteWrite>, _by: usize) {}

    fn held(lease: Option<RemoteWrite>) -> Option<Writing> {
        lease.map(Writing::from)
    }
}

handles!(AnySource, AnyDestination);

impl<T: Clone + Send + 'static> Handle for MaybeAny<T> {
    type Owned = MaybeAny<T>;

    fn cloned(&self) -> MaybeAny<T> {
        self.clone()
    }
}
