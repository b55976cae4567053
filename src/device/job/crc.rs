//! One CRC-32C, as the device sees it: plain data; and how the CPU computes it.
#![expect(
    unsafe_code,
    reason = "promises what memory a job names, and reaches memory that was lent to a device"
)]

use super::cpu::OnCpu;
use super::effect::Effect;
use super::lent::{Lent, OnLent};
use super::read::{self, read};
use super::segment::{Cursor, Segments};
use crate::device::memory::volatile_copy;
use crate::error::{JobError, Reason};

/// The seed of a CRC, and the value that is expected.
///
/// CRCs are in the form that protocols use: the CRC of `123456789` is `0xe3069283`. The seed is the
/// CRC of the preceding bytes, and 0 if there are none. Linux's `crc32c()` inverts the CRC neither
/// at the start nor at the end. Seeds and checksums that were computed with it, such as ext4's, are
/// therefore the complements of those here: `.seed(!seed).expected(!stored)`.
///
/// ```
/// use tokio_doca::crc::CrcOptions;
/// # use tokio_doca::{BufPool, Device, Mmap, WorkQ, crc::Crc, error::Reason};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let crc = Crc::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (head, body) = (pool.alloc().await, pool.alloc().await);
/// # head.extend_from_slice(b"12345")?;
/// # body.extend_from_slice(b"6789")?;
/// // The checksum covers a head and a body. The job fails if it is not the one that was stored.
/// let seed = crc.crc32c(&head).await?;
/// let check = CrcOptions::new().seed(seed).expected(0xe306_9283);
/// crc.crc32c_with(check, &body).await?;
///
/// let error = crc.crc32c_with(check.expected(0), &body).await.unwrap_err();
/// assert_eq!(error.reason(), Reason::CrcMismatch);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrcOptions {
    /// The CRC of the preceding bytes. Defaults to 0, for no bytes.
    pub seed: u32,
    /// The CRC that is expected. Defaults to `None`, which accepts any.
    pub expected: Option<u32>,
}

impl CrcOptions {
    /// Returns the options for the first part of a message, with no expected CRC.
    pub const fn new() -> CrcOptions {
        CrcOptions {
            seed: 0,
            expected: None,
        }
    }

    /// Sets the seed: the CRC of the message's bytes so far.
    #[must_use]
    pub const fn seed(self, crc: u32) -> CrcOptions {
        CrcOptions { seed: crc, ..self }
    }

    /// Sets the expected CRC. If the CRC of the data differs, the job fails with
    /// [`Reason::CrcMismatch`].
    #[must_use]
    pub const fn expected(self, crc: u32) -> CrcOptions {
        CrcOptions {
            expected: Some(crc),
            ..self
        }
    }
}

/// Computes the CRC-32C of a source, and copies the source if there is a destination.
///
/// The CRC is that of the bytes written to the destination, even if other parties write the source
/// meanwhile: the device reads such bytes only once. [`CrcJob::outcome`] returns the job's result.
/// A provider that computes on the CPU calls [`CrcJob::work`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CrcJob {
    /// The bytes whose CRC is computed. If there is no data, this may be [`Segments::none`] or an
    /// empty piece.
    pub src: Segments,
    /// The destination of the copy, with capacity for all of the source; [`Segments::none`] if the
    /// source is not copied.
    pub dst: Segments,
    /// The seed, and the expected CRC.
    pub options: CrcOptions,
    /// True if other parties may write the source while the job runs.
    pub shared: bool,
}

impl CrcJob {
    /// Returns a job on memory that no other party writes. `dst` is [`Segments::none`] if the
    /// source is not copied.
    pub fn new(src: Segments, dst: Segments, options: CrcOptions) -> CrcJob {
        CrcJob {
            src,
            dst,
            options,
            shared: false,
        }
    }

    /// Returns how many bytes are read.
    #[allow(clippy::len_without_is_empty)] // it has no user
    pub fn len(&self) -> usize {
        self.src.bytes()
    }

