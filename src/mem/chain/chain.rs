//! A scatter/gather list that allocates once and is reference-counted like a Buf.
//!
//! While jobs use the chain, it holds the leases of its pieces, and the list of segments that the
//! device reads. The first job makes both, and the last one gives them up ([`super::lease`]).
#![expect(
    unsafe_code,
    reason = "the device reads the list of segments by pointer"
)]

use std::fmt;
use std::sync::Arc;

use super::lease::{ChainRead, ChainWrite};
use super::piece::ChainPiece;
use crate::device::{Segment, Segments};
use crate::error::{JobError, Reason};
use crate::mem::buf::{Extent, Span};
use crate::mem::element::{AfterLease, ReadLease, WriteLease};
use crate::mem::mmap::Holder;
use crate::sync::{Mutex, MutexGuard, lock};

/// A list of buffers that a job gathers from or scatters to, in order (DOCA Core guide 3.3.3,
/// `doca_buf_list`).
///
/// The pieces are Bufs and slices of Bufs. A copy also takes chains with ranges of imported memory
/// ([`RemoteBuf`](crate::mem::RemoteBuf)), of one import or of several: a range is read whole, and
/// written from its start on. Other jobs refuse such a chain. An operation of [`Rdma`](crate::Rdma)
/// has one remote range, since a request on the wire names one.
///
/// A chain of at most 4,096 pieces allocates only when it is built. While a job uses the chain,
/// changes fail with `InUse`. Several jobs may read it at once if they run on one device, and if
/// either all or none of them are operations of [`Rdma`](crate::Rdma). These jobs share one list of
/// the pieces, which has memory keys for one device and one use. Clones are the same chain.
///
/// ```
/// # use tokio_doca::{mem::{Access, BufChain, RemoteMmap}, BufPool, Dma, Mmap, WorkQ};
/// # use tokio_doca::soft::{Soft, View};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_doca::Error> {
/// # let host = Soft::builder().build().open("pf0")?;
/// # let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
/// # let exported = Mmap::builder().device(&host).access(access).alloc(4096)?;
/// # let blob = exported.export_dpu(&host)?;
/// # let dpu = Soft::builder().view(View::Dpu).build().open("p0")?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&dpu).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&dpu).attach(&WorkQ::builder().build()?)?;
/// let remote = RemoteMmap::from_export(&dpu, &blob).await?;
/// let pieces = BufChain::with_capacity(2);
/// pieces.push(remote.buf(0..100)?)?;
/// pieces.push(remote.buf(1000..1200)?)?;
/// let gathered = pool.alloc().await;
/// assert_eq!(dma.copy(&pieces, &gathered).await?, 300);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "doca_buf_list_chain")]
pub struct BufChain(pub(super) Arc<ChainInner>);

/// The maximum number of pieces for which `with_capacity` allocates memory at once.
const AT_ONCE: usize = 4096;

pub(super) struct ChainInner {
    capacity: usize,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) pieces: Vec<ChainPiece>,
    pub(super) users: Users,
    /// The list of segments that the device reads. Unchanged unless `users` is `Free`.
    segments: Vec<Segment>,
    total: usize,
    pub(super) reads: Vec<ReadLease>,
    /// The lease of each piece, `None` for imported memory that takes none.
    pub(super) writes: Vec<Option<WriteLease>>,
    /// Work due after leases were given back, to be done once the chain is unlocked: it notifies
    /// futures.
    pub(super) after: Vec<AfterLease>,
    /// Scratch memory, in which `with_spans` sorts the spans of the pieces.
    spans: Vec<Span>,
    /// The number of pieces of imported memory.
    imported: usize,
    /// The number of pieces that take no lease.
    pub(super) unleased: usize,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Users {
    Free,
    Read { jobs: usize, holder: Holder },
    Written,
}

