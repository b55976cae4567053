//! Who is notified that a Job has completed: an Op's waker, a run of a graph, or the caller's own
//! loop.

use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use crate::device::Token;
use crate::error::JobError;
use crate::mem::{Last, Writing};
use crate::reactor::gate::Deferred;
use crate::reactor::places::Places;

/// How a Job ended.
pub(crate) type Outcome = Result<u64, JobError>;

/// What is notified of completions, in place of a waker: a run of a graph, or the sends of a
/// stream.
pub(crate) trait Run: Send + Sync {
    /// The Job of this node has completed.
    fn completed(&self, node: u32, outcome: Outcome);

    /// Returns true if it is a stream, whose Slots are of those that streams may hold.
    fn is_stream(&self) -> bool {
        false
    }
}

/// Who is notified that a Job has completed.
pub(in crate::reactor) enum Target {
    Waker(Waker),
    /// A graph's run needs no waker per node, and no Op: its Slots are freed by the reaper.
    Run(Arc<dyn Run>, u32),
    /// The caller's own loop, which is given this word back, and what the result means. That waits
    /// in the Slot.
    Caller(u64, ResultKind),
}

/// The meaning of the number with which a job of the caller's own loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// Bytes that were moved.
    Bytes,
    /// A value.
    Value,
    /// Nothing.
    Nothing,
}

/// Whom to notify, once the gate was left.
pub(in crate::reactor) enum Notify {
    /// The Op whose Job has ended.
    Op(Deferred<Target>),
    /// The run whose Job has ended so.
    Run(Deferred<Target>, Outcome),
    /// An Op that has a place.
    Waker(Deferred<Waker>),
    /// The caller's own loop, if it armed.
    Caller,
    /// Those in line for a place of this table.
    Line(Deferred<Arc<dyn Places>>),
    /// The completion names no Job, no receive and no wait. It is logged.
    Nobody(Token),
}

/// How many completions are reaped at once.
pub(in crate::reactor) const BATCH: usize = 32;

/// What else a completion leaves to be done once the gate was left.
#[expect(dead_code, reason = "what is in it is there to be dropped")]
pub(in crate::reactor) enum Rest {
    /// Of the memory of a Job, a last count.
    Last(Last),
    /// The memory of a receive that has failed, or that nobody waits for.
    Lease(Writing),
    /// Of an Op that was dropped, its waker.
    Unnotified(Target),
}

/// Of a batch: of each Job two Leases, and a target.
pub(in crate::reactor) type Leftovers = ArrayVec<Deferred<Rest>, { 3 * BATCH }>;
