//! [`Target`], what is notified once a job has completed: an operation's waker, a run of a graph,
//! or the caller's own loop.

use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use crate::device::Token;
use crate::error::JobError;
use crate::mem::{Last, Writing};
use crate::reactor::entry_table::EntryTable;
use crate::reactor::gate::Deferred;
use crate::sync::discard;

/// The outcome of a job.
pub(crate) type Outcome = Result<u64, JobError>;

/// A target that is notified of completions without a waker: a run of a graph, or the sends of a
/// stream or a sink.
pub(crate) trait Run: Send + Sync {
    /// Called once the job of `node` has completed.
    fn completed(&self, node: u32, outcome: Outcome);

    /// Returns true if this is a stream. Its slots count against the share that streams may hold.
    fn is_stream(&self) -> bool {
        false
    }
}

/// The target that is notified once a job has completed.
pub(in crate::reactor) enum Target {
    Waker(Waker),
    /// A run, and the node whose job this is. The reaper frees the slot, since the job has no
    /// operation.
    Run(Arc<dyn Run>, u32),
    /// The caller's own loop. It is handed this word and the meaning of the result, which are kept
    /// in the slot until then.
    Caller(u64, ResultKind),
}

/// The meaning of the number that a job of the caller's own loop returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// The number of bytes that were moved.
    Bytes,
    /// A value that was computed or read, such as a checksum.
    Value,
    /// Nothing.
    Nothing,
}

/// A notification that the reaper sends once it has left the gate.
pub(in crate::reactor) enum Notify {
    /// The operation whose job has completed.
    Op(Deferred<Target>),
    /// The run whose job has completed, and the job's outcome.
    Run(Deferred<Target>, Outcome),
    /// The operation of a receive or wait that has completed.
    Waker(Deferred<Waker>),
    /// The caller's own loop, if the loop has armed.
    Caller,
    /// The waiters in line for an entry of this table.
    Line(Deferred<Arc<dyn EntryTable>>),
    /// Nothing: the completion names no job, receive or wait, and is logged.
    Nobody(Token),
}

/// What the reaper has to do after a completion.
pub(in crate::reactor) enum Completed {
    /// Nothing: the operation notices the completion itself.
    Nothing,
    /// The Token named no job in flight.
    Stale,
    /// Notify the operation.
    Notify(Notify),
    /// Put the slot where the caller's own loop finds it.
    Deliver,
    /// Free the slot, and notify the run if there is one.
    Free(Option<Notify>),
}

/// The maximum number of completions that are reaped at once.
pub(in crate::reactor) const BATCH: usize = 32;

/// A value that a completion leaves to be dropped once the gate was left.
#[expect(dead_code, reason = "what is in it is there to be dropped")]
pub(in crate::reactor) enum Rest {
    /// The last reference to the memory of a job.
    Last(Last),
    /// The memory of a receive that has failed, or whose operation was dropped.
    Lease(Writing),
    /// The target of an operation that was dropped.
    Unnotified(Target),
}

/// The leftovers of one job that its own operation ends: two Leases.
pub(in crate::reactor) type OwnRest = ArrayVec<Deferred<Rest>, 2>;

/// The leftovers of a batch: two Leases and a target for each job.
pub(in crate::reactor) type Leftovers = ArrayVec<Deferred<Rest>, { 3 * BATCH }>;

/// Drops a target, which may hold a waker of the application. Most often there is none.
#[inline]
pub(super) fn drop_target(target: Option<Target>) {
    if target.is_some() {
        discard(target);
    }
}

/// Adds a target that will not be notified, if there is one, to `rest`, to be dropped later.
#[inline]
pub(super) fn leave(target: Option<Deferred<Target>>, rest: &mut Leftovers) {
    if let Some(target) = target {
        rest.push(target.map(Rest::Unnotified));
    }
}
