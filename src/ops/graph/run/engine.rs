//! The engine of a run: it starts the nodes that are ready; nodes that complete make their
//! successors ready; and one future waits for all of them.
//!
//! A poll takes the completions that the run was notified of, and starts nodes until none is ready.
//! So a successor is submitted in the poll that saw its predecessor complete. Then the run waits:
//! in line for a slot if a node needs one, and for the completions of its jobs in flight.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::super::node::{Scope, UserError, contained, own, stop};
use super::super::plan::{Graph, NodeWork, Plan};
use super::body::Body;
use super::error::RunError;
use super::level::Level;
use super::progress::{Phase, Progress};
use super::view::View;
use crate::error::{JobError, Reason, Result};
use crate::reactor::{Completions, RunWaiter, budget};

/// The state of an instance after a poll.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Done,
    Waits,
    /// The task's budget is spent, and its waker has been woken.
    Yields,
}

/// The error of a node that could not start since the task's budget is spent: [`Flow::Yields`].
struct Yields;

/// The context of a poll of a run.
struct Poller<'p, 'c, 'w> {
    /// The waiter by which a node can wait for a slot; `None` if nothing may wait.
    line: Option<Pin<&'p mut RunWaiter>>,
    cx: &'c mut Context<'w>,
    /// True if a node waits in line. The nodes of a run share one waiter.
    in_line: bool,
    /// True once this thread's runtime was registered in this poll, so that completions wake the
    /// task.
    heard: bool,
}

impl Level {
    /// Begins a run: starts the nodes that need not wait. Returns true if the run has completed.
    pub(super) fn start(&mut self) -> bool {
        self.progress.start(&self.graph.0);
        let mut poller = Poller {
            line: None,
            cx: &mut Context::from_waker(Waker::noop()),
            in_line: false,
            heard: false,
        };
        self.advance(&mut poller) == Flow::Done
    }

    /// Continues with a run that has begun.
    pub(super) fn poll(
        &mut self,
        mut line: Pin<&mut RunWaiter>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), RunError>> {
        let mut poller = Poller {
            line: Some(line.as_mut()),
            cx,
            in_line: false,
            heard: false,
        };
        loop {
            poller.in_line = false;
            let flow = self.advance(&mut poller);
            if flow == Flow::Yields {
                return Poll::Pending;
            }
            if poller.in_line && !self.is_blocked() {
                // A node failed after another node waited in line, so that no node is blocked any
                // more. The rest of the run may have completed.
                continue;
            }
            let Some(line) = &mut poller.line else {
                unreachable!("a poll has a line")
            };
            let ends = if poller.in_line {
                self.register(poller.cx.waker());
                match self.any() {
                    true => Poll::Ready(Ok(())),
                    false => Poll::Pending,
                }
            } else {
                line.as_mut().leave();
                if flow == Flow::Done {
                    return Poll::Ready(self.finish());
                }
                match self.is_flying(false) {
                    true => line.as_mut().poll_ends(poller.cx, &mut poller.heard, self),
                    // Only futures, receives and waits continue, and they have the waker.
                    false if self.has_futures() => Poll::Pending,
                    // A node failed, which stopped the receives of a sub-graph that was polled
                    // before.
                    false => continue,
                }
            };
            match ends {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    // The jobs continue, but their completions would wake no task.
                    let lost = self.lose(error);
                    line.as_mut().abandon();
                    return Poll::Ready(Err(lost));
                }
            }
        }
    }

    fn advance(&mut self, poller: &mut Poller<'_, '_, '_>) -> Flow {
        let Level { graph, progress } = self;
        let plan: &Plan = &graph.0;
        if progress.phase == Phase::Draining {
            if !progress.is_drained(plan) {
                return Flow::Waits;
            }
            progress.run(plan);
        }
        progress.collect(plan);
        let yields = progress.poll_active(plan, poller);
        loop {
            if yields || progress.begin_ready(plan, poller).is_err() {
                return Flow::Yields;
            }
            progress.wait_for_slot(poller);
            // Waiting in line may have polled the WorkQ, and so found completions of nodes.
            progress.collect(plan);
            if progress.ready.is_empty() {
                break;
            }
        }
        let still = progress.flying > 0;
        if still || !progress.active.is_empty() || !progress.blocked.is_empty() {
            Flow::Waits
        } else {
            Flow::Done
        }
    }

    /// Stops a run that is dropped. Returns true if jobs of the run are in flight.
    pub(super) fn stop(&mut self) -> bool {
        self.forget_wakers();
        let flying = self.is_flying(true);
        let progress = &mut self.progress;
        progress.stop();
        progress.stop_futures();
        progress.phase = Phase::Idle;
        flying
    }

    /// Ends a run that has completed. Returns its result.
    pub(super) fn finish(&mut self) -> Result<(), RunError> {
        let Level { graph, progress } = self;
        progress.phase = Phase::Idle;
        match progress.failure.take() {
            None => Ok(()),
            Some((node, cause)) => Err(RunError::new(&graph.0, progress, node, cause)),
        }
    }

    /// Gives up a run whose jobs in flight would wake no task when they complete. Returns the run's
    /// error.
    #[cold]
    fn lose(&mut self, error: JobError) -> RunError {
        let Level { graph, progress } = self;
        progress.stop();
        progress.stop_futures();
        let first = progress.failure.take();
        progress.phase = Phase::Idle;
        let (node, cause) = first.unwrap_or_else(|| (progress.going_on(), Some(error.into())));
        RunError::new(&graph.0, progress, node, cause)
    }
}

