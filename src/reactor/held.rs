//! What a Job in flight keeps: its Leases.

use crate::error::{JobError, Reason};
use crate::mem::{Grow, Reading, SessionLease, Writing};

/// What a job in flight keeps.
pub(crate) struct Held {
    read: Option<Reading>,
    write: Option<Writing>,
    session: Option<SessionLease>,
    /// Which queue of the WorkQ has the Job.
    pub(super) queue: u8,
}

impl Held {
    pub(crate) fn new(read: Option<Reading>, write: Option<Writing>, queue: u8) -> Held {
        Held {
            read,
            write,
            session: None,
            queue,
        }
    }

    /// A session as well.
    pub(crate) fn with_session(self, session: Option<SessionLease>) -> Held {
        Held { session, ..self }
    }

    /// The Job is over: what was written is appended, and the Leases go back, unless the device uses the memory still.
    pub(super) fn release(self, result: &Outcome) {
        match (&self.write, result) {
            (Some(write), Ok(len)) => write.grow(usize::try_from(*len).unwrap_or(usize::MAX)),
            (_, Err(error)) if keeps_memory(error) => return std::mem::forget(self),
            _ => {}
        }
        drop(self.write);
        drop(self.read);
        drop(self.session);
    }
}

/// Whether the device may use a Job's memory although it is over.
pub(super) fn keeps_memory(error: &JobError) -> bool {
    error.reason() == Reason::MemoryKept
}

/// How a Job ended.
pub(crate) type Outcome = Result<u64, JobError>;
