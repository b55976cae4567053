//! Bufs in the `bytes` ecosystem: handed over as `Bytes` without a copy, read as a `bytes::Buf`,
//! appended to as a `bytes::BufMut`.
#![expect(unsafe_code, reason = "implements BufMut")]

use std::fmt;

use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes};

use super::buf::{Buf, in_use};
use super::guard::{BufData, BufDataMut};
use crate::error::{Error, JobError};

/// The error of a Buf that could not become [`Bytes`]. It returns the Buf.
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
    /// Returns what was wrong.
    pub fn error(&self) -> JobError {
        self.error
    }

    /// The Buf, as it was.
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

/// The owner of such a `Bytes`.
struct Lent(BufData<'static>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Buf {
    /// Returns the data as [`Bytes`], without a copy.
    ///
    /// The `Bytes` is a reader of the Buf like a guard: until the last clone or slice of it has
    /// gone, a write to the Buf by another handle is refused (`InUse`), and its element does not go
    /// home.
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
    /// `InUse` while a job or a guard writes it, `NotPermitted` if others may write it at any time
    /// ([`Mmap::lends_slices`](crate::Mmap::lends_slices)). The error has the Buf.
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

/// What is left of the data, as of a `&[u8]`: advancing makes the guard's slice shorter, and
/// changes nothing of the Buf.
impl bytes::Buf for BufData<'_> {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self
    }

    /// # Panics
    ///
    /// Past the end, as every `bytes::Buf`.
    fn advance(&mut self, by: usize) {
        let left = self.len();
        assert!(by <= left, "{by} bytes to advance, and {left} are left");
        self.skip(by);
    }
}

// SAFETY: `chunk_mut` is the tailroom, all of it, and `remaining_mut` its length; the Lease keeps
// others from changing it, and `advance_mut` makes it shorter by what was filled.
unsafe impl BufMut for BufDataMut<'_> {
    /// Returns the tailroom: `put` panics beyond it, as every `bytes::BufMut`.
    fn remaining_mut(&self) -> usize {
        self.tailroom()
    }

    /// # Panics
    ///
    /// Past the tailroom.
    unsafe fn advance_mut(&mut self, by: usize) {
        let room = self.tailroom();
        assert!(
            by <= room,
            "{by} bytes were appended, and the tailroom has {room}"
        );
        self.grow(by);
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        UninitSlice::new(self.tail())
    }
}
