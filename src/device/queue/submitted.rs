//! What a submission answers, and what keeps the memory of the Jobs that were accepted.

use std::any::Any;
use std::sync::Arc;

use crate::error::{ErrorKind, JobError};

/// How many Jobs of a batch were accepted, and why the next one was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The first so many are the device's.
    pub accepted: usize,
    /// Why the next was not, or `None` if all were. After `Again` the crate tries once more when the WorkQ has collected a
    /// completion, and in any case after 1 ms, then after twice as long each time, up to 100 ms.
    pub refused: Option<JobError>,
}

impl Submitted {
    /// None was taken, for this reason.
    pub(crate) fn none(refused: JobError) -> Submitted {
        Submitted {
            accepted: 0,
            refused: Some(refused),
        }
    }

    /// None of so many was taken: the device has no such kind.
    pub(super) fn unsupported(jobs: usize) -> Submitted {
        let refused = JobError::device(ErrorKind::NotSupported, 0);
        Submitted {
            accepted: 0,
            refused: (jobs > 0).then_some(refused),
        }
    }
}

/// What a queue must hold until nothing of it is in flight.
pub type Keep = Arc<dyn Any + Send + Sync>;
