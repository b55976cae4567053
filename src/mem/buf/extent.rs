//! The size of one side of a job, in pieces and bytes.
#![allow(unreachable_pub, reason = "named by the sealed traits of operands")]

use crate::device::Segments;

/// The size of one side of a job: the number of non-empty pieces, and the sum of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub pieces: usize,
    pub bytes: usize,
}

impl Extent {
    /// Returns the extent of these segments.
    pub fn of(segments: &Segments) -> Extent {
        let lens = segments.as_slice().iter().map(|segment| segment.len());
        Extent {
            pieces: lens.clone().filter(|&len| len > 0).count(),
            bytes: lens.fold(0, usize::saturating_add),
        }
    }

    pub(in crate::mem) fn one(bytes: usize) -> Extent {
        Extent {
            pieces: usize::from(bytes > 0),
            bytes,
        }
    }
}
