//! Guards that lend the data of a Buf: Leases with a slice.
#![expect(
    unsafe_code,
    reason = "a Lease is what makes a slice of shared memory sound"
)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::Buf;
use super::lease::{ReadLease, WriteLease};

/// The data of a Buf, for reading. A job that wants to write it is refused (`InUse`) meanwhile.
///
/// Forgetting it is sound: the Buf stays leased.
#[must_use = "the data is lent for as long as this lives"]
pub struct BufData<'a> {
    lease: ReadLease,
    _buf: PhantomData<&'a Buf>,
}

impl BufData<'_> {
    pub(super) fn new(lease: ReadLease) -> Self {
        BufData {
            lease,
            _buf: PhantomData,
        }
    }
}

impl Deref for BufData<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let data = self.lease.byte(self.lease.data());
        // SAFETY:
        // - the data lies within the mapping, which the Lease keeps (invariant of Element);
        // - under a read Lease no job and no guard of this process writes it (tests/leases.rs), and memory that others
        //   may write is never lent (`Buf::data`), or on the caller's word (`Buf::data_unchecked`);
        // - it was zeroed when it was made.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), self.lease.data_len()) }
    }
}

impl fmt::Debug for BufData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The data of a Buf, for writing. Every job and guard on its bytes is refused (`InUse`) meanwhile.
///
/// Forgetting it is sound: the Buf stays leased.
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
}

impl Deref for BufDataMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let data = self.lease.byte(self.lease.data());
        // SAFETY: as for `BufData`; the write Lease excludes every other access.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), self.lease.data_len()) }
    }
}

impl DerefMut for BufDataMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let data = self.lease.byte(self.lease.data());
        // SAFETY: as above, and `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), self.lease.data_len()) }
    }
}

impl fmt::Debug for BufDataMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
