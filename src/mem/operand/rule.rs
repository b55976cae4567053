//! How many bytes a job moves.
#![allow(unreachable_pub, reason = "named by the sealed traits of operands")]

use crate::device::{OnLent, Verb};
use crate::error::{JobError, Reason};

/// The number of bytes that an atomic operates on.
const WORD: usize = size_of::<u64>();

/// Determines how many bytes a job moves, and to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All of the source, into a tailroom. Lists of either side may have pieces of imported memory.
    Copy,
    /// All of the source, into a tailroom.
    Fill,
    /// All of the source, to memory that the job does not name: a message.
    Message,
    /// All of the source, to the start of a range.
    Exact,
    /// The bytes of the shorter side.
    AtMost,
    /// The eight bytes at the start of the source, which the atomic reads and may overwrite.
    Atomic,
    /// The device decides: it reads all of the source, and may write all of the tailroom.
    Open,
}

impl Rule {
    /// Returns the rule of a kind of job.
    #[inline(always)]
    pub(super) fn on_lent<J: OnLent>(order: J::Order) -> Rule {
        match J::fills(order) {
            true if J::IMPORTS => Rule::Copy,
            true => Rule::Fill,
            false => Rule::Open,
        }
    }

    /// Returns the rule of a verb.
    #[inline(always)]
    pub(crate) fn of(verb: Verb) -> Rule {
        match verb {
            Verb::Send(_) => Rule::Message,
            Verb::Write(_) => Rule::Exact,
            Verb::Read => Rule::AtMost,
            Verb::CompareSwap { .. } | Verb::FetchAdd(_) => Rule::Atomic,
        }
    }

    /// Returns how many bytes are moved if the source has `data` bytes, and the destination has
    /// `free` bytes for them.
    #[inline(always)]
    pub(super) fn len(self, data: usize, free: usize) -> Result<usize, JobError> {
        let too_small =
            |reason, have: usize, need: usize| Err(JobError::new(reason, have as u64, need as u64));
        match self {
            Rule::Copy | Rule::Fill if data > free => {
                too_small(Reason::TailroomTooSmall, free, data)
            }
            Rule::Exact if data > free => too_small(Reason::RemoteTooSmall, free, data),
            Rule::Atomic if data < WORD => too_small(Reason::RemoteTooSmall, data, WORD),
            Rule::Atomic => Ok(WORD),
            Rule::AtMost => Ok(data.min(free)),
            Rule::Copy | Rule::Fill | Rule::Exact | Rule::Message | Rule::Open => Ok(data),
        }
    }

    /// Returns how many bytes count against a device's limit.
    pub(crate) fn bytes(self, data: usize, free: usize) -> usize {
        match self {
            Rule::AtMost => data.min(free),
            Rule::Atomic => 0,
            _ => data,
        }
    }
}
