//! A scatter/gather list of Bufs that allocates once and is counted like a Buf.
//!
//! While a job has it, the chain holds the Leases of its Bufs and the list of Segments that the device reads: both
//! are made by the first job and given up by the last. The Bufs themselves are held by the chain, so that giving
//! up a Lease under the chain's lock brings no element home, and wakes nobody.
#![allow(unreachable_pub, reason = "named by the sealed traits of operand")]
#![expect(
    unsafe_code,
    reason = "the device reads the list of Segments by pointer"
)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::buf::{Buf, BufSlice};
use super::extent::Extent;
use crate::device::{Keep, Segment, Segments};
use crate::error::{JobError, Reason};
use crate::mem::element::{Handle, ReadLease, WriteLease};
use crate::mem::mmap::Holder;
use crate::sync::{Mutex, lock};

/// A list of Bufs, gathered from or scattered to in order (Core guide 3.3.3, `doca_buf_list`).
///
/// It allocates when it is built and never again. While a job has it, changes are refused (`InUse`). Several jobs may read it at once, if they are of one
/// device and either all or none of them of `Rdma`: the list that the device reads is made once, with the keys of that use. Clones are the same chain.
#[derive(Clone)]
#[doc(alias = "doca_buf_list_chain")]
pub struct BufChain(Arc<Inner>);

struct Inner {
    capacity: usize,
    state: Mutex<State>,
}

struct State {
    links: Vec<Link>,
    users: Users,
    /// What the device reads. Unchanged while `users` says that a job has it.
    segments: Vec<Segment>,
    total: usize,
    reads: Vec<ReadLease>,
    writes: Vec<WriteLease>,
}

#[derive(Clone, Copy, PartialEq)]
enum Users {
    Free,
    Read { jobs: usize, holder: Holder },
    Written,
}

/// One piece of a chain: a Buf, or a slice of one.
#[derive(Clone)]
pub struct Link(Piece);

#[derive(Clone)]
enum Piece {
    Whole(Buf),
    Slice(BufSlice),
}

impl From<&Buf> for Link {
    fn from(buf: &Buf) -> Link {
        Link(Piece::Whole(buf.clone()))
    }
}

impl From<Buf> for Link {
    fn from(buf: Buf) -> Link {
        Link(Piece::Whole(buf))
    }
}

impl From<BufSlice> for Link {
    fn from(slice: BufSlice) -> Link {
        Link(Piece::Slice(slice))
    }
}

impl Link {
    fn handle(&self) -> &Handle {
        match &self.0 {
            Piece::Whole(buf) => &buf.0,
            Piece::Slice(slice) => &slice.buf.0,
        }
    }
}

impl BufChain {
    /// An empty chain with room for `bufs` pieces.
    pub fn with_capacity(bufs: usize) -> BufChain {
        let state = State {
            links: Vec::with_capacity(bufs),
            users: Users::Free,
            segments: Vec::with_capacity(bufs),
            total: 0,
            reads: Vec::with_capacity(bufs),
            writes: Vec::with_capacity(bufs),
        };
        BufChain(Arc::new(Inner {
            capacity: bufs,
            state: Mutex::new(state),
        }))
    }

    /// Appends a Buf or a slice.
    ///
    /// # Errors
    ///
    /// `Full` beyond the capacity, `InUse` while a job has the chain.
    pub fn push(&self, link: impl Into<Link>) -> Result<(), JobError> {
        let link = link.into();
        let mut state = lock(&self.0.state);
        if state.users != Users::Free {
            return Err(JobError::of(Reason::ChainInUse));
        }
        if state.links.len() == self.0.capacity {
            return Err(JobError::new(Reason::ChainFull, self.0.capacity as u64, 0));
        }
        state.links.push(link);
        Ok(())
    }

    /// Removes the last piece and gives it back; `None` if there is none.
    ///
    /// # Errors
    ///
    /// `InUse` while a job has the chain.
    pub fn pop(&self) -> Result<Option<Link>, JobError> {
        let mut state = lock(&self.0.state);
        if state.users != Users::Free {
            return Err(JobError::of(Reason::ChainInUse));
        }
        Ok(state.links.pop())
    }

    /// How many pieces.
    #[doc(alias = "doca_buf_list_num_elements")]
    pub fn len(&self) -> usize {
        lock(&self.0.state).links.len()
    }

    /// Whether it has no pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of data of all pieces.
    pub fn data_len(&self) -> usize {
        self.data_extent().bytes
    }

    /// Bytes of tailroom of all pieces.
    pub fn tailroom(&self) -> usize {
        self.room_extent().bytes
    }

    pub(in crate::mem) fn data_extent(&self) -> Extent {
        self.extent(|link| match &link.0 {
            Piece::Whole(buf) => buf.data_len(),
            Piece::Slice(slice) => slice.len(),
        })
    }

    pub(in crate::mem) fn room_extent(&self) -> Extent {
        self.extent(|link| link.handle().tailroom())
    }

    /// The pieces that are not empty, and their bytes.
    fn extent(&self, bytes_of: impl Fn(&Link) -> usize) -> Extent {
        let state = lock(&self.0.state);
        let mut extent = Extent::default();
        for bytes in state.links.iter().map(bytes_of).filter(|&bytes| bytes > 0) {
            extent.pieces += 1;
            extent.bytes += bytes;
        }
        extent
    }

