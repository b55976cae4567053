//! Leases on one element: the right to touch its bytes, and a reference to it.
//!
//! A [`ReadLease`] gives access to the data. A [`WriteLease`] gives access to all bytes behind the
//! headroom, and to the bounds of the data. Leases are counts in the element's word, given back
//! when they are dropped; the thread that gives back the last count returns the element to its
//! slab, and the thread that gives back the last Lease notifies the futures that wait for that.
//! Both may run code of the application. A caller that must not run such code at this point keeps
//! an [`AfterLease`], and drops that later.
#![allow(
    unreachable_pub,
    reason = "Leases are named by the sealed traits of operand"
)]
#![expect(unsafe_code, reason = "addresses within leased memory")]

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use super::element::{Count, Element, Handle};
use super::released::released;
use crate::device::Segment;
use crate::error::{JobError, Reason};
use crate::mem::mmap::Holder;
use crate::mem::ranges::{LeaseRefusal, Left, MAX_READERS};

/// Work left to do after a Lease was given back. Dropping the value does the work, and may run the
/// application's code.
pub(crate) enum AfterLease {
    /// The last count is gone: the element returns to its slab.
    Last(Count),
    /// No Lease is left, and futures wait for that. The element may have gone; this is its address.
    Waiters(usize),
}

impl AfterLease {
    /// Returns the work to do, given which counts of the element are left.
    #[inline(always)]
    fn of(left: Left, count: Count) -> Option<AfterLease> {
        match left {
            Left::Counts => None,
            Left::Nothing => Some(AfterLease::Last(count)),
            Left::Watchers => Some(AfterLease::Waiters(count.address())),
        }
    }
}

impl Drop for AfterLease {
    #[inline(always)]
    fn drop(&mut self) {
        match self {
            AfterLease::Last(count) => count.bring_home(),
            AfterLease::Waiters(address) => released(*address),
        }
    }
}

impl Handle {
    #[inline(always)]
    pub(in crate::mem) fn read(&self) -> Result<ReadLease, JobError> {
        // A copy of the pointer: behind `&self` it would be loaded again after every atomic
        // operation.
        let element = self.0.again();
        match element.read() {
            Ok(()) => Ok(Lease(element)),
            Err(LeaseRefusal::Held) => Err(JobError::of(Reason::SourceInUse)),
            Err(LeaseRefusal::Limit) => Err(JobError::new(Reason::LeaseLimit, MAX_READERS, 0)),
        }
    }

    /// Takes the write Lease, to write the bytes.
    #[inline(always)]
    pub(in crate::mem) fn write(&self) -> Result<WriteLease, JobError> {
        self.check_writable()?;
        self.exclusive()
    }

    /// Takes the write Lease to change the bounds of the data alone, which is allowed in read-only
    /// memory as well.
    #[inline(always)]
    pub(in crate::mem) fn exclusive(&self) -> Result<WriteLease, JobError> {
        let element = self.0.again();
        match element.write() {
            Ok(()) => Ok(Lease(element)),
            Err(_) => Err(JobError::of(Reason::DestinationInUse)),
        }
    }
}

/// The right to touch an element: to read its data, or to write its bytes and the bounds of its
/// data.
pub struct Lease<const WRITES: bool>(Count);

/// The right to read the data of an element.
pub type ReadLease = Lease<false>;

/// The right to write the bytes of an element, and the bounds of its data.
pub type WriteLease = Lease<true>;

impl<const WRITES: bool> Lease<WRITES> {
    /// Returns the address of the first byte of the data.
    #[inline(always)]
    pub(in crate::mem) fn data_start(&self) -> NonNull<u8> {
        // SAFETY: the data lies in the element, and only a write Lease, which is alone, changes its
        // bounds.
        unsafe { self.byte(self.data()) }
    }

    /// Gives the Lease back, and returns the work that is due afterwards, for the caller to drop.
    #[inline(always)]
    pub(in crate::mem) fn end(self) -> Option<AfterLease> {
        let lease = ManuallyDrop::new(self);
        AfterLease::of(lease.give_back(), lease.0.again())
    }

