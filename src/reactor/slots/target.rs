//! The target that is notified once a job has completed: an operation's waker, a run of a graph, or
//! the caller's own loop.

use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use crate::device::Token;
use crate::error::JobError;
use crate::mem::{Last, Writing};
use crate::reactor::gate::Deferred;
use crate::reactor::places::Places;

/// The outcome of a job.
pub(crate) type Outcome = Result<u64, JobError>;

/// A target that is notified of completions without a waker: a run of a graph, or the sends of a
/// stream.
pub(crate) trait Run: Send + Sync {
    /// Called once the job of `node` has completed.
    fn completed(&self, node: u32, outcome: Outcome);

    /// Returns true if it is a stream, whose slots count as slots of streams.
    fn is_stream(&self) -> bool {
        false
    }
}

/// The target that is notified once a job has completed.
pub(in crate::reactor) enum Target {
    Waker(Waker),
    /// A graph's run needs no waker per node, and has no operation: the reaper frees its slots.
    Run(Arc<dyn Run>, u32),
    /// The caller's own loop, which is handed this word and the meaning of the result. Both wait in
    /// the slot.
    Caller(u64, ResultKind),
}

/// The meaning of the number with which a job of the caller's own loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// The number of bytes that were moved.
    Bytes,
    /// A value.
    Value,
    /// Nothing.
    Nothing,
}

/// What to notify, once the gate was left.
pub(in crate::reactor) enum Notify {
    /// The operation whose job has ended.
    Op(Deferred<Target>),
    /// The run whose job has ended, and the outcome.
    Run(Deferred<Target>, Outcome),
    /// The operation of a receive or wait.
    Waker(Deferred<Waker>),
    /// The caller's own loop, if it armed.
    Caller,
    /// The waiters in line for an entry of this table.
    Line(Deferred<Arc<dyn Places>>),
    /// Nothing: the completion names no job, receive or wait, and is logged.
    Nobody(Token),
}

/// The maximum number of completions that are reaped at once.
pub(in crate::reactor) const BATCH: usize = 32;

/// Other work that a completion leaves to be done once the gate was left.
#[expect(dead_code, reason = "what is in it is there to be dropped")]
pub(in crate::reactor) enum Rest {
    /// A last count of a job's memory.
    Last(Last),
    /// The memory of a receive that has failed, or whose operation was dropped.
    Lease(Writing),
    /// The target of an operation that was dropped.
    Unnotified(Target),
}

/// The leftovers of a batch: two Leases and a target for each job.
pub(in crate::reactor) type Leftovers = ArrayVec<Deferred<Rest>, { 3 * BATCH }>;
