//! Guards that lend the data of a Buf as a slice, and hold a Lease meanwhile.
#![expect(
    unsafe_code,
    reason = "a Lease is what makes a slice of shared memory sound"
)]

use std::fmt;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::buf::Buf;
use crate::mem::element::{ReadLease, WriteLease};

/// A guard that gives read access to the data of a Buf. While it lives, a job that would write the
/// data fails with `InUse`.
///
/// The guard is a [`bytes::Buf`] too: like a `&[u8]`, it gets shorter as bytes are consumed.
///
/// Forgetting the guard is sound: the Buf stays leased.
///
/// ```
/// # use tokio_doca::{BufPool, Device, ErrorKind, Mmap};
/// use bytes::Buf;
///
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let buf = pool.try_alloc()?;
/// buf.extend_from_slice(b"\x00\x03abc")?;
/// let mut data = buf.data()?;
/// let len = data.get_u16() as usize;
/// assert_eq!(&data[..len], b"abc");
///
/// // Other readers may come, and writers may not until the guard is dropped.
/// assert_eq!(buf.data_mut().unwrap_err().kind(), ErrorKind::InUse);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[must_use = "the data is lent for as long as this lives"]
pub struct BufData<'a> {
    lease: ReadLease,
    /// The number of bytes that were consumed from the front of the data.
    consumed: usize,
    _buf: PhantomData<&'a Buf>,
}

impl BufData<'_> {
    pub(super) fn new(lease: ReadLease) -> Self {
        BufData {
            lease,
            consumed: 0,
            _buf: PhantomData,
        }
    }

    /// Consumes up to `by` bytes at the front of the data.
    pub(super) fn skip(&mut self, by: usize) {
        self.consumed += by.min(self.len());
    }
}

impl Deref for BufData<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let data = self.lease.data_start();
        // SAFETY:
        // - the data lies within the memory, which the Lease keeps (invariant of Element);
        // - under a read Lease no job and no guard of this process writes it
        //   (tests/it/mem/leases.rs), and memory that others may write is never lent (`Buf::data`),
        //   or on the caller's word (`Buf::data_unchecked`);
        // - the data is initialized: zeroed when it was made, or the application's own.
        let data = unsafe { std::slice::from_raw_parts(data.as_ptr(), self.lease.data_len()) };
        &data[self.consumed..]
    }
}

impl fmt::Debug for BufData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A guard that gives write access to the data of a Buf. While it lives, every job and other guard
/// on its bytes fails with `InUse`.
///
/// The guard is a [`bytes::BufMut`] too, which appends to the data as long as there is tailroom. So
/// codecs and Tokio's `read_buf` can write into a Buf:
///
/// ```
/// # use tokio_doca::{BufPool, Device, Mmap};
/// use bytes::BufMut;
///
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(65536)?).build()?;
/// # let buf = pool.try_alloc()?;
/// let mut data = buf.data_mut()?;
/// data.put_u16(0x0102);
/// data.put_slice(b"abc");
/// assert_eq!((&data[..], data.remaining_mut()), (&b"\x01\x02abc"[..], 4091));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
///
/// Forgetting the guard is sound: the Buf stays leased.
#[must_use = "the data is lent for as long as this lives"]
pub struct BufDataMut<'a> {
    lease: WriteLease,
    _buf: PhantomData<&'a Buf>,
}

impl BufDataMut<'_> {
    pub(super) fn new(lease: WriteLease) -> Self {
        BufDataMut {
            lease,
            _buf: PhantomData,
        }
    }

    /// Calls `reader.read` once, with the tailroom, and appends the bytes that it read to the data.
    /// Returns their number: 0 at the end of the source or without tailroom.
    ///
    /// # Errors
    ///
    /// The error of the reader; the data is unchanged then.
    pub fn read_from(&mut self, reader: &mut (impl Read + ?Sized)) -> io::Result<usize> {
        let free = self.tailroom();
        // Clamped, since a faulty reader may report more bytes than fit.
        let read = reader.read(self.tail())?.min(free);
        self.grow(read);
        Ok(read)
    }

    pub(super) fn tailroom(&self) -> usize {
        self.lease.tailroom()
    }

    pub(super) fn tail(&mut self) -> &mut [u8] {
        let (_, tail) = self.lease.data_end();
        // SAFETY: as for `deref_mut`: the tailroom lies behind the data in the same leased bytes,
        // and is initialized.
        unsafe { std::slice::from_raw_parts_mut(tail.as_ptr(), self.tailroom()) }
    }

    pub(super) fn grow(&mut self, by: usize) {
        self.lease.grow(by);
    }
}

impl Deref for BufDataMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let data = self.lease.data_start();
        // SAFETY: as for `BufData`; the write Lease excludes every other access.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), self.lease.data_len()) }
    }
}

impl DerefMut for BufDataMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let data = self.lease.data_start();
        // SAFETY: as above, and `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), self.lease.data_len()) }
    }
}

impl fmt::Debug for BufDataMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
