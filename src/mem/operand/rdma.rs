//! The sides of a remote operation: memory of this process, a range of the peer's, or nothing.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]
#![expect(
    unsafe_code,
    reason = "promises that Leases are those of a remote operation"
)]

use super::copy::{Destination, Source};
use super::leased::{Leased, LeasedRdma};
use super::leases::{Grow, Reading, Writing};
use super::overlap::{explain, share};
use crate::device::{RdmaJob, Segments, Verb};
use crate::error::{JobError, Reason};
use crate::mem::buf::Extent;
use crate::mem::mmap::Holder;

/// Where a remote operation takes its bytes from: a [`MaybeSource`](crate::MaybeSource), or a
/// [`RemoteBuf`](crate::RemoteBuf) or a reference to one.
pub trait RdmaSource: sealed::Gives {}

/// Where a remote operation puts its bytes: a [`MaybeDestination`](crate::MaybeDestination), or a
/// [`RemoteBuf`](crate::RemoteBuf) or a reference to one.
pub trait RdmaDestination: sealed::Gets {}

/// A [`RemoteBuf`](crate::RemoteBuf) that was exported to the peers of an Rdma, a reference to one,
/// or `()` where nothing is moved.
pub trait MaybeRemote: RdmaSource + RdmaDestination + sealed::Remote {}

impl<T: sealed::Gives> RdmaSource for T {}
impl<T: sealed::Gets> RdmaDestination for T {}
impl<T: sealed::Gives + sealed::Gets + sealed::Remote> MaybeRemote for T {}

/// How many bytes a remote operation moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// All of the source: to whatever the peer has posted.
    Message,
    /// All of the source, to a range that must be as long.
    Write,
    /// As much as both sides have.
    Read,
    /// The eight bytes at the start of the source, where they are.
    Atomic,
}

impl Moves {
    /// Returns what a verb moves.
    #[inline(always)]
    pub(crate) fn of(verb: Verb) -> Moves {
        match verb {
            Verb::Send(_) => Moves::Message,
            Verb::Write(_) => Moves::Write,
            Verb::Read => Moves::Read,
            Verb::CompareSwap { .. } | Verb::FetchAdd(_) => Moves::Atomic,
        }
    }
}

/// Bytes of an atomic.
const WORD: usize = size_of::<u64>();

/// Takes the Leases of a remote operation; all or none.
///
/// # Panics
///
/// If `moves` is not what the verb moves: most often both are known when this is compiled.
#[inline(always)]
pub(crate) fn begin_rdma<S: RdmaSource, D: RdmaDestination>(
    src: &S,
    dst: &D,
    holder: Holder,
    moves: Moves,
    verb: Verb,
) -> Result<LeasedRdma<S, D>, JobError> {
    assert!(moves == Moves::of(verb));
    if !(S::LEASED && D::LEASED) && share(src, dst) {
        return Err(JobError::of(Reason::Overlap));
    }
    let (read, from, data) = src
        .begin_give(holder, moves == Moves::Atomic)
        .map_err(|error| explain(src, dst, error))?;
    let (write, to, room) = dst
        .begin_get(holder)
        .map_err(|error| explain(src, dst, error))?;
    let too_small =
        |have: usize, need: usize| JobError::new(Reason::RemoteTooSmall, have as u64, need as u64);
    let len = match moves {
        Moves::Message => data,
        Moves::Write if data > room => return Err(too_small(room, data)),
        Moves::Write => data,
        Moves::Read => data.min(room),
        Moves::Atomic if data < WORD => return Err(too_small(data, WORD)),
        Moves::Atomic => {
            let at = from
                .as_slice()
                .first()
                .map_or(0, |word| word.addr().addr().get());
            if !at.is_multiple_of(WORD) {
                let offset = src.offset() as u64;
                return Err(JobError::new(Reason::Misaligned, offset, WORD as u64));
            }
            WORD
        }
    };
    // Where nothing is moved there is none.
    let remote = |of: &Segments| of.as_one().filter(|_| len > 0).copied();
    let (local, remote) = match moves {
        Moves::Message => (from, None),
        Moves::Write => (from, remote(&to)),
        Moves::Read => (to, remote(&from)),
        Moves::Atomic => (Segments::none(), remote(&from)),
    };
    let job = RdmaJob {
        verb,
        local,
        remote,
        len,
    };
    // SAFETY: the Leases are those of the Segments, `len` is no more than either side has, and the
    // verb moves what `moves` says, as was checked. What shares bytes was refused: by the Leases, or above.
    Ok(unsafe { Leased::new((read, write), job) })
}

