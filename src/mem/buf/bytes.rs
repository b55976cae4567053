//! Bufs in the `bytes` ecosystem: handed over as `Bytes` without a copy, read as a `bytes::Buf`,
//! appended to as a `bytes::BufMut`.
#![expect(unsafe_code, reason = "implements BufMut")]

use std::fmt;

use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes};

use super::buf::{Buf, in_use};
use super::guard::{BufData, BufDataMut};
use crate::error::{Error, JobError};

/// The error of [`Buf::into_bytes`]. It gives the Buf back: [`IntoBytesError::into_buf`].
///
/// ```
/// # use tokio_doca::{BufPool, Device, ErrorKind, Mmap};
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let buf = pool.try_alloc()?;
/// buf.extend_from_slice(b"hello")?;
/// let writer = buf.clone();
/// let guard = writer.data_mut()?;
/// let refused = buf.into_bytes().unwrap_err();        // a guard may write it
/// assert_eq!(refused.error().kind(), ErrorKind::InUse);
///
/// drop(guard);
/// let bytes = refused.into_buf().into_bytes()?;       // the error gives the Buf back
/// assert_eq!(&bytes[..], b"hello");
/// # Ok::<(), tokio_doca::Error>(())
/// ```
pub struct IntoBytesError {
    buf: Buf,
    error: JobError,
}

impl IntoBytesError {
    /// Returns why the conversion failed.
    pub fn error(&self) -> JobError {
        self.error
    }

    /// Returns the Buf, unchanged.
    pub fn into_buf(self) -> Buf {
        self.buf
    }
}

impl fmt::Debug for IntoBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl fmt::Display for IntoBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for IntoBytesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<IntoBytesError> for JobError {
    fn from(error: IntoBytesError) -> JobError {
        error.error
    }
}

impl From<IntoBytesError> for Error {
    fn from(error: IntoBytesError) -> Error {
        error.error.into()
    }
}

impl From<IntoBytesError> for std::io::Error {
    fn from(error: IntoBytesError) -> std::io::Error {
        error.error.into()
    }
}

/// The owner of a `Bytes` that `Buf::into_bytes` made: a read guard on the Buf.
struct Lent(BufData<'static>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Buf {
    /// Returns the data as [`Bytes`], without a copy.
    ///
    /// The `Bytes` reads the Buf, as a guard does. Until its last clone or slice is dropped, writes
    /// to the Buf by other handles fail with `InUse`, and the Buf does not return to its pool.
    ///
    /// ```
    /// # use tokio_doca::{BufPool, Device, Mmap};
    /// # let device = Device::open_default()?;
    /// let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(65536)?).build()?;
    /// let buf = pool.try_alloc()?;
    /// buf.extend_from_slice(b"zero copies")?;
    /// let bytes: bytes::Bytes = buf.into_bytes()?;
    /// assert_eq!(bytes.slice(5..), "copies");
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InUse` while a job or a guard writes the Buf, `NotPermitted` if a peer or another process
    /// may write it at any time ([`Mmap::lends_slices`](crate::Mmap::lends_slices)). The error
    /// contains the Buf.
    pub fn into_bytes(self) -> Result<Bytes, IntoBytesError> {
        let lease = self.refuse_shared().and_then(|()| self.0.read());
        match lease {
            Ok(lease) => Ok(Bytes::from_owner(Lent(BufData::new(lease)))),
            Err(error) => {
                let error = in_use(error);
                Err(IntoBytesError { buf: self, error })
            }
        }
    }
}

/// Reads the data like a `&[u8]`: advancing shortens the guard's slice, and leaves the Buf
/// unchanged.
impl bytes::Buf for BufData<'_> {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self
    }

    /// # Panics
    ///
    /// If `by` exceeds the remaining bytes, as for every `bytes::Buf`.
    fn advance(&mut self, by: usize) {
        let left = self.len();
        assert!(by <= left, "{by} bytes to advance, and {left} are left");
        self.skip(by);
    }
}

// SAFETY: `chunk_mut` is the tailroom, all of it, and `remaining_mut` its length; the Lease keeps
// others from changing it, and `advance_mut` makes it shorter by what was filled.
unsafe impl BufMut for BufDataMut<'_> {
    /// Returns the length of the tailroom. Like every `bytes::BufMut`, `put` panics if more is
    /// written.
    fn remaining_mut(&self) -> usize {
        self.tailroom()
    }

    /// # Panics
    ///
    /// If `by` exceeds the tailroom.
    unsafe fn advance_mut(&mut self, by: usize) {
        let free = self.tailroom();
        assert!(
            by <= free,
            "{by} bytes were appended, and the tailroom has {free}"
        );
        self.grow(by);
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        UninitSlice::new(self.tail())
    }
}
