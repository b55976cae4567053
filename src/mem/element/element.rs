//! The descriptor behind every Buf: where its bytes are, its headroom, data and tailroom, and the
//! count of its holders.
//!
//! ```text
//! head          data           data + data_len        head + len
//! | headroom     | data         | tailroom             |
//! ```
//!
//! Invariants: `data + data_len <= len`. `data` and `data_len` are written under the write Lease
//! only, and read under a Lease where unsafe code relies on them. A getter without a Lease may see
//! values of different writes, each of them valid. `head`, `len` and `mmap` are written only while
//! the element has no holder.
//!
//! Four kinds of holder share one word: [`Handle`] (a Buf), `ReadLease`, `WriteLease`, and the free
//! list.
#![allow(
    unreachable_pub,
    reason = "Leases are named by the sealed traits of operand"
)]
#![expect(
    unsafe_code,
    reason = "holders reach an element through a pointer that their count keeps valid"
)]

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};

use super::slab::Slab;
use crate::error::{JobError, Reason};
use crate::mem::mmap::{Holder, KeyEntry, Mmap, MmapInner};
use crate::mem::ranges::{Busy, LeaseRefusal, LeaseWord, Left, RangeNode};

#[repr(align(128))]
pub struct Element {
    pub(super) word: LeaseWord,
    pub(super) data: AtomicUsize,
    pub(super) data_len: AtomicUsize,
    head: AtomicPtr<u8>,
    len: AtomicUsize,
    /// The Mmap of the bytes. A pool's slab keeps it; an element of an inventory holds a count
    /// while a Buf uses it.
    mmap: AtomicPtr<MmapInner>,
    /// Copied from the Mmap, so that jobs need not read it: the keys of its first device, one for
    /// each use, and whether its access allows writes.
    near: [KeyEntry; 2],
    writable: AtomicBool,
    /// True if a peer or another process may write the bytes at any time.
    shared: AtomicBool,
    /// True for an element of an inventory, whose Leases are also in the Mmap's interval trees.
    pub(super) ranged: bool,
    index: u32,
    slab: NonNull<Slab>,
    node: RangeNode,
}

// SAFETY: `slab` is reached only by the thread that brings the element home, and a Slab is Send and
// Sync; the other fields are.
unsafe impl Send for Element {}
// SAFETY: as above.
unsafe impl Sync for Element {}

impl Element {
    /// Returns an element of a pool: its bytes are fixed.
    pub(in crate::mem) fn fixed(
        mmap: &Mmap,
        range: Range<usize>,
        index: u32,
        slab: NonNull<Slab>,
    ) -> Element {
        let element = Element::unplaced(index, slab);
        element.place(&mmap.0, &range);
        Element {
            ranged: false,
            ..element
        }
    }

    /// Returns an element of an inventory: its bytes are chosen when it is taken.
    pub(in crate::mem) fn unplaced(index: u32, slab: NonNull<Slab>) -> Element {
        Element {
            word: LeaseWord::new(),
            data: AtomicUsize::new(0),
            data_len: AtomicUsize::new(0),
            head: AtomicPtr::default(),
            len: AtomicUsize::new(0),
            mmap: AtomicPtr::default(),
            near: std::array::from_fn(|_| KeyEntry::new()),
            writable: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            ranged: true,
            index,
            slab,
            node: RangeNode::new(),
        }
    }

    fn place(&self, mmap: &Arc<MmapInner>, range: &Range<usize>) {
        self.head.store(mmap.at(range.start).as_ptr(), Relaxed);
        self.len.store(range.len(), Relaxed);
        self.mmap.store(Arc::as_ptr(mmap).cast_mut(), Relaxed);
        for (near, entry) in self.near.iter().zip(mmap.keys()) {
            near.copy(entry);
        }
        self.writable.store(mmap.access().local_writable(), Relaxed);
        self.shared.store(mmap.is_shared(), Relaxed);
    }