/// The traits behind [`RdmaSource`] and [`RdmaDestination`], which nobody else implements.
pub mod sealed {
    use super::*;
    use crate::mem::operand::copy::sealed::Spans;

    /// A range of a peer's, or none.
    pub trait Remote {}

    pub trait Gives: Spans {
        type Lease;
        /// Whether there is no such side.
        #[inline(always)]
        fn is_none(&self) -> bool {
            false
        }
        /// Whether its Leases keep jobs off that share its bytes.
        const LEASED: bool = true;
        /// Whether it is one piece at most, always.
        fn is_single(&self) -> bool;
        /// More bytes than this it cannot come to give.
        fn most(&self) -> usize;
        /// Where a range of a peer's begins, in the memory that was exported.
        fn offset(&self) -> usize {
            0
        }
        /// What it would give now, without a Lease.
        fn extent(&self) -> Extent;
        /// Leases, Segments, and how many bytes. An atomic changes them where they are.
        fn begin_give(
            &self,
            holder: Holder,
            atomic: bool,
        ) -> Result<(Self::Lease, Segments, usize), JobError>;
        /// What a Slot keeps.
        fn held(lease: Self::Lease) -> Option<Reading>;
    }

    pub trait Gets: Spans {
        type Lease;
        #[inline(always)]
        fn is_none(&self) -> bool {
            false
        }
        const LEASED: bool = true;
        fn is_single(&self) -> bool;
        fn extent(&self) -> Extent;
        /// Leases, Segments, and how many bytes of room.
        fn begin_get(&self, holder: Holder) -> Result<(Self::Lease, Segments, usize), JobError>;
        /// So many bytes came.
        fn grow(lease: &Self::Lease, by: usize);
        fn held(lease: Self::Lease) -> Option<Writing>;
    }
}

use sealed::{Gets, Gives, Remote};

impl Remote for () {}

impl<T: Source> Gives for T {
    type Lease = T::Lease;

    #[inline(always)]
    fn is_single(&self) -> bool {
        T::is_single(self)
    }

    #[inline(always)]
    fn most(&self) -> usize {
        T::most(self)
    }

    fn extent(&self) -> Extent {
        self.data_extent()
    }

    #[inline(always)]
    fn begin_give(
        &self,
        holder: Holder,
        _atomic: bool,
    ) -> Result<(T::Lease, Segments, usize), JobError> {
        self.begin_read(holder)
    }

    #[inline(always)]
    fn held(lease: T::Lease) -> Option<Reading> {
        Some(lease.into())
    }
}

impl<T: Destination> Gets for T {
    type Lease = T::Lease;

    #[inline(always)]
    fn is_single(&self) -> bool {
        T::is_single(self)
    }

    fn extent(&self) -> Extent {
        self.room_extent()
    }

    #[inline(always)]
    fn begin_get(&self, holder: Holder) -> Result<(T::Lease, Segments, usize), JobError> {
        self.begin_write(holder)
    }

    #[inline(always)]
    fn grow(lease: &T::Lease, by: usize) {
        lease.grow(by);
    }

    #[inline(always)]
    fn held(lease: T::Lease) -> Option<Writing> {
        Some(lease.into())
    }
}

impl Gives for () {
    type Lease = ();

    #[inline(always)]
    fn is_none(&self) -> bool {
        true
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        true
    }

    #[inline(always)]
    fn most(&self) -> usize {
        0
    }

    fn extent(&self) -> Extent {
        Extent::default()
    }

    #[inline(always)]
    fn begin_give(&self, _: Holder, _: bool) -> Result<((), Segments, usize), JobError> {
        Ok(((), Segments::none(), 0))
    }

    fn held((): ()) -> Option<Reading> {
        None
    }
}

impl Gets for () {
    type Lease = ();

    #[inline(always)]
    fn is_none(&self) -> bool {
        true
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        true
    }

    fn extent(&self) -> Extent {
        Extent::default()
    }

    #[inline(always)]
    fn begin_get(&self, _: Holder) -> Result<((), Segments, usize), JobError> {
        Ok(((), Segments::none(), 0))
    }

    #[inline(always)]
    fn grow((): &(), _by: usize) {}

    fn held((): ()) -> Option<Writing> {
        None
    }
}
