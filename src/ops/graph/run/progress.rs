//! How far a run is: operands, states, results and what may start. All of it is made with the
//! instance.
//!
//! ```text
//!   open: 0          begin              over
//!  ready -----> (blocked: no Slot) ---> flying (a Job) ---> Completed: one less is open at each successor
//!        \----------------------------> active (a future, a sub-graph) --^ \--> Failed: ready and blocked are emptied
//! ```

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::super::node::{NodeId, NodeState, UserError, stop};
use super::super::plan::{Plan, PlanNode};
use super::bits::Bits;
use super::board::{Board, End};
use super::body::{Body, Sub};
use super::level::Level;
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::reactor::{self, Outcome, Received};

/// Where the last run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    /// Jobs of a run before that was dropped are in flight: the next one waits for them.
    Draining,
    Running,
}

/// A node in this run.
#[derive(Clone, Copy)]
struct NodeRun {
    state: NodeState,
    /// The number of predecessors that have not ended.
    open: u32,
    /// Where its successors are in the plan: close to the rest.
    successors: (u32, u32),
    /// Once it has completed.
    outcome: Outcome,
}

pub(super) struct Progress {
    pub(super) phase: Phase,
    pub(super) bodies: Box<[Body]>,
    nodes: Box<[NodeRun]>,
    pub(super) ready: Bits,
    /// Ready, and waiting for a Slot.
    pub(super) blocked: Bits,
    /// Futures and sub-graphs that continue.
    pub(super) active: Bits,
    /// Jobs in flight.
    pub(super) flying: usize,
    /// Nothing new starts.
    stopped: bool,
    /// The node that failed first, and the user's error; without one the cause is in the node's
    /// outcome, or in its sub-graph.
    pub(super) failure: Option<(u32, Option<Error>)>,
    pub(super) board: Arc<Board>,
    /// The board, as Slots have it.
    pub(super) notify: Arc<dyn reactor::Run>,
    /// Completions that were taken from the board; empty otherwise.
    ends: Vec<End>,
}

impl Progress {
    pub(super) fn new(plan: &Plan, bodies: Box<[Body]>) -> Progress {
        let count = plan.nodes.len();
        let board = Arc::new(Board::new(count));
        let mark = |(node, &open): (&PlanNode, &u32)| NodeRun {
            state: NodeState::NotStarted,
            open,
            successors: (node.successors.start, node.successors.end),
            outcome: Ok(0),
        };
        Progress {
            phase: Phase::Idle,
            bodies,
            nodes: plan.nodes.iter().zip(&plan.open).map(mark).collect(),
            ready: Bits::new(count),
            blocked: Bits::new(count),
            active: Bits::new(count),
            flying: 0,
            stopped: false,
            failure: None,
            notify: Arc::clone(&board) as Arc<dyn reactor::Run>,
            board,
            ends: Vec::with_capacity(count),
        }
    }

    /// A run begins; it waits for what one before has left in flight.
    pub(super) fn start(&mut self, plan: &Plan) {
        self.stop_futures();
        self.ready.clear();
        self.blocked.clear();
        self.active.clear();
        self.failure = None;
        self.phase = Phase::Draining;
        self.stopped = false;
        for (mark, open) in self.nodes.iter_mut().zip(&plan.open) {
            mark.state = NodeState::NotStarted;
            mark.open = *open;
        }
    }

    /// Returns true if nothing of a run before is in flight, here or in a sub-graph. What has ended
    /// meanwhile is taken.
    pub(super) fn is_drained(&mut self, plan: &Plan) -> bool {
        if self.flying > 0 && self.board.any() {
            self.board.take(&mut self.ends);
            self.flying -= self.ends.len();
            self.ends.clear();
        }
        let mut drained = self.flying == 0;
        for &index in &plan.subs {
            if let Some(sub) = self.bodies[index as usize].level_mut() {
                drained &= sub.progress.is_drained(&sub.graph.0);
            }
        }
        drained
    }

    pub(super) fn run(&mut self, plan: &Plan) {
        self.phase = Phase::Running;
        // Not if it was stopped while it waited.
        let roots = if self.stopped { &[] } else { &*plan.roots };
        roots.iter().for_each(|&root| self.ready.insert(root));
    }