    /// Returns how many bytes are copied.
    fn copied(&self) -> usize {
        match self.dst.as_slice() {
            [] => 0,
            _ => self.len(),
        }
    }

    /// Returns the job's result, given the CRC that was computed: the CRC in the low 32 bits, and
    /// the number of bytes copied in the high 32 bits.
    ///
    /// # Errors
    ///
    /// [`Reason::CrcMismatch`] if another CRC is expected.
    pub fn outcome(&self, crc: u32) -> Result<u64, JobError> {
        match self.options.expected {
            Some(expected) if expected != crc => Err(JobError::new(
                Reason::CrcMismatch,
                expected.into(),
                crc.into(),
            )),
            _ => Ok((self.copied() as u64) << 32 | u64::from(crc)),
        }
    }

    /// Does a part of the job on the CPU: at most `most` bytes after the first `from`. Returns the
    /// number of bytes done. The job has completed once `from` plus that number reaches
    /// [`CrcJob::len`]; `crc` is its CRC then.
    ///
    /// The caller does the parts of a job in order, with one `crc` that no other job changes in
    /// between. The value of `crc` before the part at 0 does not matter. A job without data has one
    /// part, of 0 bytes.
    ///
    /// # Safety
    ///
    /// The job was given to a [`Queue`](crate::device::Queue). During the call the job's memory is
    /// valid, and leased to the device.
    pub unsafe fn work(&self, crc: &mut u32, from: usize, most: usize) -> usize {
        if from == 0 {
            *crc = self.options.seed;
        }
        let part = most.min(self.len().saturating_sub(from));
        let mut to = Cursor::new(self.dst.as_slice(), from);
        // A copy reads and writes one piece after the other, while the piece is in the first-level
        // cache.
        let piece = to.rest().map_or(usize::MAX, |_| read::BOUNCE);
        let each = |bytes: &[u8]| {
            *crc = crc32c::crc32c_append(*crc, bytes);
            // SAFETY: the destination is valid, leased for writing and disjoint of the source, as
            // the caller promises.
            unsafe { write(&mut to, bytes) };
        };
        // SAFETY: the source is valid and leased, as the caller promises, and `shared` says whether
        // others may write it.
        unsafe { read(&self.src, self.shared, from, part, piece, each) };
        part
    }
}

/// Writes `bytes` at the position `to`, and moves the position past them. Leaves out bytes beyond
/// the capacity of the list.
///
/// # Safety
///
/// The memory of the list is valid, leased for writing, and disjoint of `bytes`.
unsafe fn write(to: &mut Cursor<'_>, mut bytes: &[u8]) {
    while let (Some(free), false) = (to.rest(), bytes.is_empty()) {
        let (part, rest) = bytes.split_at(bytes.len().min(free.len()));
        // SAFETY: `part` is no longer than the piece `free`, which is valid, as the caller
        // promises, and others may read or write it meanwhile.
        unsafe { volatile_copy(part.as_ptr(), free.addr().as_ptr(), part.len()) };
        to.advance(part.len());
        bytes = rest;
    }
}

/// What a CRC job does with its source.
#[derive(Clone, Copy)]
pub(crate) struct CrcOrder {
    pub(crate) options: CrcOptions,
    /// True if the source is copied to the destination.
    pub(crate) copies: bool,
}

// SAFETY: the job names the source as it was lent. If it copies, it also names the destination,
// where all of the source fits.
unsafe impl OnLent for CrcJob {
    type Order = CrcOrder;

    fn fills(order: CrcOrder) -> bool {
        order.copies
    }

    fn on(CrcOrder { options, copies }: CrcOrder, lent: Lent) -> Result<CrcJob, JobError> {
        Ok(CrcJob {
            src: lent.src,
            dst: if copies { lent.dst } else { Segments::none() },
            options,
            shared: lent.shared,
        })
    }
}

