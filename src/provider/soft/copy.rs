//! The inner loop of copies: copies from one list of Segments to another.
//!
//! Peers may write the source and the destination at any time. So all accesses must be hidden from
//! the compiler.
#![expect(unsafe_code, reason = "copies through raw addresses")]

use super::fabric::Import;
use crate::device::{Cursor, Segment, Segments, volatile_copy};
use crate::error::JobError;

/// Checks that all imports of a copy are still exported. The key of a segment of imported memory is
/// the address of the import; the key of registered memory is 0.
///
/// # Safety
///
/// The keys came from this provider's registrations and imports, and the imports are kept alive.
#[inline(always)]
pub(super) unsafe fn check(src: &Segments, dst: &Segments) -> Result<(), JobError> {
    match (src.as_one(), dst.as_one()) {
        (Some(src), Some(dst)) if src.key() | dst.key() == 0 => Ok(()),
        // SAFETY: as the caller promises.
        _ => unsafe { check_imports(src, dst) },
    }
}

/// # Safety
///
/// As for `check`.
#[cold]
#[inline(never)]
unsafe fn check_imports(src: &Segments, dst: &Segments) -> Result<(), JobError> {
    let mut checked = 0;
    for segment in src.as_slice().iter().chain(dst.as_slice()) {
        let key = segment.key();
        // Mostly, all pieces of a list belong to one import.
        if key != 0 && key != checked {
            // SAFETY: this is the key of an import that is kept alive, as the caller promises.
            unsafe { Import::from_key(key) }.check()?;
            checked = key;
        }
    }
    Ok(())
}

/// The number of bytes from which a copy bypasses the caches, on CPUs where that is faster: a copy
/// of this size would only evict other data. Measured on an EPYC: bypassing begins to win between 4
/// and 16 MiB. From about the size of the last-level cache on, the C library bypasses the caches
/// too.
const STREAM: usize = 8 << 20;

/// Returns true if a copy of `len` bytes bypasses the caches.
#[inline(always)]
pub(super) fn streams(len: usize) -> bool {
    len >= STREAM && stream::wins()
}

/// Checks the imports, and copies all of `len` bytes.
///
/// # Safety
///
/// As for `check` and `copy`.
#[inline(always)]
pub(super) unsafe fn check_and_copy(
    src: &Segments,
    dst: &Segments,
    len: usize,
) -> Result<(), JobError> {
    match (src.as_one(), dst.as_one()) {
        // SAFETY: as the caller promises.
        (Some(src), Some(dst)) if src.key() | dst.key() == 0 => unsafe {
            copy_piece(src, 0, dst, 0, len, false)
        },
        // SAFETY: as the caller promises.
        _ => unsafe { check_and_copy_others(src, dst, len) }?,
    }
    Ok(())
}

/// # Safety
///
/// As for `check_and_copy`.
#[cold]
#[inline(never)]
unsafe fn check_and_copy_others(
    src: &Segments,
    dst: &Segments,
    len: usize,
) -> Result<(), JobError> {
    // SAFETY: as the caller promises.
    unsafe { check(src, dst) }?;
    // SAFETY: as the caller promises.
    unsafe { copy(src, dst, 0, len, false) };
    Ok(())
}

/// Copies `len` bytes of `src` to `dst`, after skipping the first `from` bytes of both lists. Each
/// list has at least `from + len` bytes.
///
/// # Safety
///
/// The memory of both lists is valid, and leased to the caller; no destination overlaps a source.
#[inline(always)]
pub(super) unsafe fn copy(src: &Segments, dst: &Segments, from: usize, len: usize, stream: bool) {
    match (src.as_one(), dst.as_one()) {
        // SAFETY: as the caller promises.
        (Some(src), Some(dst)) if !stream => unsafe {
            copy_piece(src, from, dst, from, len, false)
        },
        // SAFETY: as the caller promises.
        _ => unsafe { copy_lists(src.as_slice(), from, dst.as_slice(), from, len, stream) },
    }
}