    /// Takes the ends of Jobs.
    #[inline(always)]
    pub(super) fn collect(&mut self, plan: &Plan) {
        if self.board.any() {
            self.take_ends(plan);
        }
    }

    fn take_ends(&mut self, plan: &Plan) {
        let mut ends = std::mem::take(&mut self.ends);
        self.board.take(&mut ends);
        for (node, outcome) in ends.drain(..) {
            self.flying -= 1;
            self.end_node(plan, node, outcome);
        }
        self.ends = ends;
    }

    #[inline(always)]
    pub(super) fn started(&mut self, node: u32) {
        self.nodes[node as usize].state = NodeState::Started;
    }

    /// It has not started after all: there is no Slot.
    pub(super) fn block(&mut self, node: u32) {
        self.nodes[node as usize].state = NodeState::NotStarted;
        self.blocked.insert(node);
    }

    /// A node has completed: those that waited for it alone are ready.
    pub(super) fn end_node(&mut self, plan: &Plan, node: u32, outcome: Outcome) {
        if let Some(next) = self.over_and_next(plan, node, outcome) {
            self.ready.insert(next);
        }
    }

    /// The same; one that is ready alone is not even noted, so that a chain continues without the
    /// set.
    #[inline(always)]
    pub(super) fn over_and_next(
        &mut self,
        plan: &Plan,
        node: u32,
        outcome: Outcome,
    ) -> Option<u32> {
        if let Err(error) = outcome {
            self.fail(node, error, None);
            return None;
        }
        let mark = &mut self.nodes[node as usize];
        mark.state = NodeState::Completed;
        mark.outcome = outcome;
        let (from, to) = mark.successors;
        if self.stopped {
            return None;
        }
        let mut alone = None;
        for &next in &plan.successors[from as usize..to as usize] {
            let open = &mut self.nodes[next as usize].open;
            *open -= 1;
            if *open == 0
                && let Some(other) = alone.replace(next)
            {
                self.ready.insert(other);
            }
        }
        if self.ready.is_empty() {
            return alone;
        }
        if let Some(next) = alone {
            self.ready.insert(next);
        }
        None
    }

    /// A node failed: nothing new starts.
    #[cold]
    pub(super) fn fail(&mut self, node: u32, error: JobError, cause: Option<Error>) {
        self.nodes[node as usize].state = NodeState::Failed;
        self.nodes[node as usize].outcome = Err(error);
        if self.failure.is_none() {
            self.failure = Some((node, cause));
        }
        self.stop();
    }

    /// The user's code failed.
    #[cold]
    pub(super) fn fail_user(&mut self, node: u32, wrong: UserError) {
        let (error, cause) = match wrong {
            UserError::Error(cause) => {
                let code = cause.kind().code().into();
                (JobError::new(Reason::UserNode, code, 0), cause)
            }
            UserError::Panicked(cause) => (JobError::of(Reason::UserNodePanicked), cause),
        };
        self.fail(node, error, Some(cause));
    }

