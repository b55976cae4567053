//! [`Level`], a level of a run: a graph, and the progress of its run.

use std::task::Waker;

use super::super::plan::Graph;
use super::progress::{Phase, Progress};
use crate::error::JobError;
use crate::reactor::Completions;

/// The state that a run works on. The instance of a sub-graph is another level.
pub(super) struct Level {
    pub(super) graph: Graph,
    pub(super) progress: Progress,
}

impl Level {
    /// Returns the error of the node that failed first, if a node has failed.
    pub(super) fn failure(&self) -> Option<JobError> {
        let (node, _) = self.progress.failure.as_ref()?;
        self.progress.outcome(*node).err()
    }

    /// Returns the sub-graphs that the run waits for now: those that are active. With `all`, or
    /// while the run waits for jobs of an earlier run, returns all sub-graphs.
    fn awaited(&self, all: bool) -> impl Iterator<Item = (&Level, bool)> {
        let progress = &self.progress;
        let all = all || progress.phase == Phase::Draining;
        let subs = self.graph.0.subs.iter();
        subs.filter(move |&&index| all || progress.active.contains(index))
            .filter_map(move |&index| Some((progress.bodies[index as usize].level()?, all)))
    }

    fn any_in(&self, all: bool) -> bool {
        let own = self.progress.flying > 0 && self.progress.board.any();
        own || self.awaited(all).any(|(sub, all)| sub.any_in(all))
    }

    fn register_in(&self, all: bool, waker: &Waker) {
        if self.progress.flying > 0 {
            self.progress.board.register(waker);
        }
        for (sub, all) in self.awaited(all) {
            sub.register_in(all, waker);
        }
    }

    /// Returns true if jobs that the run waits for are in flight.
    pub(super) fn is_flying(&self, all: bool) -> bool {
        self.progress.flying > 0 || self.awaited(all).any(|(sub, all)| sub.is_flying(all))
    }

    /// Returns true if a future, a receive or a wait continues: it has the task's waker.
    pub(super) fn has_futures(&self) -> bool {
        let own = self.progress.has_futures();
        own || self.awaited(false).any(|(sub, _)| sub.has_futures())
    }

    /// Returns true if a node waits for a slot.
    pub(super) fn is_blocked(&self) -> bool {
        !self.progress.blocked.is_empty() || self.awaited(false).any(|(sub, _)| sub.is_blocked())
    }

    /// Drops the wakers of this level and its sub-graphs, since no task waits any more.
    pub(super) fn forget_wakers(&self) {
        self.progress.board.forget_waker();
        for &index in &self.graph.0.subs {
            if let Some(sub) = self.progress.bodies[index as usize].level() {
                sub.forget_wakers();
            }
        }
    }
}

impl Completions for Level {
    fn any(&self) -> bool {
        self.any_in(false)
    }

    fn register(&self, waker: &Waker) {
        self.register_in(false, waker);
    }
}
