//! Atomics on the data of a Buf, also in memory that a peer or another process may write at any
//! time. Such memory is reached by opaque copies and atomics, and is never lent as a slice.
//!
//! Two rules hold. No code reads a byte twice and assumes the same value. Copies of such memory use
//! [`volatile_copy`](crate::device::volatile_copy), which is opaque to the compiler.
//!
//! In memory that a peer may write anyway, an atomic takes a read Lease: many atomics and reading
//! jobs can run at once, while jobs and copies that write are refused. In other memory, an atomic
//! that changes the bytes takes the write Lease.
#![expect(
    unsafe_code,
    reason = "accesses memory that others may write meanwhile"
)]

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use super::buf::{Buf, in_use};
use crate::error::{JobError, Reason};
use crate::mem::element::Element;

/// Returns the eight bytes of the data from `at` on, as an atomic.
///
/// # Safety
///
/// The caller has a Lease on the element, and keeps it for as long as it uses the result.
unsafe fn word(element: &Element, at: usize) -> Result<&AtomicU64, JobError> {
    const LEN: usize = size_of::<u64>();
    let data_len = element.data_len();
    let end = at.saturating_add(LEN);
    if end > data_len {
        let (end, len) = (end as u64, data_len as u64);
        return Err(JobError::new(Reason::SliceOutOfData, end, len));
    }
    // SAFETY: the eight bytes lie in the data, which lies in the element and does not change under
    // a Lease.
    let byte = unsafe { element.byte(element.data() + at) };
    let word = byte.cast::<AtomicU64>();
    if !word.is_aligned() {
        return Err(JobError::new(Reason::Misaligned, at as u64, LEN as u64));
    }
    // SAFETY: aligned, initialized, and valid while the Lease keeps the element; what others of
    // this process do to these bytes meanwhile is atomic, by the rules in the module's
    // documentation.
    Ok(unsafe { word.as_ref() })
}

/// 64-bit atomics on the data, in the machine's byte order. All are `SeqCst`. A peer with the
/// permission `RDMA_ATOMIC` operates on the same values.
impl Buf {
    /// Loads the 64-bit value at byte `at` of the data.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the value reaches past the data, or if its address is not a multiple of 8;
    /// `InUse` while a job or a guard of this process writes the Buf.
    pub fn load(&self, at: usize) -> Result<u64, JobError> {
        let lease = self.0.read().map_err(in_use)?;
        // SAFETY: the Lease is kept until the word was loaded.
        let word = unsafe { word(&lease, at) }?;
        if self.0.check_writable().is_err() {
            // The pages of the Buf may be mapped for reading only, where only Relaxed loads are
            // guaranteed to work (`std::sync::atomic`, "Atomic accesses to read-only memory").
            fence(SeqCst);
            let value = word.load(Relaxed);
            fence(SeqCst);
            return Ok(value);
        }
        Ok(word.load(SeqCst))
    }

    /// Stores `value` at byte `at` of the data.
    ///
    /// # Errors
    ///
    /// As [`Buf::load`]; `InUse` also while a job or a guard reads the Buf, unless a peer or
    /// another process may write it anyway; `NotPermitted` if the Mmap is `LOCAL_READ_ONLY`.
    pub fn store(&self, at: usize, value: u64) -> Result<(), JobError> {
        self.change(at, |word| word.store(value, SeqCst))
    }

    /// Adds `value` to the 64-bit value at byte `at` of the data, wrapping around, and returns the
    /// previous value.
    ///
    /// # Errors
    ///
    /// As [`Buf::store`].
    pub fn fetch_add(&self, at: usize, value: u64) -> Result<u64, JobError> {
        self.change(at, |word| word.fetch_add(value, SeqCst))
    }

    /// Stores `new` at byte `at` of the data if the value there is `current`. Returns the previous
    /// value: in `Ok` if it was replaced, in `Err` if not.
    ///
    /// # Errors
    ///
    /// As [`Buf::store`].
    pub fn compare_exchange(
        &self,
        at: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, JobError> {
        self.change(at, |word| {
            word.compare_exchange(current, new, SeqCst, SeqCst)
        })
    }

    fn change<R>(&self, at: usize, change: impl FnOnce(&AtomicU64) -> R) -> Result<R, JobError> {
        if self.0.is_shared() {
            self.0.check_writable()?;
            let lease = self.0.read().map_err(in_use)?;
            // SAFETY: the Lease is kept until the word was changed.
            Ok(change(unsafe { word(&lease, at) }?))
        } else {
            let lease = self.0.write().map_err(in_use)?;
            // SAFETY: as above.
            Ok(change(unsafe { word(&lease, at) }?))
        }
    }
}
