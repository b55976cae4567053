//! Owned operands of any type, which a node of a graph keeps from run to run.

#![allow(unreachable_pub, reason = "the kinds are named by public aliases")]

use std::fmt;
use std::marker::PhantomData;

use super::leases::{IntoKept, Reading, Writing};
use super::marks::{
    CopyDestination, CopySource, Destination, MaybeDestination, MaybeRemote, MaybeSource,
    RdmaDestination, RdmaSource, Source,
};
use super::model::Reach;
use super::model::sealed::{LeasedOperand, Operand, ReadFrom, WriteTo};
use super::rule::Rule;
use crate::error::{JobError, Reason};
use crate::mem::buf::{Buf, BufSlice, Extent, Span};
use crate::mem::chain::BufChain;
use crate::mem::handle::Handle;
use crate::mem::mmap::Holder;
use crate::mem::remote::RemoteBuf;

/// An operand of one of several types, which the program chooses at run time. An operation can own
/// it ([`Op::owned`](crate::Op::owned)).
///
/// `K` says which types convert into it with `From`. There is an alias for each `K`: [`AnySource`],
/// [`AnyDestination`], [`AnyCopySource`], [`AnyCopyDestination`], [`MaybeAnySource`],
/// [`MaybeAnyDestination`] and [`MaybeAnyRemote`].
///
/// ```
/// use tokio_doca::mem::{AnySource, BufChain};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (part, dst) = (pool.alloc().await, pool.alloc().await);
/// # part.extend_from_slice(b"abc")?;
/// let chain = BufChain::with_capacity(2);
/// chain.push(&part)?;
/// chain.push(&part)?;
/// let sources: Vec<AnySource> = vec![part.slice(1..)?.into(), chain.into()];
/// for source in &sources {
///     dma.copy(source, &dst).await?;
/// }
/// assert_eq!(&dst.data()?[..], b"bcabcabc");
/// # Ok(())
/// # }
/// ```
pub struct Any<K>(One, PhantomData<fn() -> K>);

#[derive(Clone, Debug)]
enum One {
    None,
    Buf(Buf),
    Slice(BufSlice),
    Chain(BufChain),
    Remote(RemoteBuf),
}

/// Says which types of operands an [`Any`] can hold.
pub trait Kind {
    /// True if the operand may be absent: `()`.
    const NONE: bool;
    /// True if the operand may be a [`RemoteBuf`].
    const REMOTE: bool;
}