    /// Returns the holder's key for the bytes.
    #[inline(always)]
    pub(in crate::mem) fn key(&self, holder: Holder) -> Result<u64, JobError> {
        let [first, second] = &self.near;
        match first.key(holder).or_else(|| second.key(holder)) {
            Some(key) => Ok(key),
            None => self.mmap().key(holder),
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.word.is_free()
    }

    /// Returns true if the element was never taken.
    pub(super) fn is_fresh(&self) -> bool {
        self.word.is_fresh()
    }

    pub(super) fn mmap(&self) -> &MmapInner {
        // SAFETY: the caller holds the element or brings it home, and the element (or its slab)
        // holds a count of the Mmap since `place`.
        unsafe { &*self.mmap.load(Relaxed) }
    }

    /// Returns a new reference to the Mmap.
    pub(super) fn keep_mmap(&self) -> Arc<MmapInner> {
        let mmap = self.mmap.load(Relaxed);
        // SAFETY: as in `mmap`: there is a count, so another one may be made.
        unsafe { Arc::increment_strong_count(mmap) };
        // SAFETY: the count just made is this one's, and `place` stored the address of an Arc's
        // content.
        unsafe { Arc::from_raw(mmap) }
    }

    pub(super) fn node(&self) -> NonNull<RangeNode> {
        NonNull::from(&self.node)
    }

    /// Returns the address of the element's first byte. No code reaches the bytes without a Lease.
    #[inline(always)]
    pub(in crate::mem) fn head(&self) -> NonNull<u8> {
        // SAFETY: `place` wrote the address of a mapping before the element was handed out.
        unsafe { NonNull::new_unchecked(self.head.load(Relaxed)) }
    }

    /// Returns the address of the byte at `offset`; one past the end is allowed.
    ///
    /// # Safety
    ///
    /// The element is at least `offset` bytes long.
    #[inline(always)]
    pub(in crate::mem) unsafe fn byte(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: `head` is the address of a mapping's part, which is as long as the element.
        unsafe { self.head().add(offset) }
    }

    pub(in crate::mem) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    pub(in crate::mem) fn data(&self) -> usize {
        self.data.load(Relaxed)
    }

    pub(in crate::mem) fn data_len(&self) -> usize {
        self.data_len.load(Relaxed)
    }

    /// Returns the number of bytes behind the data. Without a Lease, `data` and `data_len` may be
    /// of different writes, so the result is clamped at 0.
    pub(in crate::mem) fn tailroom(&self) -> usize {
        self.len()
            .saturating_sub(self.data())
            .saturating_sub(self.data_len())
    }

    /// Returns true if a peer or another process may write the bytes at any time: no slice of them
    /// is lent, and every access is volatile or atomic.
    pub(in crate::mem) fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    /// Returns the addresses of the element's bytes.
    pub(in crate::mem) fn span(&self) -> Range<usize> {
        let start = self.head().addr().get();
        start..start + self.len()
    }

    #[inline(always)]
    pub(super) fn read(&self) -> Result<(), LeaseRefusal> {
        if self.ranged {
            self.read_ranged()
        } else {
            self.word.read()
        }
    }

    #[inline(always)]
    pub(super) fn write(&self) -> Result<(), LeaseRefusal> {
        if self.ranged {
            self.write_ranged()
        } else {
            self.word.write()
        }
    }

    #[inline(never)]
    fn read_ranged(&self) -> Result<(), LeaseRefusal> {
        // SAFETY: the node was added when the element was taken, and stays in the list until the
        // element's last holder has gone.
        unsafe { self.mmap().ranges().read(self.node(), &self.word) }
    }

    #[inline(never)]
    fn write_ranged(&self) -> Result<(), LeaseRefusal> {
        // SAFETY: as in `read_ranged`.
        unsafe { self.mmap().ranges().write(self.node(), &self.word) }
    }

    /// Returns an element of an inventory, which has no holder any more, to its slab.
    ///
    /// # Safety
    ///
    /// The word is 0, and the caller made it 0.
    unsafe fn bring_home_ranged(element: NonNull<Element>) {
        // SAFETY: the element has no holder, and is not home yet, so that it lies in its slab.
        let this = unsafe { element.as_ref() };
        let (mmap, slab, index) = (this.mmap.load(Relaxed), this.slab, this.index);
        // SAFETY: the node was added when the element was taken.
        unsafe { this.mmap().ranges().forget(this.node()) };
        // SAFETY: the element has no holder, as the caller says; `slab` and `index` are those that
        // it was made with.
        unsafe { Slab::bring_home(slab, index) };
        // SAFETY: `Handle::ranged` made this count. Another caller may have taken the element by
        // now, but not the count.
        unsafe { Arc::decrement_strong_count(mmap) };
    }
}

/// One reference count of an element. It keeps the element alive, and all that the element depends
/// on.
pub struct Count(NonNull<Element>);

// SAFETY: an Element is Send and Sync, and its count is atomic.
unsafe impl Send for Count {}
// SAFETY: as above.
unsafe impl Sync for Count {}

impl Deref for Count {
    type Target = Element;