    /// Nothing new starts, in sub-graphs neither. What a peer may never send is not waited for.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.ready.clear();
        self.blocked.clear();
        let mut at = 0;
        while let Some(index) = self.active.next(at) {
            match &mut self.bodies[index as usize] {
                Body::Sub(Sub {
                    level: Some(sub), ..
                }) => sub.progress.stop(),
                body @ (Body::Recv(_) | Body::Wait(_)) => {
                    body.stop_polled();
                    self.active.remove(index);
                    self.early(index);
                }
                _ => {}
            }
            at = index + 1;
        }
    }

    /// A sub-graph has ended: how it ended.
    pub(super) fn sub_over(&mut self, plan: &Plan, node: u32) {
        let Some(sub) = self.bodies[node as usize].level_mut() else {
            return;
        };
        sub.progress.phase = Phase::Idle;
        let whole = sub.progress.is_whole();
        match sub.failure() {
            Some(error) => self.fail(node, error, None),
            None if whole => self.end_node(plan, node, Ok(0)),
            None => self.early(node),
        }
    }

    /// A node ended before it had completed.
    fn early(&mut self, node: u32) {
        self.nodes[node as usize].state = NodeState::Stopped;
    }

    /// A sub-graph failed, and drains: nothing new starts outside either.
    pub(super) fn sub_failed(&mut self, node: u32) {
        if self.failure.is_none()
            && let Some(sub) = self.bodies[node as usize].level()
            && sub.failure().is_some()
        {
            self.failure = Some((node, None));
            self.stop();
        }
    }

    fn is_whole(&self) -> bool {
        let completed = |mark: &NodeRun| mark.state == NodeState::Completed;
        !self.stopped || self.nodes.iter().all(completed)
    }

    /// The run was dropped, or a new one begins: futures go.
    pub(super) fn stop_futures(&mut self) {
        let mut at = 0;
        while let Some(index) = self.active.next(at) {
            match &mut self.bodies[index as usize] {
                Body::Async(future) => drop(stop(future)),
                body @ (Body::Recv(_) | Body::Wait(_)) => body.stop_polled(),
                Body::Sub(Sub {
                    level: Some(sub), ..
                }) => {
                    sub.progress.stop_futures();
                    sub.progress.phase = Phase::Idle;
                }
                _ => {}
            }
            at = index + 1;
        }
        self.active.clear();
    }

    pub(super) fn failed(&self) -> impl Iterator<Item = u32> {
        let failed = |&(mark, _): &(&NodeRun, u32)| mark.state == NodeState::Failed;
        self.nodes.iter().zip(0..).filter(failed).map(|(_, at)| at)
    }

    /// Returns the first node that has started and is not over.
    pub(super) fn going_on(&self) -> u32 {
        let started = |mark: &NodeRun| mark.state == NodeState::Started;
        self.nodes.iter().position(started).unwrap_or(0) as u32
    }

    pub(super) fn outcome(&self, node: u32) -> Outcome {
        self.nodes[node as usize].outcome
    }

    pub(super) fn result(&self, plan: &Plan, node: NodeId) -> Option<Outcome> {
        match self.state(plan, node) {
            NodeState::Completed | NodeState::Failed => Some(self.outcome(node.index)),
            _ => None,
        }
    }

    pub(super) fn state(&self, plan: &Plan, node: NodeId) -> NodeState {
        if node.graph != plan.number {
            return NodeState::NotStarted;
        }
        self.nodes[node.index as usize].state
    }

    /// Returns the level of a sub-graph node, if the node was started in the last run. Before that,
    /// the level has the results of an earlier run.
    pub(super) fn sub(&self, plan: &Plan, node: NodeId) -> Option<&Level> {
        match self.state(plan, node) {
            NodeState::NotStarted => None,
            _ => self.bodies[node.index as usize].level(),
        }
    }

    /// Returns what a node received, if it has in the last run.
    pub(super) fn received(&self, plan: &Plan, node: NodeId) -> Option<Received> {
        match (
            self.state(plan, node),
            self.bodies.get(node.index as usize)?,
        ) {
            (NodeState::Completed, Body::Recv(recv)) => recv.received,
            _ => None,
        }
    }

    /// Returns where a node is set, if it can be.
    pub(super) fn seat(&mut self, plan: &Plan, node: NodeId) -> Result<Option<&mut dyn Any>> {
        if node.graph != plan.number {
            let text = format!("{node} is a node of another graph");
            return Err(Error::new(ErrorKind::NotPermitted, "Instance::set", text));
        }
        Ok(self.bodies[node.index as usize].seat())
    }

    /// Returns true if a future or a receive continues, those of sub-graphs not asked.
    pub(super) fn has_futures(&self) -> bool {
        let mut at = 0;
        while let Some(index) = self.active.next(at) {
            if !matches!(self.bodies[index as usize], Body::Sub(_)) {
                return true;
            }
            at = index + 1;
        }
        false
    }

    pub(super) fn debug(&self, name: &str, plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.nodes.iter().zip(0..);
        let states = states.map(|(mark, index)| (plan.id(index), mark.state));
        f.debug_struct(name)
            .field("phase", &self.phase)
            .field("in_flight", &self.flying)
            .field("nodes", &states.collect::<Vec<_>>())
            .finish()
    }
}
