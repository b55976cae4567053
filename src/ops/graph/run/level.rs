//! A level of a run: a graph, and how far the run of it is.

use std::task::Waker;

use super::super::plan::Graph;
use super::progress::{Phase, Progress};
use crate::error::JobError;
use crate::reactor::Completions;

/// What a run works on; the instance of a sub-graph is nothing else.
pub(super) struct Level {
    pub(super) graph: Graph,
    pub(super) progress: Progress,
}

impl Level {
    /// How the node ended that failed first, if there is one.
    pub(super) fn failure(&self) -> Option<JobError> {
        let (node, _) = self.progress.failure.as_ref()?;
        self.progress.outcome(*node).err()
    }

    /// Returns the sub-graphs whose ends are waited for now.
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

    /// Returns true if Jobs are in flight whose ends are waited for.
    pub(super) fn is_flying(&self, all: bool) -> bool {
        self.progress.flying > 0 || self.awaited(all).any(|(sub, all)| sub.is_flying(all))
    }

    /// Returns true if a future or a receive continues: it has the waker.
    pub(super) fn has_futures(&self) -> bool {
        let own = self.progress.has_futures();
        own || self.awaited(false).any(|(sub, _)| sub.has_futures())
    }

    /// Returns true if a node waits for a Slot.
    pub(super) fn is_blocked(&self) -> bool {
        !self.progress.blocked.is_empty() || self.awaited(false).any(|(sub, _)| sub.is_blocked())
    }

    /// No task waits any more.
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