/// Copies `len` bytes of the list `src`, from byte `src_at` on, to byte `dst_at` of the piece
/// `dst`.
///
/// # Safety
///
/// As for `copy`; both sides have `len` bytes from these offsets on.
#[inline(always)]
pub(super) unsafe fn gather(
    src: &Segments,
    src_at: usize,
    dst: &Segment,
    dst_at: usize,
    len: usize,
) {
    match src.as_one() {
        // SAFETY: as the caller promises.
        Some(src) => unsafe { copy_piece(src, src_at, dst, dst_at, len, false) },
        None => {
            let dst = std::slice::from_ref(dst);
            // SAFETY: as the caller promises.
            unsafe { copy_lists(src.as_slice(), src_at, dst, dst_at, len, false) }
        }
    }
}

/// Copies `len` bytes of the piece `src`, from byte `src_at` on, to byte `dst_at` of the list
/// `dst`.
///
/// # Safety
///
/// As for `gather`.
#[inline(always)]
pub(super) unsafe fn scatter(
    src: &Segment,
    src_at: usize,
    dst: &Segments,
    dst_at: usize,
    len: usize,
) {
    match dst.as_one() {
        // SAFETY: as the caller promises.
        Some(dst) => unsafe { copy_piece(src, src_at, dst, dst_at, len, false) },
        None => {
            let src = std::slice::from_ref(src);
            // SAFETY: as the caller promises.
            unsafe { copy_lists(src, src_at, dst.as_slice(), dst_at, len, false) }
        }
    }
}

/// # Safety
///
/// As for `copy`; `len` bytes from the offsets on lie in the Segments.
#[inline(always)]
unsafe fn copy_piece(
    from: &Segment,
    from_at: usize,
    to: &Segment,
    to_at: usize,
    len: usize,
    stream: bool,
) {
    debug_assert!(from_at + len <= from.len() && to_at + len <= to.len());
    // SAFETY: the offset lies in the Segment.
    let src = unsafe { from.addr().add(from_at) };
    // SAFETY: as above.
    let dst = unsafe { to.addr().add(to_at) };
    if stream {
        // SAFETY: valid, disjoint and leased, as the caller promises.
        unsafe { stream::copy(src.as_ptr(), dst.as_ptr(), len) };
    } else {
        // SAFETY: as above.
        unsafe { volatile_copy(src.as_ptr(), dst.as_ptr(), len) };
    }
}

/// # Safety
///
/// As for `copy`.
#[cold]
#[inline(never)]
unsafe fn copy_lists(
    from: &[Segment],
    from_at: usize,
    to: &[Segment],
    to_at: usize,
    mut left: usize,
    stream: bool,
) {
    let (mut src, mut dst) = (Cursor::new(from, from_at), Cursor::new(to, to_at));
    // A list that is too short ends the loop: the copy never reaches past its end.
    while let (Some(source), Some(target), true) = (src.rest(), dst.rest(), left > 0) {
        let part = left.min(source.len()).min(target.len());
        // SAFETY: `part` fits on both sides; the rest as the caller promises.
        unsafe { copy_piece(&source, 0, &target, 0, part, stream) };
        left -= part;
        src.advance(part);
        dst.advance(part);
    }
}

#[cfg(target_arch = "x86_64")]
mod stream {
    //! Non-temporal stores. SSE2 is part of the architecture. Memory is the bottleneck, so that
    //! wider stores gain nothing.

