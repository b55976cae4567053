//! One job of a provider's own kind, as the device sees it: plain data.
#![expect(unsafe_code, reason = "promises what memory a job names")]

use super::effect::Effect;
use super::lent::{Lent, OnLent};
use super::segment::Segments;
use crate::error::{JobError, Reason};

/// One piece of work of a kind that only its provider knows.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "doca_job")]
pub struct AccelJob {
    /// What to do: one of [`AccelCaps::opcodes`](crate::device::AccelCaps::opcodes).
    pub opcode: u32,
    /// A number that means what the opcode says. What needs more is in the source.
    pub arg: u64,
    /// What is read, all of it; [`Segments::none`] if nothing is.
    pub src: Segments,
    /// Where may be written, from the front; [`Segments::none`] if nothing is. The result of the
    /// job is then how many bytes were.
    pub dst: Segments,
}

/// What an accelerator is asked to do.
#[derive(Clone, Copy)]
pub(crate) struct AccelOrder {
    pub(crate) opcode: u32,
    pub(crate) arg: u64,
    /// True if the call has a source.
    pub(crate) reads: bool,
    /// True if the call has a destination.
    pub(crate) writes: bool,
}

// SAFETY: it names both sides as they were lent.
unsafe impl OnLent for AccelJob {
    type Order = AccelOrder;

    fn fills(_: AccelOrder) -> bool {
        false
    }

    /// Makes the job. A call on no bytes is refused, since only its provider could say what it
    /// means.
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
