//! Operands of whatever kind, owned, of this process or of another one. The Leases of those that are of this process alone are
//! smaller: see [`super::any`].

use std::ops::Range;

use super::any::{AnyDestination, AnySource};
use super::copy::sealed::{Reads, Spans, Writes};
use super::leases::{Reading, Writing};
use crate::device::Segments;
use crate::error::JobError;
use crate::mem::buf::{Buf, BufChain, BufSlice, Extent};
use crate::mem::handle::Handle;
use crate::mem::mmap::Holder;
use crate::mem::remote::RemoteBuf;

/// An operand of this process, or a [`RemoteBuf`] that was exported to the DPU: it counts as a handle.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OrRemote<T> {
    /// Of this process.
    Local(T),
    /// Of another one.
    Remote(RemoteBuf),
}

macro_rules! from {
    ($($from:ty => $to:ty;)*) => {$(
        impl From<$from> for OrRemote<$to> {
            fn from(operand: $from) -> OrRemote<$to> {
                OrRemote::Local(operand.into())
            }
        }

        impl From<&$from> for OrRemote<$to> {
            fn from(operand: &$from) -> OrRemote<$to> {
                OrRemote::Local(operand.into())
            }
        }
    )*};
}

from! {
    Buf => AnySource;
    BufSlice => AnySource;
    BufChain => AnySource;
    Buf => AnyDestination;
    BufChain => AnyDestination;
}

impl<T> From<RemoteBuf> for OrRemote<T> {
    fn from(remote: RemoteBuf) -> OrRemote<T> {
        OrRemote::Remote(remote)
    }
}

impl<T> From<&RemoteBuf> for OrRemote<T> {
    fn from(remote: &RemoteBuf) -> OrRemote<T> {
        OrRemote::Remote(remote.clone())
    }
}

impl<T: Spans> Spans for OrRemote<T> {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        match self {
            OrRemote::Local(operand) => operand.each(f),
            OrRemote::Remote(remote) => remote.each(f),
        }
    }
}

impl<T: Reads> Reads for OrRemote<T> {
    type Lease = Reading;

    fn is_leased(&self) -> bool {
        matches!(self, OrRemote::Local(operand) if operand.is_leased())
    }

    fn is_single(&self) -> bool {
        match self {
            OrRemote::Local(operand) => operand.is_single(),
            OrRemote::Remote(remote) => Reads::is_single(remote),
        }
    }

    fn most(&self) -> usize {
        match self {
            OrRemote::Local(operand) => operand.most(),
            OrRemote::Remote(remote) => Reads::most(remote),
        }
    }

    fn data_extent(&self) -> Extent {
        match self {
            OrRemote::Local(operand) => operand.data_extent(),
            OrRemote::Remote(remote) => remote.data_extent(),
        }
    }

    fn begin_read(&self, holder: Holder) -> Result<(Reading, Segments, usize), JobError> {
        match self {
            OrRemote::Local(operand) => {
                let (lease, segments, len) = operand.begin_read(holder)?;
                Ok((lease.into(), segments, len))
            }
            OrRemote::Remote(remote) => {
                let (lease, segments, len) = remote.begin_read(holder)?;
                Ok((lease.into(), segments, len))
            }
        }
    }
}

impl<T: Writes> Writes for OrRemote<T> {
    type Lease = Writing;

    fn is_leased(&self) -> bool {
        matches!(self, OrRemote::Local(operand) if operand.is_leased())
    }

    fn is_single(&self) -> bool {
        match self {
            OrRemote::Local(operand) => operand.is_single(),
            OrRemote::Remote(remote) => Writes::is_single(remote),
        }
    }

    fn room_extent(&self) -> Extent {
        match self {
            OrRemote::Local(operand) => operand.room_extent(),
            OrRemote::Remote(remote) => remote.room_extent(),
        }
    }

    fn begin_write(&self, holder: Holder) -> Result<(Writing, Segments, usize), JobError> {
        match self {
            OrRemote::Local(operand) => {
                let (lease, segments, len) = operand.begin_write(holder)?;
                Ok((lease.into(), segments, len))
            }
            OrRemote::Remote(remote) => {
                let (lease, segments, len) = remote.begin_write(holder)?;
                Ok((lease.into(), segments, len))
            }
        }
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        match self {
            OrRemote::Local(operand) => operand.is_leased_by(lease),
            OrRemote::Remote(remote) => remote.is_leased_by(lease),
        }
    }
}

impl<T: Clone + Send + 'static> Handle for OrRemote<T> {
    type Owned = OrRemote<T>;

    fn cloned(&self) -> OrRemote<T> {
        self.clone()
    }
}
