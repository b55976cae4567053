//! One job of a provider's own kind, as the device sees it: plain data.
#![expect(unsafe_code, reason = "promises what memory a job names")]

use super::effect::Effect;
use super::lent::{Lent, OnLent};
use super::segment::Segments;
use crate::error::{JobError, Reason};

/// A job of a kind that only its provider knows.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "doca_job")]
pub struct AccelJob {
    /// What to do: one of [`AccelCaps::opcodes`](crate::device::AccelCaps::opcodes).
    pub opcode: u32,
    /// A parameter, whose meaning depends on the opcode. Larger parameters belong in the source.
    pub arg: u64,
    /// The memory that the job reads, all of it; [`Segments::none`] if the job reads nothing.
    pub src: Segments,
    /// The memory that the job may write, from the front; [`Segments::none`] if the job writes
    /// nothing. If there is a destination, the job's result is the number of bytes written.
    pub dst: Segments,
}

/// The parameters of a call, before memory is lent to its job.
#[derive(Clone, Copy)]
pub(crate) struct AccelOrder {
    pub(crate) opcode: u32,
    pub(crate) arg: u64,
    /// True if the call has a source.
    pub(crate) reads: bool,
    /// True if the call has a destination.
    pub(crate) writes: bool,
}

// SAFETY: the job names both sides as they were lent.
unsafe impl OnLent for AccelJob {
    type Order = AccelOrder;

    fn fills(_: AccelOrder) -> bool {
        false
    }

    /// Makes the job. A call on no bytes is refused, since only the provider could know what such a
    /// call means.
    fn on(order: AccelOrder, lent: Lent) -> Result<AccelJob, JobError> {
        let Lent { src, dst, len, .. } = lent;
        if order.reads && len == 0 {
            return Err(JobError::of(Reason::NoData));
        }
        if order.writes && dst.bytes() == 0 {
            return Err(JobError::of(Reason::NoTailroom));
        }
        Ok(AccelJob {
            opcode: order.opcode,
            arg: order.arg,
            src,
            dst,
        })
    }
}

impl Effect for AccelJob {
    fn cost(&self) -> usize {
        self.src.bytes()
    }
}
