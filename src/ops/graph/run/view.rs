//! [`View`], the view of a run that the functions of its user nodes get.

use std::any::Any;
use std::fmt;

use super::super::node::{NodeId, NodeState, RunView};
use super::super::plan::Plan;
use super::progress::Progress;
use crate::error::Result;
use crate::reactor::{Outcome, Received};

/// The implementation behind a [`Scope`](crate::graph::Scope).
pub(super) struct View<'a> {
    pub(super) plan: &'a Plan,
    pub(super) progress: &'a mut Progress,
}

impl RunView for View<'_> {
    fn result(&self, node: NodeId) -> Option<Outcome> {
        self.progress.result(self.plan, node)
    }

    fn result_in(&self, sub: NodeId, node: NodeId) -> Option<Outcome> {
        let sub = self.progress.sub(self.plan, sub)?;
        sub.progress.result(&sub.graph.0, node)
    }

    fn received(&self, node: NodeId) -> Option<Received> {
        self.progress.received(self.plan, node)
    }

    fn state(&self, node: NodeId) -> NodeState {
        self.progress.state(self.plan, node)
    }

    fn label(&self, node: NodeId) -> String {
        self.plan.label(node.index)
    }

    fn seat(&mut self, node: NodeId) -> Result<Option<&mut dyn Any>> {
        self.progress.seat(self.plan, node)
    }

    fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.progress.debug(name, self.plan, f)
    }
}
