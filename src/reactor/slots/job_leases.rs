//! What a Job in flight keeps: its Leases.

use super::target::{Leftovers, Outcome, Rest};
use crate::error::{JobError, Reason};
use crate::mem::{Grow, Leases, Reading, Writing};
use crate::reactor::gate::Deferred;

/// What a job in flight keeps.
pub(crate) struct JobLeases {
    leases: Leases,
    /// How many bytes were written, by the job's answer.
    written: fn(u64) -> usize,
    /// Which queue of the WorkQ has the Job.
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

    /// Reaper: the Job has completed. Appends what was written, and gives the Leases back, unless
    /// the device still uses the memory. What comes after a last count is left for later.
    #[inline(always)]
    pub(super) fn release(self, result: &Outcome, rest: &mut Leftovers) {
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
        // Nothing of the application's hangs on it.
        drop(session);
    }
}

/// Returns true if the device may use a Job's memory although it has completed.
pub(in crate::reactor) fn keeps_memory(error: &JobError) -> bool {
    error.reason() == Reason::MemoryKept
}
