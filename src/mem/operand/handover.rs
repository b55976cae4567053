//! Copies a message that arrived for a dropped receive to the memory of the next receive.
#![expect(unsafe_code, reason = "copies between leased memory")]

use crate::device::{Cursor, Segments, volatile_copy};

/// Copies `len` bytes from the front of one list of segments to the front of another. Each list has
/// at least `len` bytes.
///
/// # Safety
///
/// The lists are the memory of two write Leases of this process, and the caller holds both.
pub(crate) unsafe fn hand_over(from: &Segments, to: &Segments, len: usize) {
    let (mut src, mut dst) = (
        Cursor::new(from.as_slice(), 0),
        Cursor::new(to.as_slice(), 0),
    );
    let mut left = len;
    while let (Some(source), Some(piece), true) = (src.rest(), dst.rest(), left > 0) {
        let part = left.min(source.len()).min(piece.len());
        // SAFETY: both pieces have `part` bytes; two write Leases have no byte in common, and other
        // parties that may touch the bytes do so from outside.
        unsafe { volatile_copy(source.addr().as_ptr(), piece.addr().as_ptr(), part) };
        src.advance(part);
        dst.advance(part);
        left -= part;
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::device::Segment;

    #[test]
    fn pieces_of_any_lengths_are_gathered_and_scattered() {
        let pieces = |bytes: &mut [u8], cuts: &[usize]| {
            let mut at = NonNull::from(bytes).cast::<u8>();
            let piece = |&len: &usize| {
                let addr = at;
                // SAFETY: the cuts add up to the slice.
                at = unsafe { at.add(len) };
                // SAFETY: the test keeps the bytes, and leaves them alone while they are lent.
                unsafe { Segment::new(addr, len, 0) }
            };
            cuts.iter().map(piece).collect::<Vec<_>>()
        };
        for (from, to, len) in [
            (&[10][..], &[10][..], 10),
            (&[3, 7], &[5, 5], 10),
            (&[1, 1, 8], &[9, 1], 9),
            (&[10], &[2, 2, 2, 4], 7),
            (&[4, 6], &[10], 0),
        ] {
            let mut source: Vec<u8> = (1..=10).collect();
            let mut target = vec![0; 10];
            let (source, place) = (pieces(&mut source, from), pieces(&mut target, to));
            // SAFETY: both lists outlive the calls.
            let [source, place] = [&source, &place].map(|list| unsafe { Segments::list(list) });
            // SAFETY: no other party has the vectors.
            unsafe { hand_over(&source, &place, len) };
            let moved: Vec<u8> = (1..=len as u8).collect();
            assert_eq!(target[..len], moved);
            assert!(target[len..].iter().all(|&byte| byte == 0));
        }
    }
}
