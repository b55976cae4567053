//! [`JobLeases`], the Leases that a job in flight keeps.

use arrayvec::ArrayVec;

use super::target::{Outcome, Rest};
use crate::error::{JobError, Reason};
use crate::mem::{Grow, Leases, Reading, Writing};
use crate::reactor::gate::Deferred;

/// The Leases of a job in flight, and how to give them back.
pub(crate) struct JobLeases {
    leases: Leases,
    /// Computes the number of bytes that were written from the job's result.
    written: fn(u64) -> usize,
    /// The number of the WorkQ's queue that has the job.
    pub(in crate::reactor) queue: u8,
}

impl JobLeases {
    #[inline(always)]
    pub(in crate::reactor) fn new(
        leases: Leases,
        queue: u8,
        written: fn(u64) -> usize,
    ) -> JobLeases {
        JobLeases {
            leases,
            written,
            queue,
        }
    }

    /// Appends the bytes that were written to the destination's data and gives the Leases back,
    /// unless the device still uses the memory. The reaper calls this once the job has completed.
    /// If a Lease has the last reference to its memory, that reference is added to `rest`, to be
    /// dropped later.
    #[inline(always)]
    pub(super) fn release<const N: usize>(
        self,
        result: &Outcome,
        rest: &mut ArrayVec<Deferred<Rest>, N>,
    ) {
        match (&self.leases.write, result) {
            (Some(write), Ok(answer)) => write.grow((self.written)(*answer)),
            (_, Err(error)) if keeps_memory(error) => return std::mem::forget(self),
            _ => {}
        }
        let Leases {
            read,
            write,
            session,
        } = self.leases;
        if let Some(last) = write.and_then(Writing::end) {
            rest.push(Deferred::new(Rest::Last(last)));
        }
        if let Some(last) = read.and_then(Reading::end) {
            rest.push(Deferred::new(Rest::Last(last)));
        }
        // Dropping it runs no code of the application.
        drop(session);
    }
}

/// Returns true if the device may still use the memory of a job that has completed with this error.
pub(in crate::reactor) fn keeps_memory(error: &JobError) -> bool {
    error.reason() == Reason::MemoryKept
}
