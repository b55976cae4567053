//! How much one side of a job has.
#![allow(unreachable_pub, reason = "named by the sealed traits of operands")]

use crate::device::Segments;

/// How much of a job's side there is: pieces that are not empty, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub pieces: usize,
    pub bytes: usize,
}

impl Extent {
    /// Of segments.
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