impl Effect for CrcJob {
    fn written(answer: u64) -> usize {
        (answer >> 32) as usize
    }

    fn cost(&self) -> usize {
        self.len().saturating_mul(Self::COST)
    }
}

impl OnCpu for CrcJob {
    type State = u32;

    const COST: usize = 2;

    fn len(&self) -> usize {
        CrcJob::len(self)
    }

    unsafe fn work(&self, crc: &mut u32, from: usize, most: usize) -> usize {
        // SAFETY: as the caller promises.
        unsafe { CrcJob::work(self, crc, from, most) }
    }

    fn outcome(&self, crc: &u32) -> Result<u64, JobError> {
        CrcJob::outcome(self, *crc)
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::ptr::NonNull;

    use proptest::prelude::*;

    use super::*;
    use crate::device::Segment;

    /// Computes the CRC bit by bit from the polynomial.
    fn bitwise(seed: u32, bytes: &[u8]) -> u32 {
        let mut crc = !seed;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        !crc
    }

    /// Returns `bytes` as a list: pieces of the lengths in `cuts`, and one with the remaining
    /// bytes.
    fn list(bytes: &mut [u8], cuts: &[usize]) -> Vec<Segment> {
        let mut list = Vec::new();
        let mut rest = bytes;
        for cut in cuts.iter().copied().chain([usize::MAX]) {
            let (piece, tail) = rest.split_at_mut(cut.min(rest.len()));
            let len = piece.len();
            // SAFETY: the test keeps the bytes, and leaves them alone while they are lent.
            list.push(unsafe { Segment::new(NonNull::from(piece).cast(), len, 0) });
            rest = tail;
        }
        list
    }

    proptest! {
        #[test]
        fn parts_of_lists_have_the_crc_of_the_whole_and_are_copied(
            seed: u32,
            len in 0usize..20_000,
            free in 0usize..100,
            from_cuts in proptest::collection::vec(0usize..9000, 0..6),
            to_cuts in proptest::collection::vec(0usize..9000, 0..6),
            most in 1usize..9000,
            shared: bool,
            copies: bool,
        ) {
            let mut bytes: Vec<u8> = (0..len as u32).map(|i| (i * 7 + i / 256) as u8).collect();
            let (expected, mut copy) = (bitwise(seed, &bytes), vec![0xee_u8; len + free]);
            let (src, dst) = (list(&mut bytes, &from_cuts), list(&mut copy, &to_cuts));
            // SAFETY: the list outlives the job.
            let src = unsafe { Segments::list(&src) };
            let dst = match copies {
                // SAFETY: as above.
                true => unsafe { Segments::list(&dst) },
                false => Segments::none(),
            };
            let mut job = CrcJob::new(src, dst, CrcOptions::new().seed(seed).expected(expected));
            job.shared = shared;
            // The value of `crc` before the first part does not matter.
            let (mut crc, mut at) = (7, 0);
            loop {
                // SAFETY: the memory is this test's.
                at += unsafe { job.work(&mut crc, at, most) };
                if at >= job.len() {
                    break;
                }
            }
            let copied = if copies { len } else { 0 };
            prop_assert_eq!(job.outcome(crc), Ok((copied as u64) << 32 | u64::from(expected)));
            prop_assert_eq!(&copy[..copied], &bytes[..copied]);
            prop_assert!(copy[copied..].iter().all(|&byte| byte == 0xee), "no byte more");
            let other = job.outcome(!crc).unwrap_err();
            prop_assert_eq!(other.reason(), Reason::CrcMismatch);
        }
    }

    #[test]
    fn an_answer_says_how_many_bytes_were_written() {
        assert_eq!(CrcJob::written(0x10_e306_9283), 0x10);
        assert_eq!(CrcJob::written(u64::MAX), u32::MAX as usize);
        assert_eq!(CrcJob::written(u32::MAX.into()), 0);
    }
}