    use std::arch::asm;
    use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch, _mm_sfence};

    use crate::device::volatile_copy;

    /// Returns true if non-temporal stores pay: on AMD's CPUs, which alone have SSE4a. On a Xeon
    /// with AMX, for 1 to 256 MiB, these stores took 1.0 to 1.7 times as long as the C library if
    /// the memory was touched for the first time, and 1.2 to 2.8 times as long if the bytes were in
    /// the last cache. They were faster at no size.
    #[inline]
    pub(super) fn wins() -> bool {
        std::arch::is_x86_feature_detected!("sse4a")
    }

    const LINE: usize = 64;
    /// The number of bytes by which the prefetch of the source is ahead of the copy.
    const AHEAD: usize = 8 * LINE;

    /// # Safety
    ///
    /// As `ptr::copy_nonoverlapping`.
    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        let head = dst.align_offset(LINE).min(len);
        // SAFETY: `head` is no more than `len`.
        unsafe { volatile_copy(src, dst, head) };
        let mut at = head;
        while len - at >= LINE {
            // Near the end this prefetches bytes that are not used; a prefetch never faults.
            let ahead = src.wrapping_add(at + AHEAD).cast::<i8>();
            _mm_prefetch::<_MM_HINT_NTA>(ahead);
            // SAFETY: the line lies within `len`.
            let from = unsafe { src.add(at) };
            // SAFETY: as above.
            let to = unsafe { dst.add(at) };
            // SAFETY: a line is valid to be read, in any alignment. `to` is valid to be written,
            // and aligned to a line, since the head ends at one. The compiler assumes that the
            // assembly may read and write any memory.
            unsafe {
                asm!(
                    "movdqu {a}, [{from}]",
                    "movdqu {b}, [{from} + 16]",
                    "movdqu {c}, [{from} + 32]",
                    "movdqu {d}, [{from} + 48]",
                    "movntdq [{to}], {a}",
                    "movntdq [{to} + 16], {b}",
                    "movntdq [{to} + 32], {c}",
                    "movntdq [{to} + 48], {d}",
                    from = in(reg) from,
                    to = in(reg) to,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
            at += LINE;
        }
        // Non-temporal stores are not ordered by the store that publishes the completion.
        _mm_sfence();
        // SAFETY: `at` is no more than `len`.
        let from = unsafe { src.add(at) };
        // SAFETY: as above.
        let to = unsafe { dst.add(at) };
        // SAFETY: the rest lies within `len`.
        unsafe { volatile_copy(from, to, len - at) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod stream {
    //! On other architectures the usual copy is the best known.

    use crate::device::volatile_copy;

    pub(super) fn wins() -> bool {
        false
    }

    /// # Safety
    ///
    /// As `ptr::copy_nonoverlapping`.
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: as the caller promises.
        unsafe { volatile_copy(src, dst, len) };
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ptr::NonNull;

    fn segment(bytes: &mut [u8]) -> Segment {
        let len = bytes.len();
        // SAFETY: the test keeps the bytes, and leaves them alone while they are lent.
        unsafe { Segment::new(NonNull::from(bytes).cast(), len, 0) }
    }

    fn segments(bytes: &mut [u8], cuts: &[usize]) -> Vec<Segment> {
        let mut rest = bytes;
        let mut list = Vec::new();
        for &cut in cuts {
            let (part, tail) = rest.split_at_mut(cut.min(rest.len()));
            list.push(segment(part));
            rest = tail;
        }
        list.push(segment(rest));
        list
    }

    proptest! {
        #[test]
        fn lists_cut_anywhere_copy_like_one_piece(
            from_cuts in proptest::collection::vec(0usize..40, 0..8),
            to_cuts in proptest::collection::vec(0usize..40, 0..8),
            start in 0usize..=200,
            len in 0usize..=200,
            stream: bool,
        ) {
            let len = len.min(200 - start);
            let mut from: Vec<u8> = (0..200).map(|i| i as u8 + 1).collect();
            let mut to = vec![0u8; 200];
            let (src, dst) = (segments(&mut from, &from_cuts), segments(&mut to, &to_cuts));
            // SAFETY: both lists are pieces of the two vectors, which outlive the call.
            let (src, dst) = (unsafe { Segments::list(&src) }, unsafe { Segments::list(&dst) });
            // SAFETY: as above.
            unsafe { copy(&src, &dst, start, len, stream) };
            prop_assert_eq!(&to[start..start + len], &from[start..start + len]);
            prop_assert!(to[..start].iter().all(|&byte| byte == 0), "nothing in front");
            prop_assert!(to[start + len..].iter().all(|&byte| byte == 0), "nothing behind the end");
        }
    }

    #[test]
    fn streams_copy_like_any_other_way_at_every_alignment() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for (start, to_start, len) in [
            (0, 0, 1000),
            (1, 0, 999),
            (0, 3, 500),
            (63, 17, 64),
            (5, 5, 63),
            (9, 40, 0),
        ] {
            let mut to = vec![0xee_u8; 1000];
            let (src, dst) = (&from[start..start + len], &mut to[to_start..to_start + len]);
            // SAFETY: both are slices of this length.
            unsafe { stream::copy(src.as_ptr(), dst.as_mut_ptr(), len) };
            assert_eq!(to[to_start..to_start + len], from[start..start + len]);
            assert!(
                to[..to_start]
                    .iter()
                    .chain(&to[to_start + len..])
                    .all(|&byte| byte == 0xee)
            );
        }
    }
}
