//! One copy, as the device sees it: plain data.
#![expect(unsafe_code, reason = "promises what memory a copy names")]

use super::effect::Effect;
use super::lent::{Lent, OnLent};
use super::segment::Segments;
use crate::error::JobError;

/// Copies `len` bytes from `src` to `dst`; each side has at least `len` bytes. If `len` is 0, a
/// side may have no pieces. Either side may have pieces of imported memory
/// ([`Segment::key`](crate::device::Segment::key)).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "doca_dma_job_memcpy")]
pub struct CopyJob {
    /// The memory that is read, in order.
    pub src: Segments,
    /// The memory that is written, in order.
    pub dst: Segments,
    /// The number of bytes to copy.
    pub len: usize,
}

// SAFETY: the job names both sides as they were lent. All of the source fits into the destination,
// since `fills` returns true.
unsafe impl OnLent for CopyJob {
    type Order = ();

    const IMPORTS: bool = true;

    #[inline(always)]
    fn fills((): ()) -> bool {
        true
    }

    #[inline(always)]
    fn on((): (), lent: Lent) -> Result<CopyJob, JobError> {
        let Lent { src, dst, len, .. } = lent;
        Ok(CopyJob { src, dst, len })
    }
}

impl Effect for CopyJob {
    #[inline(always)]
    fn cost(&self) -> usize {
        self.len
    }
}

/// A copy and its Token fill one cache line. A larger `CopyJob` would slow down every copy.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<(super::Token, CopyJob)>() == 64);