    pub(in crate::mem) fn begin_read(
        &self,
        holder: Holder,
    ) -> Result<(ChainRead, Segments, usize), JobError> {
        let mut guard = lock(&self.0.state);
        let state = &mut *guard;
        state.users = match state.users {
            Users::Written => return Err(JobError::of(Reason::ChainInUse)),
            Users::Read { holder: other, .. } if other != holder => {
                return Err(JobError::of(Reason::ChainInUse));
            }
            Users::Read { jobs, holder } => Users::Read {
                jobs: jobs + 1,
                holder,
            },
            Users::Free => {
                state.gather(holder).inspect_err(|_| state.reads.clear())?;
                Users::Read { jobs: 1, holder }
            }
        };
        // SAFETY: the list is unchanged, and its memory stays, while the ChainRead, which the caller keeps until the
        // completion, holds the chain.
        let segments = unsafe { Segments::list(&state.segments) };
        Ok((ChainRead(Arc::clone(&self.0)), segments, state.total))
    }

    pub(in crate::mem) fn begin_write(
        &self,
        holder: Holder,
    ) -> Result<(ChainWrite, Segments, usize), JobError> {
        let mut guard = lock(&self.0.state);
        let state = &mut *guard;
        if state.users != Users::Free {
            return Err(JobError::of(Reason::ChainInUse));
        }
        state
            .scatter(holder)
            .inspect_err(|_| state.writes.clear())?;
        state.users = Users::Written;
        // SAFETY: as in `begin_read`.
        let segments = unsafe { Segments::list(&state.segments) };
        Ok((ChainWrite(Arc::clone(&self.0)), segments, state.total))
    }

    /// Calls `f` with the addresses of every Buf of the chain.
    pub(in crate::mem) fn each_span(&self, f: &mut dyn FnMut(Range<usize>)) {
        lock(&self.0.state)
            .links
            .iter()
            .for_each(|link| f(link.handle().span()));
    }
}

impl State {
    /// Leases the pieces for reading, and lists their data.
    fn gather(&mut self, holder: Holder) -> Result<(), JobError> {
        self.start();
        for link in &self.links {
            let lease = link.handle().read()?;
            let (from, len) = match &link.0 {
                Piece::Whole(_) => (0, lease.data_len()),
                Piece::Slice(slice) => (slice.from, slice.len),
            };
            let segment = lease.segment(holder, from, len)?;
            self.reads.push(lease);
            self.total += len;
            if len > 0 {
                self.segments.push(segment);
            }
        }
        Ok(())
    }

    /// Leases the pieces for writing, and lists their tailrooms.
    fn scatter(&mut self, holder: Holder) -> Result<(), JobError> {
        self.start();
        for link in &self.links {
            if let Piece::Slice(_) = link.0 {
                return Err(JobError::of(Reason::SliceAsDestination));
            }
            let lease = link.handle().write()?;
            let segment = lease.segment(holder)?;
            self.writes.push(lease);
            self.total += segment.len();
            if segment.len() > 0 {
                self.segments.push(segment);
            }
        }
        Ok(())
    }

    fn start(&mut self) {
        self.segments.clear();
        self.total = 0;
    }
}

/// A job's right to read a chain.
pub struct ChainRead(Arc<Inner>);

impl ChainRead {
    /// Whether others may write one of its Bufs meanwhile.
    pub(in crate::mem) fn is_shared(&self) -> bool {
        let state = lock(&self.0.state);
        state.reads.iter().any(|lease| lease.is_shared())
    }
}

impl ChainRead {
    /// Gives the Leases back, and leaves the chain, which may be the last, to the caller.
    pub(in crate::mem) fn end(self) -> Keep {
        Arc::clone(&self.0) as Keep
    }
}

impl Drop for ChainRead {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        match state.users {
            Users::Read { jobs, holder } if jobs > 1 => {
                state.users = Users::Read {
                    jobs: jobs - 1,
                    holder,
                }
            }
            _ => {
                state.reads.clear();
                state.users = Users::Free;
            }
        }
    }
}

/// A job's right to write a chain.
pub struct ChainWrite(Arc<Inner>);

impl ChainWrite {
    pub(in crate::mem) fn is_of(&self, chain: &BufChain) -> bool {
        Arc::ptr_eq(&self.0, &chain.0)
    }

    /// Bytes were appended, filling one piece after the other.
    pub(in crate::mem) fn grow(&self, mut by: usize) {
        for lease in &lock(&self.0.state).writes {
            let part = by.min(lease.tailroom());
            lease.grow(part);
            by -= part;
        }
    }
}

impl ChainWrite {
    /// Gives the Leases back, and leaves the chain, which may be the last, to the caller.
    pub(in crate::mem) fn end(self) -> Keep {
        Arc::clone(&self.0) as Keep
    }
}

impl Drop for ChainWrite {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.writes.clear();
        state.users = Users::Free;
    }
}

impl fmt::Debug for BufChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufChain")
            .field("len", &self.len())
            .field("capacity", &self.0.capacity)
            .finish()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Piece::Whole(buf) => buf.fmt(f),
            Piece::Slice(slice) => slice.fmt(f),
        }
    }
}
