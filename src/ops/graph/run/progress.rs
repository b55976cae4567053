//! [`Progress`], the progress of a run: the operands, states and results of its nodes, and which
//! nodes may start. Its memory is allocated with the instance.
//!
//! ```text
//!   open: 0          begin              over
//!  ready -----> (blocked: no Slot) ---> flying (a Job) ---> Completed: one less is open at each successor
//!        \----------------------------> active (a future, a sub-graph) --^ \--> Failed: ready and blocked are emptied
//! ```

use std::any::Any;
use std::fmt;
use std::iter::successors;
use std::sync::Arc;

use super::super::node::{NodeId, NodeState, UserError, stop};
use super::super::plan::{Plan, PlanNode};
use super::bits::Bits;
use super::board::{Board, End};
use super::body::{Body, Sub};
use super::level::Level;
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::reactor::{self, Outcome, Received};

/// The phase of the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    /// The run waits for jobs of an earlier run, which was dropped.
    Draining,
    Running,
}

/// The state of a node in this run.
#[derive(Clone, Copy)]
struct NodeRun {
    state: NodeState,
    /// The number of predecessors that have not completed.
    open: u32,
    /// The range of the node's successors in the plan. It is copied here, so that it lies next to
    /// the other fields.
    successors: (u32, u32),
    /// The outcome, valid once the node has completed or failed.
    outcome: Outcome,
}

pub(super) struct Progress {
    pub(super) phase: Phase,
    pub(super) bodies: Box<[Body]>,
    nodes: Box<[NodeRun]>,
    pub(super) ready: Bits,
    /// The nodes that are ready and wait for a slot.
    pub(super) blocked: Bits,
    /// The futures, receives, waits and sub-graphs that have started and not ended.
    pub(super) active: Bits,
    /// The number of jobs in flight.
    pub(super) flying: usize,
    /// True if no further nodes start, since a node failed or the run was dropped.
    stopped: bool,
    /// The node that failed first, and the error of its function or future. Without such an error
    /// the cause is in the node's outcome, or in its sub-graph.
    pub(super) failure: Option<(u32, Option<Error>)>,
    pub(super) board: Arc<Board>,
    /// The same `board`, as the trait object that slots hold.
    pub(super) notify: Arc<dyn reactor::Run>,
    /// Memory for completions that are taken from the board; empty otherwise.
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

    /// Begins a run, which first waits for jobs of earlier runs that are in flight.
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

    /// Returns true if no job of an earlier run is in flight, here or in a sub-graph. Takes the
    /// completions that have come.
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
        // No node starts if the run was stopped while it waited.
        let roots = if self.stopped { &[] } else { &*plan.roots };
        roots.iter().for_each(|&root| self.ready.insert(root));
    }

    /// Takes the completions of jobs from the board, if there are any.
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

    /// Marks a node as blocked, and as not started, since there is no slot.
    pub(super) fn block(&mut self, node: u32) {
        self.nodes[node as usize].state = NodeState::NotStarted;
        self.blocked.insert(node);
    }

    /// Ends a node. If it has completed, its successors that wait for no other node become ready.
    pub(super) fn end_node(&mut self, plan: &Plan, node: u32, outcome: Outcome) {
        if let Some(next) = self.over_and_next(plan, node, outcome) {
            self.ready.insert(next);
        }
    }

    /// Ends a node as `end_node` does. If this makes one successor ready and no other node is
    /// ready, returns that successor instead of adding it to `ready`, so that a chain of nodes does
    /// not use the set.
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

    /// Fails a node, and stops the run: no further nodes start.
    #[cold]
    pub(super) fn fail(&mut self, node: u32, error: JobError, cause: Option<Error>) {
        self.nodes[node as usize].state = NodeState::Failed;
        self.nodes[node as usize].outcome = Err(error);
        if self.failure.is_none() {
            self.failure = Some((node, cause));
        }
        self.stop();
    }

    /// Fails a node whose function or future has failed.
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

    /// Stops the run: no further nodes start, also in sub-graphs. Receives and waits, which may
    /// never complete, are stopped.
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

    /// Ends the node of a sub-graph whose run has ended: completed, failed or stopped.
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

    /// Marks a node as stopped: it ended before it had completed.
    fn early(&mut self, node: u32) {
        self.nodes[node as usize].state = NodeState::Stopped;
    }

    /// Stops the run if a node of the sub-graph `node` has failed, although the sub-graph still
    /// waits for its jobs in flight.
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

    /// Drops the futures, receives and waits of a run, because it was dropped or a new run is to
    /// begin.
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

    /// Returns the first node that has started and not ended.
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

    /// Returns the message that a node received in the last run, if it has received one.
    pub(super) fn received(&self, plan: &Plan, node: NodeId) -> Option<Received> {
        match (
            self.state(plan, node),
            self.bodies.get(node.index as usize)?,
        ) {
            (NodeState::Completed, Body::Recv(recv)) => recv.received,
            _ => None,
        }
    }

    /// Returns the state that `Instance::set` writes for a node; `None` if nodes of its kind cannot
    /// be set.
    pub(super) fn seat(&mut self, plan: &Plan, node: NodeId) -> Result<Option<&mut dyn Any>> {
        if node.graph != plan.number {
            let text = format!("{node} is a node of another graph");
            return Err(Error::new(ErrorKind::NotPermitted, "Instance::set", text));
        }
        Ok(self.bodies[node.index as usize].seat())
    }

    /// Returns true if a future, a receive or a wait of this level continues. Sub-graphs are not
    /// checked.
    pub(super) fn has_futures(&self) -> bool {
        let active = &self.active;
        let mut nodes = successors(active.next(0), |&node| active.next(node + 1));
        nodes.any(|node| !matches!(self.bodies[node as usize], Body::Sub(_)))
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
