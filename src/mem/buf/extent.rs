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
    /// Of Segments, none of which is empty in a list.
    pub fn of(segments: &Segments) -> Extent {
        let segments = segments.as_slice();
        Extent {
            pieces: segments.len(),
            bytes: segments.iter().map(|segment| segment.len()).sum(),
        }
    }

    pub(in crate::mem) fn one(bytes: usize) -> Extent {
        Extent {
            pieces: usize::from(bytes > 0),
            bytes,
        }
    }
}
