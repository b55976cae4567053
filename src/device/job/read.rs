//! How the CPU reads the source of a job. Bytes that other parties may write meanwhile are read
//! only once, so that all results are of the same bytes.
#![expect(unsafe_code, reason = "reads memory that was lent to a device")]

use std::ptr::NonNull;

use super::segment::{Cursor, Segments};
use crate::device::memory::volatile_copy;

/// The size in bytes of the buffer through which shared memory is read. It fits in the first-level
/// cache.
pub(super) const BOUNCE: usize = 4096;

/// Passes `len` bytes of `src`, after the first `skip`, to `each`, in order and at most `most`
/// bytes at a time.
///
/// # Safety
///
/// The memory is valid, and leased for reading. Unless `shared` is true, no party writes it during
/// the call.
pub(super) unsafe fn read(
    src: &Segments,
    shared: bool,
    skip: usize,
    mut len: usize,
    most: usize,
    mut each: impl FnMut(&[u8]),
) {
    let mut from = Cursor::new(src.as_slice(), skip);
    while let (Some(segment), true) = (from.rest(), len > 0) {
        let (addr, here) = (segment.addr(), len.min(segment.len()));
        if shared {
            // SAFETY: `here` bytes lie in the segment, which is valid, as the caller promises.
            unsafe { read_shared(addr, here, most, &mut each) };
        } else {
            // SAFETY:
            // - as above, and the bytes are initialized, as all bytes of an Mmap are from the
            //   start;
            // - no party writes them, as the caller promises.
            let bytes = unsafe { NonNull::slice_from_raw_parts(addr, here).as_ref() };
            bytes.chunks(most).for_each(&mut each);
        }
        from.advance(here);
        len -= here;
    }
}

/// Calls `each` with copies of the bytes, which other parties may write meanwhile.
///
/// # Safety
///
/// The bytes are valid to read.
#[cold]
unsafe fn read_shared(
    mut addr: NonNull<u8>,
    mut left: usize,
    most: usize,
    each: &mut impl FnMut(&[u8]),
) {
    let mut bounce = [0_u8; BOUNCE];
    while left > 0 {
        let len = left.min(most).min(BOUNCE);
        // SAFETY: valid as the caller promises, and `bounce` does not overlap them.
        unsafe { volatile_copy(addr.as_ptr(), bounce.as_mut_ptr(), len) };
        each(&bounce[..len]);
        left -= len;
        // SAFETY: `len` is no more than what was left.
        addr = unsafe { addr.add(len) };
    }
}
