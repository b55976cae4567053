//! Operands of this process of whatever type, owned. They are apart from [`super::any`], and their
//! leases from `Reading` and `Writing`, because a node of a graph that copies costs 13 to 27
//! instructions more with those.

use super::leases::{Grow, IntoKept, Writing};
use super::marks::{
    CopyDestination, CopySource, Destination, MaybeDestination, MaybeSource, RdmaDestination,
    RdmaSource, Source,
};
use super::model::Place;
use super::model::sealed::{Operand, ReadFrom, Taken, WriteTo};
use super::rule::Rule;
use crate::device::Segments;
use crate::mem::buf::{Buf, BufSlice, Extent, Span};
use crate::mem::chain::{BufChain, ChainRead, ChainWrite};
use crate::mem::element::{ReadLease, WriteLease};
use crate::mem::handle::handles;
use crate::mem::mmap::Holder;

/// Leases of a Buf, or of a chain.
pub enum Local<B, C> {
    Buf(B),
    Chain(C),
}

impl<K, B: IntoKept<K>, C: IntoKept<K>> IntoKept<K> for Local<B, C> {
    #[inline(always)]
    fn kept(self) -> Option<K> {
        match self {
            Local::Buf(lease) => lease.kept(),
            Local::Chain(lease) => lease.kept(),
        }
    }
}

impl<B: Grow, C: Grow> Grow for Local<B, C> {
    #[inline(always)]
    fn grow(&self, by: usize) {
        match self {
            Local::Buf(lease) => lease.grow(by),
            Local::Chain(lease) => lease.grow(by),
        }
    }
}

/// Each: its name, its variants, and which operands it stands for.
macro_rules! operands {
    ($(
        $(#[$meta:meta])*
        $name:ident { $($(#[$about:meta])* $variant:ident($from:ty)),* } $($mark:ident),+;
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$about])* $variant($from),)*
        }

        $(
            impl From<$from> for $name {
                fn from(operand: $from) -> $name {
                    $name::$variant(operand)
                }
            }

            impl From<&$from> for $name {
                fn from(operand: &$from) -> $name {
                    $name::$variant(operand.clone())
                }
            }
        )*

        impl Operand for $name {
            #[inline(always)]
            fn place(&self) -> Place {
                Place::Local
            }

            #[inline(always)]
            fn is_single(&self) -> bool {
                !matches!(self, $name::Chain(_))
            }

            #[inline(always)]
            fn is_leased(&self) -> bool {
                match self {
                    $name::Chain(chain) => chain.is_leased(),
                    _ => true,
                }
            }

            #[inline(always)]
            fn span(&self) -> Option<Span> {
                match self {
                    $($name::$variant(operand) => Operand::span(operand),)*
                }
            }

            fn with_spans(&self, f: &mut dyn FnMut(&[Span])) {
                match self {
                    $($name::$variant(operand) => operand.with_spans(f),)*
                }
            }
        }

        $(impl $mark for $name {})+

        handles!($name);
    )*};
}

operands! {
    /// A [`Source`] of any type: it counts as a handle.
    AnySource {
        /// All of its data.
        Buf(Buf),
        /// A part of it.
        Slice(BufSlice),
        /// Gathered.
        Chain(BufChain)
    } Source, CopySource, MaybeSource, RdmaSource;

    /// A [`Destination`] of any type: it counts as a handle.
    AnyDestination {
        /// Its tailroom.
        Buf(Buf),
        /// Scattered.
        Chain(BufChain)
    } Destination, CopyDestination, MaybeDestination, RdmaDestination;
}

impl ReadFrom for AnySource {
    type Lease = Local<ReadLease, ChainRead>;

    #[inline(always)]
    fn most(&self) -> usize {
        match self {
            AnySource::Buf(buf) => buf.most(),
            AnySource::Slice(slice) => slice.most(),
            AnySource::Chain(chain) => chain.most(),
        }
    }

    fn data(&self) -> Extent {
        match self {
            AnySource::Buf(buf) => ReadFrom::data(buf),
            AnySource::Slice(slice) => slice.data(),
            AnySource::Chain(chain) => chain.data(),
        }
    }

    #[inline(always)]
    fn lease_data(&self, holder: Holder, rule: Rule) -> Taken<Self::Lease> {
        let local = |(lease, segments, len): (ReadLease, Segments, usize)| {
            (Local::Buf(lease), segments, len)
        };
        match self {
            AnySource::Buf(buf) => buf.lease_data(holder, rule).map(local),
            AnySource::Slice(slice) => slice.lease_data(holder, rule).map(local),
            AnySource::Chain(chain) => {
                let (lease, segments, len) = chain.lease_data(holder, rule)?;
                Ok((Local::Chain(lease), segments, len))
            }
        }
    }
}

impl WriteTo for AnyDestination {
    type Lease = Local<WriteLease, ChainWrite>;

    fn room(&self) -> Extent {
        match self {
            AnyDestination::Buf(buf) => buf.room(),
            AnyDestination::Chain(chain) => chain.room(),
        }
    }

    #[inline(always)]
    fn lease_room(&self, holder: Holder, rule: Rule) -> Taken<Self::Lease> {
        match self {
            AnyDestination::Buf(buf) => {
                let (lease, segments, room) = buf.lease_room(holder, rule)?;
                Ok((Local::Buf(lease), segments, room))
            }
            AnyDestination::Chain(chain) => {
                let (lease, segments, room) = chain.lease_room(holder, rule)?;
                Ok((Local::Chain(lease), segments, room))
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
