//! Who is told that a Job is over: an Op's waker, a run of a graph, or the caller's own loop.

use std::sync::Arc;
use std::task::Waker;

use super::held::Outcome;
use super::places::Places;

/// What is told of completions, in place of a waker: a run of a graph.
pub(crate) trait Run: Send + Sync {
    /// The Job of this node is over.
    fn completed(&self, node: u32, outcome: Outcome);
}

/// Who is told that a Job is over.
pub(super) enum Target {
    Waker(Waker),
    /// A graph's run needs no waker per node, and no Op: its Slots are freed by the reaper.
    Run(Arc<dyn Run>, u32),
    /// The caller's own loop, which is given this word back. The result waits in the Slot.
    Caller(u64),
}

/// Whom to tell, once the gate was left.
pub(super) enum Told {
    Waker(Waker),
    Run(Arc<dyn Run>, u32, Outcome),
    /// The caller's own loop, if it armed.
    Caller,
    /// Who is in line for a place of this table.
    Line(Arc<dyn Places>),
}
