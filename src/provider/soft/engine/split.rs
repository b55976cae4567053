//! One large copy that several engines do together.
//!
//! The engine that has the Job offers it in pieces, and takes pieces itself until none is left;
//! others take some if they are awake. A piece is claimed by one exchange on the number of pieces
//! that are left. Who offered waits until all claimed pieces are done, and only then changes the
//! offer: so whoever claimed one may read it.
#![expect(unsafe_code, reason = "copies pieces of a Job that another engine has")]

use std::ptr::NonNull;

use super::super::copy;
use crate::device::{Segment, Segments};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{UnsafeCell, look_again};

/// Shorter copies are not worth it.
pub(super) const LEAST: usize = 64 << 10;
/// A copy is cut into so many pieces, so that a slow helper holds up little.
const PIECES: usize = 8;
const SMALLEST: usize = 16 << 10;
const LARGEST: usize = 1 << 20;

/// What one engine offers to the others.
#[repr(align(128))]
pub(in super::super) struct Split {
    /// How many pieces of the offer are not claimed.
    open: AtomicUsize,
    done: AtomicUsize,
    whole: UnsafeCell<Whole>,
}

/// A copy, and how it is cut.
#[derive(Clone, Copy)]
struct Whole {
    src: NonNull<u8>,
    dst: NonNull<u8>,
    len: usize,
    piece: usize,
}

// SAFETY: `whole` is written by the one engine that offers, while nothing is claimed, and read by
// those that claimed. It names memory that a Job in flight lent to the device, and that its engine
// keeps until all pieces are done.
unsafe impl Send for Split {}
// SAFETY: as above.
unsafe impl Sync for Split {}

impl Split {
    pub(in super::super) fn new() -> Split {
        Split {
            open: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            whole: UnsafeCell::new(Whole {
                src: NonNull::dangling(),
                dst: NonNull::dangling(),
                len: 0,
                piece: 0,
            }),
        }
    }

    /// Whether there is a piece to claim.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) != 0
    }

    /// Copies, together with whoever helps. `offered` is called once the pieces are there to be
    /// claimed.
    ///
    /// # Safety
    ///
    /// The memory is valid and leased during the call, source and destination have so many bytes
    /// and do not overlap, and one copy at a time is offered here.
    #[cold]
    pub(in super::super) unsafe fn copy(
        &self,
        src: &Segment,
        dst: &Segment,
        len: usize,
        offered: impl FnOnce(),
    ) {
        // SAFETY: as the caller promises, until the loop below has seen all pieces done.
        let pieces = unsafe { self.offer(src, dst, len) };
        offered();
        while self.help() {}
        let mut looks = 0_u32;
        // Acquire: the bytes of all pieces come before the completion.
        while self.done.load(Ordering::Acquire) != pieces {
            look_again(&mut looks);
        }
    }

    /// Says what there is to be copied, and in how many pieces.
    ///
    /// # Safety
    ///
    /// As for `copy`, until all pieces are done; and nothing of the offer before is left.
    unsafe fn offer(&self, src: &Segment, dst: &Segment, len: usize) -> usize {
        let piece = (len / PIECES)
            .clamp(SMALLEST, LARGEST)
            .next_multiple_of(4096);
        let pieces = len.div_ceil(piece);
        let whole = Whole {
            src: src.addr(),
            dst: dst.addr(),
            len,
            piece,
        };
        self.done.store(0, Ordering::Relaxed);
        self.whole.with_mut(|place| {
            // SAFETY: all pieces of the offer before are done, and nobody claims one before the
            // store below.
            unsafe { *place = whole };
        });
        // Release: whoever claims a piece sees the copy.
        self.open.store(pieces, Ordering::Release);
        pieces
    }

    /// What `copy` must not do.
    ///
    /// # Safety
    ///
    /// As for `copy`, and longer.
    #[cfg(all(test, tokio_doca_loom))]
    pub(in super::super) unsafe fn copy_without_waiting(
        &self,
        src: &Segment,
        dst: &Segment,
        len: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe { self.offer(src, dst, len) };
        while self.help() {}
    }

    /// Claims a piece and copies it. False if there is none.
    pub(in super::super) fn help(&self) -> bool {
        let claim = |left: usize| left.checked_sub(1);
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        let Ok(left) = self.open.fetch_update(done, failed, claim) else {
            return false;
        };
        let whole = self.whole.with(|place| {
            // SAFETY: a piece was claimed, so that it stays as it is until that is done.
            unsafe { *place }
        });
        let at = (left - 1) * whole.piece;
        let part = |addr| {
            // SAFETY: one side of the copy, as it was offered.
            Segments::one(unsafe { Segment::new(addr, whole.len, 0) })
        };
        let len = whole.piece.min(whole.len - at);
        // SAFETY: the piece lies in the copy, whose memory is valid and leased during `copy`, which
        // waits for this piece.
        unsafe {
            copy::copy(
                &part(whole.src),
                &part(whole.dst),
                at,
                len,
                copy::streams(whole.len),
            )
        };
        // Release: pairs with `copy`.
        self.done.fetch_add(1, Ordering::Release);
        true
    }
}