impl BufChain {
    /// Makes an empty chain for at most `pieces` pieces. Memory for pieces beyond 4,096 is
    /// allocated as they are pushed.
    pub fn with_capacity(pieces: usize) -> BufChain {
        let at_once = pieces.min(AT_ONCE);
        let state = State {
            pieces: Vec::with_capacity(at_once),
            users: Users::Free,
            segments: Vec::with_capacity(at_once),
            total: 0,
            reads: Vec::with_capacity(at_once),
            writes: Vec::with_capacity(at_once),
            after: Vec::new(),
            spans: Vec::with_capacity(at_once),
            imported: 0,
            unleased: 0,
        };
        BufChain(Arc::new(ChainInner {
            capacity: pieces,
            state: Mutex::new(state),
        }))
    }

    /// Appends a Buf, a slice or a range of imported memory.
    ///
    /// # Errors
    ///
    /// `Full` if the chain has reached its capacity, `InUse` while a job uses the chain.
    #[doc(alias = "doca_buf_chain_list")]
    pub fn push(&self, piece: impl Into<ChainPiece>) -> Result<(), JobError> {
        let piece = piece.into();
        let mut state = self.changeable()?;
        if state.pieces.len() == self.0.capacity {
            return Err(JobError::new(Reason::ChainFull, self.0.capacity as u64, 0));
        }
        state.imported += usize::from(piece.is_imported());
        state.unleased += usize::from(!piece.is_leased());
        state.pieces.push(piece);
        Ok(())
    }

    /// Removes the last piece and returns it; `None` if there is none.
    ///
    /// # Errors
    ///
    /// `InUse` while a job uses the chain.
    #[doc(alias = "doca_buf_list_unchain")]
    #[doc(alias = "doca_buf_unchain_list")]
    pub fn pop(&self) -> Result<Option<ChainPiece>, JobError> {
        let mut state = self.changeable()?;
        let piece = state.pieces.pop();
        if let Some(piece) = &piece {
            state.imported -= usize::from(piece.is_imported());
            state.unleased -= usize::from(!piece.is_leased());
        }
        Ok(piece)
    }