    #[inline(always)]
    fn give_back(&self) -> Left {
        match (self.ranged, WRITES) {
            (true, _) => self.end_ranged(),
            (false, true) => self.word.end_write(),
            (false, false) => self.word.end_read(),
        }
    }

    #[inline(never)]
    fn end_ranged(&self) -> Left {
        // Once the Lease is given back, another thread may bring the element home and drop the
        // Mmap. `mmap` keeps the Mmap until its lock is released.
        let mmap = self.keep_mmap();
        let mut ranges = mmap.ranges();
        let (node, word) = (self.node(), &self.word);
        match WRITES {
            // SAFETY: the node is in the list while a Lease on the element is held, and this is
            // such a Lease.
            true => unsafe { ranges.end_write(node, word) },
            // SAFETY: as above.
            false => unsafe { ranges.end_read(node, word) },
        }
    }
}

impl<const WRITES: bool> Deref for Lease<WRITES> {
    type Target = Element;

    #[inline(always)]
    fn deref(&self) -> &Element {
        &self.0
    }
}

impl<const WRITES: bool> Drop for Lease<WRITES> {
    #[inline(always)]
    fn drop(&mut self) {
        drop(AfterLease::of(self.give_back(), self.0.again()));
    }
}

impl ReadLease {
    /// Returns the data as a device sees it.
    #[inline(always)]
    pub(in crate::mem) fn whole(&self, holder: Holder) -> Result<Segment, JobError> {
        let key = self.key(holder)?;
        // SAFETY: all of the data; the key is the device's for this memory, and this Lease says who
        // uses it.
        Ok(unsafe { Segment::new(self.data_start(), self.data_len(), key) })
    }

    /// Returns a part of the data as a device sees it. `Err` has the end of the data if the part
    /// reaches past it.
    #[inline(always)]
    pub(in crate::mem) fn segment(
        &self,
        holder: Holder,
        from: usize,
        len: usize,
    ) -> Result<Segment, JobError> {
        let data_len = self.data_len();
        if from.checked_add(len).is_none_or(|end| end > data_len) {
            return Err(JobError::new(
                Reason::SliceOutOfData,
                from.saturating_add(len) as u64,
                data_len as u64,
            ));
        }
        let key = self.key(holder)?;
        // SAFETY: the part was checked to lie in the data.
        let addr = unsafe { self.data_start().add(from) };
        // SAFETY: as above. The key is the device's for this memory, and this Lease says who uses
        // it.
        Ok(unsafe { Segment::new(addr, len, key) })
    }
}

impl WriteLease {
    /// Returns the tailroom as a device sees it.
    #[inline(always)]
    pub(in crate::mem) fn segment(&self, holder: Holder) -> Result<Segment, JobError> {
        let key = self.key(holder)?;
        let (data_end, end) = self.data_end();
        // SAFETY: the tailroom is what is left of the element behind the data. The key is the
        // device's for this memory, and this Lease keeps all other holders away.
        Ok(unsafe { Segment::new(end, self.len() - data_end, key) })
    }

    /// Returns the start of the tailroom: its offset in the element, and its address.
    #[inline(always)]
    pub(in crate::mem) fn data_end(&self) -> (usize, NonNull<u8>) {
        let end = self.data() + self.data_len();
        // SAFETY: the data lies in the element, and only this Lease changes its bounds.
        (end, unsafe { self.byte(end) })
    }

    /// Sets the bounds of the data: the `data_len` bytes from offset `data` on.
    pub(in crate::mem) fn set_data(&self, data: usize, data_len: usize) {
        assert!(
            data.checked_add(data_len)
                .is_some_and(|end| end <= self.len())
        );
        self.data.store(data, Relaxed);
        self.data_len.store(data_len, Relaxed);
    }

    /// Adds `by` bytes to the data. If a device reports more than the tailroom has, the excess is
    /// cut off.
    #[inline(always)]
    pub(in crate::mem) fn grow(&self, by: usize) {
        let data_len = self.data_len();
        let free = self.len() - self.data() - data_len;
        self.data_len.store(data_len + by.min(free), Relaxed);
    }
}
