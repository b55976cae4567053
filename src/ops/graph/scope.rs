//! What the function of a user node sees of its run.

use std::fmt;

use super::instance::Inner;
use super::node::{Node, NodeId, NodeState, Settable, SubGraphNode};
use super::plan::Plan;
use super::progress::Progress;
use super::receive::RecvNode;
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::reactor::Received;

/// A run, as the function of a user node sees it: results of nodes that are over, and operands of those to come.
pub struct Scope<'a> {
    pub(super) plan: &'a Plan,
    pub(super) progress: &'a mut Progress,
}

impl Scope<'_> {
    /// How a node ended; `None` if it has not, or is another graph's.
    pub fn result(&self, node: impl Into<NodeId>) -> Option<Result<u64, JobError>> {
        self.progress.result(self.plan, node.into())
    }

    /// What a node received; `None` if it has not, or is another graph's.
    pub fn received(&self, node: Node<RecvNode>) -> Option<Received> {
        self.progress.received(self.plan, node)
    }

    /// Where a node is. One of another graph has not started.
    pub fn state(&self, node: impl Into<NodeId>) -> NodeState {
        self.progress.state(self.plan, node.into())
    }

    /// Sets a node that has not started. Nothing is allocated, but by what it is set to.
    ///
    /// # Errors
    ///
    /// `BadState` if it has started, and what [`Instance::set`](super::Instance::set) is refused for.
    pub fn set<K: Settable>(&mut self, node: Node<K>, data: impl Into<K::Data>) -> Result<()> {
        const OP: &str = "Scope::set";
        if self.state(node) != NodeState::NotStarted {
            let text = format!("node {} has started", self.plan.label(node.id().index));
            return Err(Error::new(ErrorKind::BadState, OP, text));
        }
        let set = self.progress.set(self.plan, node, data.into());
        set.map_err(|error| error.with_call(OP))
    }

    /// A node of the sub-graph of a node: how it ended; `None` if it has not.
    pub fn result_in(
        &self,
        sub: Node<SubGraphNode>,
        node: impl Into<NodeId>,
    ) -> Option<Result<u64, JobError>> {
        let Inner { graph, progress } = self.progress.sub(self.plan, sub.id())?;
        progress.result(&graph.0, node.into())
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.progress.debug("Scope", self.plan, f)
    }
}