    /// Locks the state for a change. Fails while a job uses the chain.
    fn changeable(&self) -> Result<MutexGuard<'_, State>, JobError> {
        let state = lock(&self.0.state);
        match state.users {
            Users::Free => Ok(state),
            _ => Err(JobError::of(Reason::ChainInUse)),
        }
    }

    /// Returns the number of pieces.
    #[doc(alias = "doca_buf_list_num_elements")]
    #[doc(alias = "doca_buf_get_list_len")]
    pub fn len(&self) -> usize {
        lock(&self.0.state).pieces.len()
    }

    /// Returns true if the chain has no pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that a job reads: the data of Bufs, and all of a slice or of a
    /// range of imported memory.
    pub fn data_len(&self) -> usize {
        self.data_extent().bytes
    }

    /// Returns the number of bytes that a job can write: the tailroom of Bufs, and all of a range
    /// of imported memory.
    pub fn tailroom(&self) -> usize {
        self.extent_of_tail().bytes
    }

    pub(in crate::mem) fn data_extent(&self) -> Extent {
        self.extent(ChainPiece::data_len)
    }

    pub(in crate::mem) fn extent_of_tail(&self) -> Extent {
        self.extent(ChainPiece::free)
    }

    /// Returns the number of non-empty pieces, and the sum of their bytes as `bytes_of` counts
    /// them.
    fn extent(&self, bytes_of: impl Fn(&ChainPiece) -> usize) -> Extent {
        let state = lock(&self.0.state);
        let mut extent = Extent::default();
        for bytes in state.pieces.iter().map(bytes_of).filter(|&bytes| bytes > 0) {
            extent.pieces += 1;
            // Saturating, since the length of an import may come from a hostile blob.
            extent.bytes = extent.bytes.saturating_add(bytes);
        }
        extent
    }

    /// Takes the leases of a job that reads the chain. Also returns the segments and the number of
    /// bytes.
    ///
    /// # Errors
    ///
    /// `InUse` if a job on the chain excludes this one; [`Reason::RemoteInChain`] if a piece is
    /// imported and the job is not a copy (`copies`); otherwise the first error of a piece.
    pub(in crate::mem) fn begin_read(
        &self,
        holder: Holder,
        copies: bool,
    ) -> Result<(ChainRead, Segments, usize), JobError> {
        let mut guard = lock(&self.0.state);
        let state = &mut *guard;
        state.check_imports(copies)?;
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
                if let Err(error) = state.gather(holder) {
                    state.end_leases();
                    drop(guard);
                    self.0.run_after();
                    return Err(error);
                }
                Users::Read { jobs: 1, holder }
            }
        };
        // SAFETY: the caller keeps the ChainRead until the completion. It keeps the chain, whose
        // list stays where it is, and is not changed until `users` is Free again. The pieces stay
        // too, and with them the imports whose keys are in the list.
        let segments = unsafe { Segments::list(&state.segments) };
        Ok((ChainRead::new(&self.0), segments, state.total))
    }

    /// Takes the leases of a job that writes the chain. Also returns the segments and the number of
    /// bytes.
    ///
    /// # Errors
    ///
    /// As [`BufChain::begin_read`].
    pub(in crate::mem) fn begin_write(
        &self,
        holder: Holder,
        copies: bool,
    ) -> Result<(ChainWrite, Segments, usize), JobError> {
        let mut guard = lock(&self.0.state);
        let state = &mut *guard;
        if state.users != Users::Free {
            return Err(JobError::of(Reason::ChainInUse));
        }
        state.check_imports(copies)?;
        if let Err(error) = state.scatter(holder) {
            state.end_leases();
            drop(guard);
            self.0.run_after();
            return Err(error);
        }
        state.users = Users::Written;
        // SAFETY: as in `begin_read`.
        let segments = unsafe { Segments::list(&state.segments) };
        Ok((ChainWrite::new(&self.0), segments, state.total))
    }

    /// Returns true if jobs take a lease on each piece of the chain.
    pub(in crate::mem) fn is_leased(&self) -> bool {
        lock(&self.0.state).unleased == 0
    }

    /// Calls `f` with the spans of the non-empty pieces, sorted. The chain is locked meanwhile.
    pub(in crate::mem) fn with_spans(&self, f: &mut dyn FnMut(&[Span])) {
        let mut guard = lock(&self.0.state);
        let State { pieces, spans, .. } = &mut *guard;
        spans.clear();
        spans.extend(
            pieces
                .iter()
                .map(ChainPiece::span)
                .filter(|span| !span.is_empty()),
        );
        spans.sort_unstable();
        f(spans);
    }
}

impl State {
    /// Refuses imported pieces unless the job is a copy.
    fn check_imports(&self, copies: bool) -> Result<(), JobError> {
        if self.imported == 0 || copies {
            return Ok(());
        }
        let at = self.pieces.iter().position(ChainPiece::is_imported);
        let error = JobError::of(Reason::RemoteInChain);
        Err(at.map_or(error, |at| error.in_piece(at)))
    }

    /// Leases the pieces for reading, and fills `segments` with their data.
    fn gather(&mut self, holder: Holder) -> Result<(), JobError> {
        self.lend(|state, at| {
            let (lease, segment) = state.pieces[at].read(holder)?;
            state.reads.extend(lease);
            segment
        })
    }

    /// Leases the pieces for writing, and fills `segments` with the bytes that a job may write.
    fn scatter(&mut self, holder: Holder) -> Result<(), JobError> {
        self.lend(|state, at| {
            let (lease, segment) = state.pieces[at].write(holder)?;
            state.writes.push(lease);
            segment
        })
    }

    /// Calls `lease` for the position of each piece, and fills `segments` with what it returns.
    fn lend(
        &mut self,
        lease: impl Fn(&mut State, usize) -> Result<Segment, JobError>,
    ) -> Result<(), JobError> {
        self.segments.clear();
        self.total = 0;
        for at in 0..self.pieces.len() {
            let segment = lease(self, at).map_err(|error| error.in_piece(at))?;
            self.total = self.total.saturating_add(segment.len());
            if segment.len() > 0 {
                self.segments.push(segment);
            }
        }
        Ok(())
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