    #[inline(always)]
    fn deref(&self) -> &Element {
        // SAFETY: this count keeps the element, which lies in its slab until it has no holder.
        unsafe { self.0.as_ref() }
    }
}

impl Count {
    /// Copies the pointer without counting. The caller has counted a Lease itself, or has given
    /// this count back and does the work that is due after the last one.
    #[inline(always)]
    pub(super) fn again(&self) -> Count {
        Count(self.0)
    }

    /// Returns the address of the element, which may have gone.
    pub(super) fn address(&self) -> usize {
        self.0.addr().get()
    }

    /// Returns the element to its slab, after its last count was given back.
    pub(super) fn bring_home(&self) {
        if self.ranged {
            // SAFETY: the caller has given the last count back, which made the word 0.
            unsafe { Element::bring_home_ranged(self.0) };
        } else {
            // SAFETY: the caller has given the last count back, so the element has no holder;
            // `slab` and `index` are those that it was made with.
            unsafe { Slab::bring_home(self.slab, self.index) };
        }
    }
}

/// A counted handle of an element: the content of a `Buf`.
pub(in crate::mem) struct Handle(pub(super) Count);

impl Handle {
    /// Returns the first handle of an element just taken from a pool, without headroom and data.
    #[inline]
    pub(in crate::mem) fn first(element: &Element) -> Handle {
        element.data.store(0, Relaxed);
        element.data_len.store(0, Relaxed);
        element.word.begin();
        Handle(Count(NonNull::from(element)))
    }

    /// Returns the first handle of an element just taken from an inventory, placed at `range`.
    /// `Err` says why the range cannot be used; the element is back in its slab then.
    pub(in crate::mem) fn ranged(
        element: &Element,
        mmap: &Mmap,
        range: Range<usize>,
    ) -> Result<Handle, Busy> {
        // SAFETY: the element was just taken: it is in no list, and stays in its slab.
        let added = unsafe { mmap.0.ranges().add(element.node(), range.clone()) };
        if let Err(busy) = added {
            // SAFETY: the element was just taken, and no other code knows it.
            unsafe { Slab::bring_home(element.slab, element.index) };
            return Err(busy);
        }
        element.place(&mmap.0, &range);
        std::mem::forget(Arc::clone(&mmap.0));
        Ok(Handle::first(element))
    }

    /// Checks whether the access allows this process to write the bytes.
    #[inline(always)]
    pub(in crate::mem) fn check_writable(&self) -> Result<(), JobError> {
        if !self.0.writable.load(Relaxed) {
            return Err(JobError::of(Reason::ReadOnly));
        }
        Ok(())
    }

    /// Sets the data to all bytes. The caller has the only handle.
    pub(in crate::mem) fn fill(&self) {
        self.0.data_len.store(self.0.len(), Relaxed);
    }
}

impl Deref for Handle {
    type Target = Element;

    #[inline(always)]
    fn deref(&self) -> &Element {
        &self.0
    }
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        self.0.word.retain();
        Handle(Count(self.0.0))
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if self.0.word.release() == Left::Nothing {
            self.0.bring_home();
        }
    }
}