/// Defines each kind: its name, the alias of its [`Any`], the types that this `Any` can hold, and
/// the operand traits that it implements.
macro_rules! kinds {
    ($(
        $(#[$meta:meta])*
        $name:ident = $kind:ident(none: $none:literal, remote: $remote:literal)
            { $($from:ty => $one:expr),* } $($mark:ident),+;
    )*) => {$(
        $(#[$meta])*
        pub type $name = Any<$kind>;

        #[doc = concat!("The kind of a [`", stringify!($name), "`].")]
        #[derive(Debug)]
        pub enum $kind {}

        impl Kind for $kind {
            const NONE: bool = $none;
            const REMOTE: bool = $remote;
        }

        $(
            impl From<$from> for $name {
                fn from(operand: $from) -> $name {
                    let one: fn($from) -> One = $one;
                    Any(one(operand), PhantomData)
                }
            }

            impl From<&$from> for $name {
                fn from(operand: &$from) -> $name {
                    operand.cloned().into()
                }
            }
        )*

        $(impl $mark for $name {})+
    )*};
}

kinds! {
    /// A [`Source`] of any type.
    AnySource = SourceKind(none: false, remote: false) {
        Buf => One::Buf, BufSlice => One::Slice, BufChain => One::Chain
    } Source, CopySource, MaybeSource, RdmaSource;

    /// A [`Destination`] of any type.
    AnyDestination = DestinationKind(none: false, remote: false) {
        Buf => One::Buf, BufChain => One::Chain
    } Destination, CopyDestination, MaybeDestination, RdmaDestination;

    /// A [`CopySource`] of any type.
    AnyCopySource = CopySourceKind(none: false, remote: true) {
        Buf => One::Buf, BufSlice => One::Slice, BufChain => One::Chain, RemoteBuf => One::Remote,
        AnySource => |any| any.0
    } CopySource;

    /// A [`CopyDestination`] of any type.
    AnyCopyDestination = CopyDestinationKind(none: false, remote: true) {
        Buf => One::Buf, BufChain => One::Chain, RemoteBuf => One::Remote,
        AnyDestination => |any| any.0
    } CopyDestination;

    /// A [`MaybeSource`] of any type.
    MaybeAnySource = MaybeSourceKind(none: true, remote: false) {
        Buf => One::Buf, BufSlice => One::Slice, BufChain => One::Chain, () => |()| One::None,
        AnySource => |any| any.0
    } MaybeSource, RdmaSource;

    /// A [`MaybeDestination`] of any type.
    MaybeAnyDestination = MaybeDestinationKind(none: true, remote: false) {
        Buf => One::Buf, BufChain => One::Chain, () => |()| One::None,
        AnyDestination => |any| any.0
    } MaybeDestination, RdmaDestination;

    /// A [`MaybeRemote`] of any type.
    MaybeAnyRemote = MaybeRemoteKind(none: true, remote: true) {
        RemoteBuf => One::Remote, () => |()| One::None
    } MaybeRemote, RdmaSource, RdmaDestination;
}

/// Returns the error for an operand whose type this kind does not accept.
#[cold]
fn never<T>() -> LeasedOperand<T> {
    Err(JobError::of(Reason::SliceAsDestination))
}

impl<K: Kind> Operand for Any<K> {
    #[inline(always)]
    fn reach(&self) -> Reach {
        match self.0 {
            One::None if K::NONE => Reach::None,
            One::Remote(_) if K::REMOTE => Reach::Remote,
            _ => Reach::Local,
        }
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        !matches!(self.0, One::Chain(_))
    }

    #[inline(always)]
    fn is_leased(&self) -> bool {
        match &self.0 {
            One::Chain(chain) => chain.is_leased(),
            One::Remote(remote) if K::REMOTE => remote.is_leased(),
            _ => true,
        }
    }

    fn offset(&self) -> usize {
        match &self.0 {
            One::Remote(remote) => remote.offset(),
            _ => 0,
        }
    }

    #[inline(always)]
    fn span(&self) -> Option<Span> {
        match &self.0 {
            One::None => ().span(),
            One::Buf(buf) => Operand::span(buf),
            One::Slice(slice) => slice.span(),
            One::Chain(_) => None,
            One::Remote(remote) => Operand::span(remote),
        }
    }

    fn with_spans(&self, f: &mut dyn FnMut(&[Span])) {
        match &self.0 {
            One::Chain(chain) => chain.with_spans(f),
            _ => f(self.span().as_ref().map_or(&[], Span::as_list)),
        }
    }
}

impl<K: Kind> ReadFrom for Any<K> {
    type Lease = Option<Reading>;

    #[inline(always)]
    fn most(&self) -> usize {
        // A Buf is handled apart, here and for both leases: with the jump by the type a node of a
        // graph costs 21 instructions more.
        if let One::Buf(buf) = &self.0 {
            return buf.most();
        }
        match &self.0 {
            One::Buf(buf) => buf.most(),
            One::Slice(slice) => slice.most(),
            One::Chain(chain) => chain.most(),
            One::Remote(remote) => remote.most(),
            One::None => 0,
        }
    }

    fn data(&self) -> Extent {
        match &self.0 {
            One::None => ().data(),
            One::Buf(buf) => ReadFrom::data(buf),
            One::Slice(slice) => slice.data(),
            One::Chain(chain) => chain.data(),
            One::Remote(remote) => remote.data(),
        }
    }

    #[inline(always)]
    fn lease_data(&self, holder: Holder, rule: Rule) -> LeasedOperand<Option<Reading>> {
        if let One::Buf(buf) = &self.0 {
            return any(buf.lease_data(holder, rule));
        }
        match &self.0 {
            One::Buf(buf) => any(buf.lease_data(holder, rule)),
            One::Slice(slice) => any(slice.lease_data(holder, rule)),
            One::Chain(chain) => any(chain.lease_data(holder, rule)),
            One::Remote(remote) if K::REMOTE => any(remote.lease_data(holder, rule)),
            One::None if K::NONE => any(().lease_data(holder, rule)),
            One::None | One::Remote(_) => never(),
        }
    }
}

impl<K: Kind> WriteTo for Any<K> {
    type Lease = Option<Writing>;

    fn tail_extent(&self) -> Extent {
        match &self.0 {
            One::None | One::Slice(_) => ().tail_extent(),
            One::Buf(buf) => buf.tail_extent(),
            One::Chain(chain) => chain.tail_extent(),
            One::Remote(remote) => remote.tail_extent(),
        }
    }

    #[inline(always)]
    fn lease_tail(&self, holder: Holder, rule: Rule) -> LeasedOperand<Option<Writing>> {
        if let One::Buf(buf) = &self.0 {
            return any(buf.lease_tail(holder, rule));
        }
        match &self.0 {
            One::Buf(buf) => any(buf.lease_tail(holder, rule)),
            One::Chain(chain) => any(chain.lease_tail(holder, rule)),
            One::Remote(remote) if K::REMOTE => any(remote.lease_tail(holder, rule)),
            One::None if K::NONE => any(().lease_tail(holder, rule)),
            One::None | One::Remote(_) | One::Slice(_) => never(),
        }
    }

    fn is_leased_by(&self, lease: &Writing) -> bool {
        match &self.0 {
            One::Buf(buf) => buf.is_leased_by(lease),
            One::Chain(chain) => chain.is_leased_by(lease),
            One::None | One::Slice(_) | One::Remote(_) => false,
        }
    }
}

/// Converts leases of an operand's own type to leases of any operand.
#[inline(always)]
fn any<L: IntoKept<K>, K>(taken: LeasedOperand<L>) -> LeasedOperand<Option<K>> {
    let (lease, segments, len) = taken?;
    Ok((lease.kept(), segments, len))
}

impl<K> Clone for Any<K> {
    fn clone(&self) -> Any<K> {
        Any(self.0.clone(), PhantomData)
    }
}

impl<K> fmt::Debug for Any<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<K: 'static> Handle for Any<K> {
    type Owned = Any<K>;

    fn cloned(&self) -> Any<K> {
        self.clone()
    }
}