impl Graph {
    /// Returns true if a node needs a task, so that the graph's runs cannot be posted: the graph or
    /// a sub-graph has an async function, or a wait on a device that cannot wait.
    pub(super) fn needs_task(&self) -> bool {
        self.0.nodes.iter().any(|node| match &node.work {
            NodeWork::Async(_) => true,
            NodeWork::Sub(graph) => graph.needs_task(),
            // On a device that cannot wait, a future gets the value by one job after the other.
            NodeWork::Wait(event) => event.caps().max_wait.is_none(),
            _ => false,
        })
    }
}

impl Progress {
    /// Starts all nodes that are ready, and those that become ready meanwhile.
    #[inline(always)]
    fn begin_ready(&mut self, plan: &Plan, poller: &mut Poller<'_, '_, '_>) -> Result<(), Yields> {
        while let Some(mut node) = self.ready.pop() {
            while let Some(next) = self.begin(plan, node, poller)? {
                node = next;
            }
        }
        Ok(())
    }

    /// Starts a node. If the node completes at once and thereby makes another node the only ready
    /// one, returns that node.
    #[inline(always)]
    fn begin(
        &mut self,
        plan: &Plan,
        node: u32,
        poller: &mut Poller<'_, '_, '_>,
    ) -> Result<Option<u32>, Yields> {
        let Body::Context(step) = &mut self.bodies[node as usize] else {
            return match self.begin_other(plan, node, poller) {
                Flow::Yields => Err(Yields),
                _ => Ok(None),
            };
        };
        if budget::proceed(poller.cx).is_pending() {
            self.ready.insert(node);
            return Err(Yields);
        }
        if let Some(outcome) = step.begin() {
            return Ok(self.over_and_next(plan, node, outcome));
        }
        // A node that waits for a slot is not overtaken.
        let launched = if self.blocked.is_empty() {
            step.launch(&mut poller.heard, &self.notify, node)
        } else {
            step.put_off();
            Ok(false)
        };
        match launched {
            Ok(true) => self.launched(node),
            Ok(false) => self.block(node),
            Err(error) => self.fail(node, error, None),
        }
        Ok(None)
    }

    fn launched(&mut self, node: u32) {
        self.started(node);
        self.flying += 1;
    }

    /// Waits for a slot for each blocked node, one after the other.
    fn wait_for_slot(&mut self, poller: &mut Poller<'_, '_, '_>) {
        while !poller.in_line
            && let Some(node) = self.blocked.next(0)
            && let Body::Context(step) = &self.bodies[node as usize]
            && let Some(line) = &mut poller.line
        {
            match step.poll_launch(line.as_mut(), poller.cx, &self.notify, node) {
                Poll::Pending => poller.in_line = true,
                Poll::Ready(Ok(())) => {
                    self.blocked.remove(node);
                    self.launched(node);
                }
                Poll::Ready(Err(error)) => {
                    self.blocked.remove(node);
                    self.fail(node, error, None);
                }
            }
        }
    }

