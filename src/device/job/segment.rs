//! The memory of a job, as the device sees it.
#![expect(
    unsafe_code,
    reason = "a Segment carries raw memory across threads, and a list by pointer"
)]

use std::ptr::NonNull;

/// A piece of registered memory.
///
/// A device that is lent a Segment reads and writes its bytes. Safe code therefore cannot make a
/// Segment, except as a part of another Segment ([`Segment::part`]):
///
/// ```compile_fail,E0451
/// use std::ptr::NonNull;
/// use tokio_doca::device::contract::Segment;
///
/// Segment { addr: NonNull::<u8>::dangling(), len: 4096, key: 0 };
/// ```
///
/// ```compile_fail,E0133
/// # use std::ptr::NonNull;
/// # use tokio_doca::device::contract::Segment;
/// Segment::new(NonNull::<u8>::dangling(), 4096, 0);
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_sge")]
pub struct Segment {
    addr: NonNull<u8>,
    len: usize,
    key: u64,
}

impl Segment {
    /// Names `len` bytes from `addr` on, which the device knows by `key`.
    ///
    /// # Safety
    ///
    /// While the memory is lent to a job that names the Segment, the device reaches these bytes by
    /// `key`, and other parties use them only as the job's leases allow.
    #[inline(always)]
    pub const unsafe fn new(addr: NonNull<u8>, len: usize, key: u64) -> Segment {
        Segment { addr, len, key }
    }

    /// Returns the part of `len` bytes that begins at byte `at`.
    ///
    /// # Panics
    ///
    /// If that part does not lie in the Segment.
    #[must_use]
    #[inline]
    pub fn part(self, at: usize, len: usize) -> Segment {
        let lies_within = at <= self.len && len <= self.len - at;
        assert!(lies_within, "{len} bytes at {at}, of {}", self.len);
        // Integer arithmetic, since the address of imported memory need not be an address in this
        // process.
        let addr = self.addr.map_addr(|addr| addr.saturating_add(at));
        Segment { addr, len, ..self }
    }

    /// Returns the address of the first byte.
    #[inline(always)]
    pub const fn addr(&self) -> NonNull<u8> {
        self.addr
    }

    /// Returns the length in bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // it has no user
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the key that the device gave when the memory was registered
    /// ([`Registration::key`](crate::device::Registration::key)) or imported
    /// ([`Imported::key`](crate::device::Imported::key)). The lists of a
    /// [`CopyJob`](crate::device::CopyJob) may have pieces of both kinds, and of several imports.
    /// All other lists have pieces of registered memory only.
    #[inline(always)]
    pub const fn key(&self) -> u64 {
        self.key
    }
}

// SAFETY: a Segment is only an address; leases decide which code may touch the bytes.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// One Segment, or a pointer to a list of Segments.
#[derive(Clone, Copy, Debug)]
pub struct Segments(Repr);

#[derive(Clone, Copy, Debug)]
enum Repr {
    One(Segment),
    Many(NonNull<Segment>, usize),
}

// SAFETY: `Many` points to Segments, which are Sync, and which live as long as the caller of
// `Segments::list` promised.
unsafe impl Send for Segments {}
// SAFETY: as above.
unsafe impl Sync for Segments {}

impl Segments {
    /// Returns Segments of a single piece.
    #[inline(always)]
    pub fn one(segment: Segment) -> Segments {
        Segments(Repr::One(segment))
    }

    /// Returns Segments that point to `list`.
    ///
    /// # Safety
    ///
    /// The list must stay where it is, unchanged, for as long as the result is used: until the
    /// completion of every Job that names it.
    pub unsafe fn list(list: &[Segment]) -> Segments {
        Segments(Repr::Many(NonNull::from(list).cast(), list.len()))
    }

    /// Returns Segments without memory, for a side that the job does not have.
    pub fn none() -> Segments {
        Segments(Repr::Many(NonNull::dangling(), 0))
    }

    /// Returns the piece if this is a single piece, and `None` if it is a list.
    #[inline(always)]
    pub fn as_one(&self) -> Option<&Segment> {
        match &self.0 {
            Repr::One(segment) => Some(segment),
            Repr::Many(..) => None,
        }
    }

    /// Returns how many bytes the pieces have together.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        match self.as_one() {
            Some(segment) => segment.len(),
            None => {
                let lens = self.as_slice().iter().map(Segment::len);
                lens.fold(0, usize::saturating_add)
            }
        }
    }

    /// Returns the pieces, in order.
    #[inline(always)]
    pub fn as_slice(&self) -> &[Segment] {
        match &self.0 {
            Repr::One(segment) => std::slice::from_ref(segment),
            // SAFETY: the list is alive and unchanged by the contract of `list`; pointer and length
            // are those of a slice. Or this is `none`: no bytes at an aligned address.
            Repr::Many(first, len) => unsafe { std::slice::from_raw_parts(first.as_ptr(), *len) },
        }
    }
}

/// A position in a list of pieces, counted in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    /// The piece at the position, and those behind it.
    list: &'a [Segment],
    /// The offset of the position in the first piece of `list`, in bytes.
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Returns the position after the first `at` bytes of `list`.
    #[inline]
    pub(crate) fn new(list: &'a [Segment], at: usize) -> Cursor<'a> {
        let mut cursor = Cursor { list, at: 0 };
        cursor.advance(at);
        cursor
    }

    /// Advances by `by` bytes, and past empty pieces. Stops at the end of the list.
    #[inline]
    pub(crate) fn advance(&mut self, by: usize) {
        self.at += by;
        while let [first, rest @ ..] = self.list
            && self.at >= first.len()
        {
            self.at -= first.len();
            self.list = rest;
        }
    }

    /// Returns the rest of the piece at the position, which is at least one byte, or `None` at the
    /// end of the list.
    #[inline]
    pub(crate) fn rest(&self) -> Option<Segment> {
        let first = self.list.first()?;
        Some(first.part(self.at, first.len() - self.at))
    }
}
