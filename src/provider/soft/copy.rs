//! The copy engine's inner loop: gathers from one list of Segments, scatters to the other.
#![expect(unsafe_code, reason = "copies through raw addresses")]

use crate::device::{Segment, Segments};

/// Copies `len` bytes; the lists have at least as many.
///
/// # Safety
///
/// The memory of both lists is valid, and leased to the caller; no destination overlaps a source.
#[inline]
pub(super) unsafe fn copy(src: &Segments, dst: &Segments, len: usize) {
    match (src.as_one(), dst.as_one()) {
        // SAFETY: as the caller promises.
        (Some(from), Some(to)) => unsafe { copy_piece(from, 0, to, 0, len) },
        // SAFETY: as the caller promises.
        _ => unsafe { copy_lists(src.as_slice(), dst.as_slice(), len) },
    }
}

/// # Safety
///
/// As for `copy`; `len` bytes from the offsets on lie in the Segments.
#[inline]
unsafe fn copy_piece(from: &Segment, from_at: usize, to: &Segment, to_at: usize, len: usize) {
    debug_assert!(from_at + len <= from.len && to_at + len <= to.len);
    // SAFETY: the offset lies in the Segment.
    let src = unsafe { from.addr.add(from_at) };
    // SAFETY: as above.
    let dst = unsafe { to.addr.add(to_at) };
    // SAFETY: valid, disjoint and leased, as the caller promises.
    unsafe { src.copy_to_nonoverlapping(dst, len) };
}

/// # Safety
///
/// As for `copy`.
#[cold]
unsafe fn copy_lists(from: &[Segment], to: &[Segment], mut left: usize) {
    let (mut from, mut to) = (from.iter(), to.iter());
    let (mut src, mut src_at) = (from.next(), 0);
    let (mut dst, mut dst_at) = (to.next(), 0);
    // A list that is too short would end the loop, and not reach past it.
    while let (Some(source), Some(target), true) = (src, dst, left > 0) {
        let part = left.min(source.len - src_at).min(target.len - dst_at);
        // SAFETY: `part` fits on both sides; the rest as the caller promises.
        unsafe { copy_piece(source, src_at, target, dst_at, part) };
        left -= part;
        src_at += part;
        dst_at += part;
        if src_at == source.len {
            (src, src_at) = (from.next(), 0);
        }
        if dst_at == target.len {
            (dst, dst_at) = (to.next(), 0);
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ptr::NonNull;

    fn segments(bytes: &mut [u8], cuts: &[usize]) -> Vec<Segment> {
        let mut rest = bytes;
        let mut list = Vec::new();
        for &cut in cuts {
            let (part, tail) = rest.split_at_mut(cut.min(rest.len()));
            list.push(Segment {
                addr: NonNull::from(&mut *part).cast(),
                len: part.len(),
                key: 0,
            });
            rest = tail;
        }
        list.push(Segment {
            addr: NonNull::from(&mut *rest).cast(),
            len: rest.len(),
            key: 0,
        });
        list
    }

    proptest! {
        #[test]
        fn lists_cut_anywhere_copy_like_one_piece(
            from_cuts in proptest::collection::vec(0usize..40, 0..8),
            to_cuts in proptest::collection::vec(0usize..40, 0..8),
            len in 0usize..=200,
        ) {
            let mut from: Vec<u8> = (0..200).map(|i| i as u8 + 1).collect();
            let mut to = vec![0u8; 200];
            let (src, dst) = (segments(&mut from, &from_cuts), segments(&mut to, &to_cuts));
            // SAFETY: both lists are pieces of the two vectors, which outlive the call.
            let (src, dst) = (unsafe { Segments::list(&src) }, unsafe { Segments::list(&dst) });
            // SAFETY: as above.
            unsafe { copy(&src, &dst, len) };
            prop_assert_eq!(&to[..len], &from[..len]);
            prop_assert!(to[len..].iter().all(|&byte| byte == 0), "nothing behind the end");
        }
    }
}
