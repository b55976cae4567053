//! What a job may read from and write to: a Buf, a slice (source only), a chain; borrowed or owned.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]

use std::ops::Range;

use arrayvec::ArrayVec;

use super::chain::{ChainRead, ChainWrite};
use super::lease::{ReadLease, WriteLease};
use super::{Buf, BufChain, BufSlice};
use crate::device::{DeviceId, Segments};
use crate::error::{ErrorKind, JobError, Reason};

/// A source of a job: [`Buf`], [`BufSlice`] or [`BufChain`], or a reference to one.
pub trait Source: sealed::Reads {}

/// A destination of a job: [`Buf`] or [`BufChain`], or a reference to one.
pub trait Destination: sealed::Writes {}

impl<T: sealed::Reads> Source for T {}
impl<T: sealed::Writes> Destination for T {}

/// The read Leases of one job.
pub enum Reading {
    Buf(ReadLease),
    Chain(ChainRead),
}

/// The write Leases of one job.
pub enum Writing {
    Buf(WriteLease),
    Chain(ChainWrite),
}

impl Reading {
    /// Whether others may write some of it meanwhile.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Reading::Buf(lease) => lease.is_shared(),
            Reading::Chain(lease) => lease.is_shared(),
        }
    }
}

impl From<ReadLease> for Reading {
    fn from(lease: ReadLease) -> Reading {
        Reading::Buf(lease)
    }
}

impl From<ChainRead> for Reading {
    fn from(lease: ChainRead) -> Reading {
        Reading::Chain(lease)
    }
}

impl From<WriteLease> for Writing {
    fn from(lease: WriteLease) -> Writing {
        Writing::Buf(lease)
    }
}

impl From<ChainWrite> for Writing {
    fn from(lease: ChainWrite) -> Writing {
        Writing::Chain(lease)
    }
}

/// A write Lease that can take what a job wrote.
pub trait Grow {
    /// So many bytes were appended.
    fn grow(&self, by: usize);
}

impl Grow for WriteLease {
    #[inline(always)]
    fn grow(&self, by: usize) {
        WriteLease::grow(self, by);
    }
}

impl Grow for ChainWrite {
    fn grow(&self, by: usize) {
        ChainWrite::grow(self, by);
    }
}

impl Grow for Writing {
    fn grow(&self, by: usize) {
        match self {
            Writing::Buf(lease) => lease.grow(by),
            Writing::Chain(lease) => lease.grow(by),
        }
    }
}

/// Leases and Segments of a job's two sides, and how many bytes it moves.
pub(crate) struct Begun<R, W> {
    pub(crate) read: R,
    pub(crate) write: W,
    pub(crate) src: Segments,
    pub(crate) dst: Segments,
    pub(crate) len: usize,
}

/// Takes the Leases of a job that moves all of `src` to the tailroom of `dst`; all or none.
#[inline(always)]
pub(crate) fn begin<S: Source, D: Destination>(
    src: &S,
    dst: &D,
    device: DeviceId,
) -> Result<Begun<S::Lease, D::Lease>, JobError> {
    let (read, from, len) = src
        .begin_read(device)
        .map_err(|error| explain(src, dst, error))?;
    let (write, to, room) = dst
        .begin_write(device)
        .map_err(|error| explain(src, dst, error))?;
    if len == 0 {
        return Err(JobError::of(Reason::NoData));
    }
    if len > room {
        return Err(JobError::new(
            Reason::TailroomTooSmall,
            room as u64,
            len as u64,
        ));
    }
    Ok(Begun {
        read,
        write,
        src: from,
        dst: to,
        len,
    })
}

/// How much of a job's side there is: pieces that are not empty, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub pieces: usize,
    pub bytes: usize,
}

impl Extent {
    /// Of Segments, none of which is empty in a list.
    pub fn of(segments: &Segments) -> Extent {
        let segments = segments.as_slice();
        Extent {
            pieces: segments.len(),
            bytes: segments.iter().map(|segment| segment.len).sum(),
        }
    }

    fn one(bytes: usize) -> Extent {
        Extent {
            pieces: usize::from(bytes > 0),
            bytes,
        }
    }
}

/// Whether a job is one piece on each side, of at most so many bytes, whatever the rooms are.
#[inline(always)]
pub(crate) fn surely_within<S: Source, D: Destination>(src: &S, dst: &D, bytes: u64) -> bool {
    src.is_single() && dst.is_single() && src.most() as u64 <= bytes
}

