//! Memory that others may write at any time: opaque copies and atomics, and never a slice.
//!
//! Two rules. Nothing here is read twice and believed to be the same. And the one routine for
//! copies ([`volatile_copy`](crate::device::volatile_copy)) is opaque to the compiler.
//!
//! Atomics and Leases: where others write anyway an atomic takes a read Lease, so that many of
//! them, and jobs that read, continue at once, and jobs and copies that write are kept away.
//! Elsewhere an atomic that changes the bytes takes the write Lease.
#![expect(
    unsafe_code,
    reason = "accesses what somebody else may write meanwhile"
)]

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use super::buf::{Buf, in_use};
use crate::error::{JobError, Reason};
use crate::mem::element::Element;

/// Returns the eight bytes of the data from `at` on.
///
/// # Safety
///
/// The caller has a Lease of the element, and keeps it for as long as the answer.
unsafe fn word(element: &Element, at: usize) -> Result<&AtomicU64, JobError> {
    const LEN: usize = size_of::<u64>();
    let data_len = element.data_len();
    let end = at.saturating_add(LEN);
    if end > data_len {
        let (end, len) = (end as u64, data_len as u64);
        return Err(JobError::new(Reason::SliceOutOfData, end, len));
    }
    // SAFETY: they lie in the data, which lies in the element and does not change under a Lease.
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

/// 64-bit atomics on the data, in the byte order of the machine: they are what an `RDMA_ATOMIC` of
/// a peer meets. All are `SeqCst`.
impl Buf {
    /// Loads the eight bytes of the data from its byte `at` on.
    ///
    /// # Errors
    ///
    /// `InvalidValue` past the data, or if their address is no multiple of 8; `InUse` while a job
    /// or a guard of this process writes the Buf.
    pub fn load(&self, at: usize) -> Result<u64, JobError> {
        let lease = self.0.read().map_err(in_use)?;
        // SAFETY: the Lease is kept until the word was loaded.
        let word = unsafe { word(&lease, at) }?;
        if self.0.check_writable().is_err() {
            // Its pages may be mapped for reading only, where Relaxed loads alone are promised to
            // work (`std::sync::atomic`, "Atomic accesses to read-only memory").
            fence(SeqCst);
            let value = word.load(Relaxed);
            fence(SeqCst);
            return Ok(value);
        }
        Ok(word.load(SeqCst))
    }

    /// Stores them.
    ///
    /// # Errors
    ///
    /// As [`Buf::load`]; `InUse` also while a job or a guard reads the Buf, except where others may
    /// write it anyway; `NotPermitted` if the Mmap is `LOCAL_READ_ONLY`.
    pub fn store(&self, at: usize, value: u64) -> Result<(), JobError> {
        self.change(at, |word| word.store(value, SeqCst))
    }

    /// Adds to them, wrapping, and answers what they were.
    ///
    /// # Errors
    ///
    /// As [`Buf::store`].
    pub fn fetch_add(&self, at: usize, value: u64) -> Result<u64, JobError> {
        self.change(at, |word| word.fetch_add(value, SeqCst))
    }

    /// Makes them `new` if they are `current`; answers what they were, as `Err` if they were not.
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
