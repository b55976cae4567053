//! [`Buf`], a piece of an Mmap with headroom, data and tailroom, and [`BufSlice`], a window on its
//! data.
#![expect(unsafe_code, reason = "copies into and out of leased memory")]

use std::fmt;
use std::ops::RangeBounds;

use super::guard::{BufData, BufDataMut};
use super::span::Span;
use crate::device::volatile_copy;
use crate::error::{JobError, Reason};
use crate::mem::element::{Element, Handle};
use crate::mem::mmap::MmapInner;

/// A piece of an [`Mmap`](crate::Mmap): headroom, data, tailroom (DOCA Core guide 3.3.3).
///
/// ```text
/// | headroom | data | tailroom |
/// ```
///
/// A job reads the data of its source. It appends what it writes to the data of its destination,
/// which grows into the tailroom. The headroom is never touched. Clones are the same Buf, and share
/// its headroom, data and tailroom. When the last handle and the last lease are gone, the Buf
/// returns to its pool, array or inventory.
///
/// ```
/// # use tokio_doca::{Buf, BufPool, Device, Mmap};
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 16)?;
/// let pool = BufPool::builder(&mmap).element_size(4096).build()?;
/// let buf: Buf = pool.try_alloc()?;
/// buf.set_data(16, 0)?;                               // keep 16 bytes for a header
/// buf.extend_from_slice(b"payload")?;
/// assert_eq!((buf.headroom(), buf.data_len(), buf.tailroom()), (16, 7, 4073));
/// assert_eq!(&buf.data()?[..], b"payload");
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[doc(alias = "doca_buf")]
#[doc(alias = "doca_buf_refcount_rm")]
#[doc(alias = "doca_buf_dec_refcount")]
#[doc(alias = "doca_buffer")]
pub struct Buf(pub(in crate::mem) Handle);

impl Clone for Buf {
    #[doc(alias = "doca_buf_refcount_add")]
    #[doc(alias = "doca_buf_inc_refcount")]
    fn clone(&self) -> Buf {
        Buf(self.0.clone())
    }
}

/// Converts the error of a refused lease for a call on a single Buf, which is neither a source nor
/// a destination.
pub(super) fn in_use(error: JobError) -> JobError {
    match error.reason() {
        Reason::SourceInUse | Reason::DestinationInUse => JobError::of(Reason::BufInUse),
        _ => error,
    }
}