    /// Starts a node whose work is not a job.
    #[inline(never)]
    fn begin_other(&mut self, plan: &Plan, node: u32, poller: &mut Poller<'_, '_, '_>) -> Flow {
        self.started(node);
        match &plan.nodes[node as usize].work {
            NodeWork::Context(_) => {}
            NodeWork::User(function) => {
                let progress = &mut *self;
                let done = contained(|| function(&mut Scope(&mut View { plan, progress })));
                match done.and_then(|done| done.map_err(UserError::Error)) {
                    Ok(()) => self.end_node(plan, node, Ok(0)),
                    Err(wrong) => self.fail_user(node, wrong),
                }
            }
            NodeWork::With(function) => {
                // The data is taken out of `bodies` while the function runs, since the function can
                // access all other nodes.
                let body = &mut self.bodies[node as usize];
                let Body::Data(mut data) = std::mem::replace(body, Body::User) else {
                    return Flow::Waits;
                };
                let progress = &mut *self;
                let done = contained(|| {
                    function.call(&mut data, &mut Scope(&mut View { plan, progress }))
                });
                self.bodies[node as usize] = Body::Data(data);
                match done.map(|done| done.transpose()) {
                    Ok(Ok(Some(()))) => self.end_node(plan, node, Ok(0)),
                    Ok(Ok(None)) => self.fail(node, JobError::of(Reason::NodeUnset), None),
                    Ok(Err(error)) => self.fail_user(node, UserError::Error(error)),
                    Err(wrong) => self.fail_user(node, wrong),
                }
            }
            NodeWork::Async(_) => {
                // The future is taken out of `bodies` meanwhile, as the data above.
                let body = &mut self.bodies[node as usize];
                let Body::Async(mut future) = std::mem::replace(body, Body::User) else {
                    return Flow::Waits;
                };
                let progress = &mut *self;
                let made =
                    contained(|| own(&mut future).start(&mut Scope(&mut View { plan, progress })));
                self.bodies[node as usize] = Body::Async(future);
                match made {
                    Ok(()) => {
                        self.active.insert(node);
                        self.poll_future(plan, node, poller.cx);
                    }
                    Err(wrong) => self.fail_user(node, wrong),
                }
            }
            NodeWork::Recv(_) | NodeWork::Wait(_) => self.begin_polled(plan, node, poller.cx),
            NodeWork::Sub(_) => {
                let Some(sub) = self.bodies[node as usize].level_mut() else {
                    self.fail(node, JobError::of(Reason::NodeUnset), None);
                    return Flow::Waits;
                };
                sub.progress.start(&sub.graph.0);
                self.active.insert(node);
                return self.poll_sub(plan, node, poller);
            }
        }
        Flow::Waits
    }

    /// Polls the futures, receives, waits and sub-graphs that have started. Returns true if the
    /// budget is spent.
    fn poll_active(&mut self, plan: &Plan, poller: &mut Poller<'_, '_, '_>) -> bool {
        let mut at = 0;
        while let Some(node) = self.active.next(at) {
            match self.bodies[node as usize] {
                Body::Async(_) => self.poll_future(plan, node, poller.cx),
                Body::Recv(_) | Body::Wait(_) => self.poll_polled(plan, node, poller.cx),
                _ => {
                    if self.poll_sub(plan, node, poller) == Flow::Yields {
                        return true;
                    }
                }
            }
            at = node + 1;
        }
        false
    }

    fn poll_future(&mut self, plan: &Plan, node: u32, cx: &mut Context<'_>) {
        let Body::Async(future) = &mut self.bodies[node as usize] else {
            return;
        };
        let done = match contained(|| own(future).poll(cx)) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(done)) => done.map_err(UserError::Error),
            Err(wrong) => Err(wrong),
        };
        let done = done.and(stop(future));
        self.active.remove(node);
        match done {
            Ok(()) => self.end_node(plan, node, Ok(0)),
            Err(wrong) => self.fail_user(node, wrong),
        }
    }

    /// Starts a receive or a wait, and polls it once.
    fn begin_polled(&mut self, plan: &Plan, node: u32, cx: &mut Context<'_>) {
        match self.bodies[node as usize].start_polled() {
            Ok(()) => {
                self.active.insert(node);
                self.poll_polled(plan, node, cx);
            }
            Err(error) => self.fail(node, error, None),
        }
    }

    fn poll_polled(&mut self, plan: &Plan, node: u32, cx: &mut Context<'_>) {
        if let Poll::Ready(outcome) = self.bodies[node as usize].poll_polled(cx) {
            self.active.remove(node);
            self.end_node(plan, node, outcome);
        }
    }

    fn poll_sub(&mut self, plan: &Plan, node: u32, poller: &mut Poller<'_, '_, '_>) -> Flow {
        let Some(sub) = self.bodies[node as usize].level_mut() else {
            return Flow::Waits;
        };
        let flow = sub.advance(poller);
        if flow == Flow::Done {
            self.active.remove(node);
            self.sub_over(plan, node);
            return Flow::Waits;
        }
        self.sub_failed(node);
        flow
    }
}
