//! What landed in memory of a receive that was dropped goes to the memory of the next one.
#![expect(unsafe_code, reason = "copies between leased memory")]

use crate::device::{Segments, volatile_copy};

/// Copies `len` bytes from the front of one list to that of another; each has at least as many.
///
/// # Safety
///
/// They are what two write Leases of this process are on, and the caller holds both.
pub(crate) unsafe fn hand_over(from: &Segments, to: &Segments, len: usize) {
    let (mut from, mut to) = (from.as_slice().iter(), to.as_slice().iter());
    let (mut source, mut room) = (from.next(), to.next());
    let (mut read, mut written, mut left) = (0, 0, len);
    while let (Some(segment), Some(place)) = (source, room)
        && left > 0
    {
        let part = left.min(segment.len() - read).min(place.len() - written);
        // SAFETY: `read` is within the Segment.
        let src = unsafe { segment.addr().add(read) };
        // SAFETY: `written` is within the Segment.
        let dst = unsafe { place.addr().add(written) };
        // SAFETY: so many bytes are left in both; two write Leases have no byte in common, and who
        // else may touch them does so from outside.
        unsafe { volatile_copy(src.as_ptr(), dst.as_ptr(), part) };
        (read, written, left) = (read + part, written + part, left - part);
        if read == segment.len() {
            (source, read) = (from.next(), 0);
        }
        if written == place.len() {
            (room, written) = (to.next(), 0);
        }
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
            // SAFETY: nobody else has the vectors.
            unsafe { hand_over(&source, &place, len) };
            let moved: Vec<u8> = (1..=len as u8).collect();
            assert_eq!(target[..len], moved);
            assert!(target[len..].iter().all(|&byte| byte == 0));
        }
    }
}