/// Where a Buf begins and ends.
type Span = (usize, usize);

/// The addresses of an operand's Bufs, in order. One is the rule, and takes no memory.
fn spans(operand: &impl Spans) -> (ArrayVec<Span, 1>, Vec<Span>) {
    let (mut one, mut many) = (ArrayVec::new(), Vec::new());
    operand.each(&mut |span| {
        if let Err(full) = one.try_push((span.start, span.end)) {
            many.push(full.element());
        }
    });
    if !many.is_empty() {
        many.extend(one.take());
        many.sort_unstable();
    }
    (one, many)
}

/// The cause behind a refused Lease: a job that shares memory with itself is wrong, whoever else has it.
#[cold]
pub(super) fn explain(src: &impl Spans, dst: &impl Spans, error: JobError) -> JobError {
    if error.kind() != ErrorKind::InUse {
        return error;
    }
    let (one_from, many_from) = spans(src);
    let (one_to, many_to) = spans(dst);
    let from = if many_from.is_empty() {
        &one_from[..]
    } else {
        &many_from
    };
    let to = if many_to.is_empty() {
        &one_to[..]
    } else {
        &many_to
    };
    let twice = to.windows(2).any(|pair| pair[1].0 < pair[0].1);
    let below = |end: usize| from.iter().take_while(move |from| from.0 < end);
    let shared = to.iter().any(|to| below(to.1).any(|from| to.0 < from.1));
    if twice || shared {
        JobError::of(Reason::Overlap)
    } else {
        error
    }
}

/// The traits behind [`Source`] and [`Destination`], which nobody else implements.
pub mod sealed {
    use super::*;

    pub trait Spans {
        /// Calls `f` with the addresses of every Buf.
        fn each(&self, f: &mut dyn FnMut(Range<usize>));
    }

    pub trait Reads: Spans {
        type Lease: Into<Reading>;
        /// Whether it is one piece, always.
        fn is_single(&self) -> bool;
        /// More bytes of data than this it cannot come to have.
        fn most(&self) -> usize;
        /// Its data now, without a Lease.
        fn data_extent(&self) -> Extent;
        /// Leases, Segments, and how many bytes of data.
        fn begin_read(&self, device: DeviceId) -> Result<(Self::Lease, Segments, usize), JobError>;
    }

    pub trait Writes: Spans {
        type Lease: Into<Writing> + Grow;
        /// Whether it is one piece, always.
        fn is_single(&self) -> bool;
        /// Its tailroom now, without a Lease.
        fn room_extent(&self) -> Extent;
        /// Leases, Segments, and how many bytes of tailroom.
        fn begin_write(&self, device: DeviceId)
        -> Result<(Self::Lease, Segments, usize), JobError>;
    }
}

use sealed::{Reads, Spans, Writes};

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
    fn begin_read(&self, device: DeviceId) -> Result<(ReadLease, Segments, usize), JobError> {
        let lease = self.0.read()?;
        let segment = lease.whole(device)?;
        Ok((lease, Segments::one(segment), segment.len))
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
    fn begin_read(&self, device: DeviceId) -> Result<(ReadLease, Segments, usize), JobError> {
        let lease = self.buf.0.read()?;
        let segment = lease.segment(device, self.from, self.len)?;
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

    fn begin_read(&self, device: DeviceId) -> Result<(ChainRead, Segments, usize), JobError> {
        BufChain::begin_read(self, device)
    }
}

impl<T: Reads> Reads for &T {
    type Lease = T::Lease;

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
    fn begin_read(&self, device: DeviceId) -> Result<(T::Lease, Segments, usize), JobError> {
        T::begin_read(self, device)
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
    fn begin_write(&self, device: DeviceId) -> Result<(WriteLease, Segments, usize), JobError> {
        let lease = self.0.write()?;
        let segment = lease.segment(device)?;
        Ok((lease, Segments::one(segment), segment.len))
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

    fn begin_write(&self, device: DeviceId) -> Result<(ChainWrite, Segments, usize), JobError> {
        BufChain::begin_write(self, device)
    }
}

impl<T: Writes> Writes for &T {
    type Lease = T::Lease;

    #[inline(always)]
    fn is_single(&self) -> bool {
        T::is_single(self)
    }

    fn room_extent(&self) -> Extent {
        T::room_extent(self)
    }

    #[inline(always)]
    fn begin_write(&self, device: DeviceId) -> Result<(T::Lease, Segments, usize), JobError> {
        T::begin_write(self, device)
    }
}