impl Buf {
    /// Returns the data, for reading.
    ///
    /// # Errors
    ///
    /// `InUse` while a job or a guard writes the Buf, `NotPermitted` if a peer or another process
    /// may write it at any time ([`Mmap::lends_slices`](crate::Mmap::lends_slices)): use
    /// [`Buf::copy_out`] and atomics then.
    #[doc(alias = "doca_buf_get_data")]
    pub fn data(&self) -> Result<BufData<'_>, JobError> {
        self.refuse_shared()?;
        Ok(BufData::new(self.0.read().map_err(in_use)?))
    }

    /// Returns the data, for writing. To append, use [`Buf::extend_from_slice`], or the guard as a
    /// [`bytes::BufMut`].
    ///
    /// # Errors
    ///
    /// `InUse` while a job or a guard uses the Buf, `NotPermitted` if the Mmap is `LOCAL_READ_ONLY`
    /// or if a peer or another process may write it at any time
    /// ([`Mmap::lends_slices`](crate::Mmap::lends_slices)): use [`Buf::copy_in`] and atomics then.
    pub fn data_mut(&self) -> Result<BufDataMut<'_>, JobError> {
        self.refuse_shared()?;
        Ok(BufDataMut::new(self.0.write().map_err(in_use)?))
    }

    /// Appends bytes to the data.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the tailroom is too small (nothing is written), `InUse` while a job or a
    /// guard uses the Buf, `NotPermitted` if the Mmap is `LOCAL_READ_ONLY`.
    pub fn extend_from_slice(&self, bytes: &[u8]) -> Result<(), JobError> {
        let lease = self.0.write().map_err(in_use)?;
        let free = lease.tailroom();
        if bytes.len() > free {
            return Err(JobError::new(
                Reason::TailroomTooSmall,
                free as u64,
                bytes.len() as u64,
            ));
        }
        let (_, to) = lease.data_end();
        // SAFETY: the tailroom was checked, it lies in the mapping, and the write Lease excludes
        // every other access of this process; the slice cannot overlap it, since no slice of leased
        // memory is lent.
        unsafe { copy_bytes(&lease, bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        lease.grow(bytes.len());
        Ok(())
    }

    /// Fills `out` with bytes of the data, from byte `from` on. If a peer or another process writes
    /// meanwhile, the copy may contain a part of that write.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the bytes reach past the data, `InUse` while a job or a guard of this
    /// process writes the Buf.
    pub fn copy_out(&self, from: usize, out: &mut [u8]) -> Result<(), JobError> {
        let lease = self.0.read().map_err(in_use)?;
        check_data(from, out.len(), lease.data_len())?;
        // SAFETY: the range was checked to lie in the data.
        let data = unsafe { lease.data_start().add(from) };
        // SAFETY: the range was checked to lie in the data; the Lease keeps writers of this process
        // away; `out` is a slice of other memory.
        unsafe { copy_bytes(&lease, data.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Overwrites a part of the data, from byte `at` on, with `bytes`.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `bytes` reach past the data, `InUse` while a job or a guard uses the Buf,
    /// `NotPermitted` if the Mmap is read-only.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), JobError> {
        let lease = self.0.write().map_err(in_use)?;
        check_data(at, bytes.len(), lease.data_len())?;
        // SAFETY: as above.
        let data = unsafe { lease.data_start().add(at) };
        // SAFETY: as in `extend_from_slice`; the range was checked to lie in the data.
        unsafe { copy_bytes(&lease, bytes.as_ptr(), data.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Returns a part of the data, as a source of a job.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the range ends before it begins
    /// ([`Reason::RangeReversed`](crate::error::Reason::RangeReversed)), or reaches past the data
    /// ([`Reason::SliceOutOfData`](crate::error::Reason::SliceOutOfData)).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufSlice, JobError> {
        let data_len = self.data_len();
        match MmapInner::resolve(range, data_len) {
            Ok(range) => Ok(BufSlice {
                buf: self.clone(),
                from: range.start,
                len: range.len(),
            }),
            Err(range) => Err(match MmapInner::not_within(&range, data_len) {
                error if error.reason() == Reason::RangeReversed => error,
                _ => {
                    let reach = range.start.max(range.end) as u64;
                    JobError::new(Reason::SliceOutOfData, reach, data_len as u64)
                }
            }),
        }
    }

    /// Returns the number of bytes of data.
    #[doc(alias = "doca_buf_get_data_len")]
    pub fn data_len(&self) -> usize {
        self.0.data_len()
    }

    /// Sets the length of the data to 0, so that later writes overwrite the old bytes. The headroom
    /// stays.
    ///
    /// # Errors
    ///
    /// `InUse` while a job or a guard uses the Buf.
    #[doc(alias = "doca_buf_reset_data_len")]
    pub fn reset_data_len(&self) -> Result<(), JobError> {
        let lease = self.0.exclusive().map_err(in_use)?;
        lease.set_data(lease.data(), 0);
        Ok(())
    }

    /// Sets the bounds of the data: `len` bytes, which begin at byte `offset` of the Buf. No byte
    /// is changed.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if these bytes do not lie in the Buf, `InUse` while a job or a guard uses it.
    #[doc(alias = "doca_buf_set_data")]
    #[doc(alias = "doca_buf_set_data_len")]
    pub fn set_data(&self, offset: usize, len: usize) -> Result<(), JobError> {
        let (capacity, end) = (self.capacity(), offset.saturating_add(len));
        if end > capacity {
            let (capacity, end) = (capacity as u64, end as u64);
            return Err(JobError::new(Reason::OutOfRange, capacity, end));
        }
        self.0.exclusive().map_err(in_use)?.set_data(offset, len);
        Ok(())
    }

    /// Returns the number of all bytes: headroom, data and tailroom.
    #[doc(alias = "doca_buf_get_len")]
    pub fn capacity(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of bytes before the data.
    pub fn headroom(&self) -> usize {
        self.0.data()
    }

    /// Returns the number of bytes behind the data.
    pub fn tailroom(&self) -> usize {
        self.0.tailroom()
    }

    /// Returns a read guard on the data that keeps the Buf alive instead of borrowing it.
    pub(crate) fn lend(&self) -> Result<BufData<'static>, JobError> {
        self.refuse_shared()?;
        Ok(BufData::new(self.0.read().map_err(in_use)?))
    }

    /// Returns the data as [`Buf::data`] does, even if a peer or another process may write the
    /// bytes at any time.
    ///
    /// # Safety
    ///
    /// While the guard lives no other party writes the data: no peer, no other holder of the memfd,
    /// and no atomic of this process ([`Buf::store`] and the like). The lease of the guard keeps
    /// jobs and other guards of this process away.
    ///
    /// # Errors
    ///
    /// `InUse` while a job or a guard writes the Buf.
    pub unsafe fn data_unchecked(&self) -> Result<BufData<'_>, JobError> {
        Ok(BufData::new(self.0.read().map_err(in_use)?))
    }

    /// Returns the data as [`Buf::data_mut`] does, even if a peer or another process may access the
    /// bytes at any time.
    ///
    /// # Safety
    ///
    /// While the guard lives no other party reads or writes the data or the tailroom: no peer, no
    /// other holder of the memfd. The lease of the guard keeps jobs, guards and atomics of this
    /// process away.
    ///
    /// # Errors
    ///
    /// `InUse` while a job or a guard uses the Buf, `NotPermitted` if the Mmap is
    /// `LOCAL_READ_ONLY`.
    pub unsafe fn data_mut_unchecked(&self) -> Result<BufDataMut<'_>, JobError> {
        Ok(BufDataMut::new(self.0.write().map_err(in_use)?))
    }

    /// Returns the addresses of all bytes of the Buf.
    pub(in crate::mem) fn span(&self) -> Span {
        Span::local(self.0.span())
    }

    pub(super) fn refuse_shared(&self) -> Result<(), JobError> {
        if self.0.is_shared() {
            return Err(JobError::of(Reason::PeerWritable));
        }
        Ok(())
    }
}

fn check_data(from: usize, len: usize, data_len: usize) -> Result<(), JobError> {
    if from.checked_add(len).is_none_or(|end| end > data_len) {
        return Err(JobError::new(
            Reason::SliceOutOfData,
            from.saturating_add(len) as u64,
            data_len as u64,
        ));
    }
    Ok(())
}

/// Copies `len` bytes between memory of this process and an element, whose bytes a peer or another
/// process may write meanwhile.
///
/// # Safety
///
/// Both ranges are valid and do not overlap; no code of this process accesses them in a conflicting
/// way, except by atomics where they are shared.
unsafe fn copy_bytes(element: &Element, from: *const u8, to: *mut u8, len: usize) {
    if element.is_shared() {
        // SAFETY: as the caller promises.
        unsafe { volatile_copy(from, to, len) };
    } else {
        // SAFETY: as the caller promises, and no atomic runs where nothing is shared.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("headroom", &self.headroom())
            .field("data_len", &self.data_len())
            .field("tailroom", &self.tailroom())
            .finish()
    }
}

/// A window on the data of a Buf: a source of jobs, alone or in a chain.
///
/// A slice keeps its Buf alive, and names bytes by their offsets in the data. If the data of the
/// Buf has since become too short to contain these bytes, a job on the slice fails
/// ([`Reason::SliceOutOfData`]).
///
/// ```
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let (record, body) = (pool.alloc().await, pool.alloc().await);
/// record.extend_from_slice(b"HEADbody")?;
/// dma.copy(record.slice(4..)?, &body).await?;         // the rest, without the head
/// assert_eq!(&body.data()?[..], b"body");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BufSlice {
    pub(in crate::mem) buf: Buf,
    pub(in crate::mem) from: usize,
    pub(in crate::mem) len: usize,
}

impl BufSlice {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the slice has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the Buf that this is a slice of.
    pub fn buf(&self) -> &Buf {
        &self.buf
    }
}

impl fmt::Debug for BufSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BufSlice({}..{} of {:?})",
            self.from,
            self.from + self.len,
            self.buf
        )
    }
}
