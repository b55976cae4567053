//! A run of a graph as an operation, which borrows or owns its instance.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::any::Any;
use std::borrow::BorrowMut;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::{pin_project, pinned_drop};

use super::super::super::operation::Op;
use super::super::super::operation::sealed::{Kind, Post};
use super::error::RunError;
use super::instance::Instance;
use crate::error::{JobError, Reason};
use crate::reactor::{PostedRun, RunWaiter};

/// A request to run a graph. `I` is the instance: borrowed (`&mut Instance`) or owned (`Instance`).
pub struct RunRequest<I>(I);

/// The operation of [`Instance::run`](crate::graph::Instance::run), which documents what happens if
/// it is dropped.
///
/// # Panics
///
/// Panics if the run is polled after it has completed.
pub type Run<'a> = Op<RunRequest<&'a mut Instance>>;

/// The operation of [`Instance::into_run`](crate::graph::Instance::into_run). Its output is the
/// instance, and the result of the run.
pub type OwnedRun = Op<RunRequest<Instance>>;

impl Instance {
    /// Runs the graph: starts each node once its predecessors have completed. The future completes
    /// when all nodes have completed. If a node fails, no further nodes start, and the future
    /// completes once all jobs in flight and all futures that have begun have completed.
    ///
    /// Nothing happens before the first poll. A run allocates nothing. If the WorkQ is full, the
    /// run waits in line, like other operations. The poll that sees a job complete also submits its
    /// successors.
    ///
    /// # Errors
    ///
    /// [`RunError`](crate::graph::RunError): the first failure, and all nodes that failed. A
    /// context node fails as its operation does ([`Dma::copy`](crate::Dma::copy),
    /// [`Sha::hash`](crate::sha::Sha::hash), [`Accel::call`](crate::accel::Accel::call),
    /// [`Rdma::send`](crate::Rdma::send)). A user node fails with its error or panic. A node that
    /// must be set, and was not, fails with `BadState`. After a failure the run does not wait for
    /// receives: see [`GraphBuilder::rdma_recv`](crate::graph::GraphBuilder::rdma_recv).
    ///
    /// # Cancel safety
    ///
    /// The run can be dropped at any time. No further nodes start, and the futures of async nodes
    /// and the receives are dropped. Jobs in flight continue, and keep their Bufs leased (`InUse`)
    /// until they have completed; their results are discarded. The instance can be set and run
    /// again at once: the next run waits until those jobs have completed, and then begins.
    /// Forgetting the run (`mem::forget`) is sound too.
    #[doc(alias = "doca_workq_graph_submit")]
    #[doc(alias = "doca_graph_instance_submit")]
    pub fn run(&mut self) -> Run<'_> {
        Op::new(RunRequest(self))
    }

    /// Runs the graph as [`Instance::run`] does, but owns the instance. So the operation is
    /// `'static`: it can be spawned, or posted for the caller's own loop. It returns the instance
    /// and the result of the run.
    ///
    /// A posted run begins inside the next [`WorkQ::progress`](crate::WorkQ::progress), which also
    /// calls the run's functions. The run keeps its WorkQ alive until `progress` has returned its
    /// result.
    ///
    /// # Errors
    ///
    /// As [`Instance::run`]. [`start`](Op::start) and [`post`](Op::post) refuse the run with
    /// `Again` while [jobs of an earlier run](Instance::is_draining) are in flight. `post` refuses
    /// the run with `NotSupported` if a node of the graph or of a sub-graph is a future, or waits
    /// for a sync event on a device that cannot wait.
    ///
    /// # Cancel safety
    ///
    /// As [`Instance::run`]. The instance is dropped with the operation.
    pub fn into_run(self) -> OwnedRun {
        Op::new(RunRequest(self))
    }
}

/// The instance of a run, borrowed or owned, which decides the run's output.
pub trait Has: BorrowMut<Instance> + Sized {
    type Output;

    fn end(self, result: Result<(), RunError>) -> Self::Output;
}

impl Has for &mut Instance {
    type Output = Result<(), RunError>;

    fn end(self, result: Result<(), RunError>) -> Self::Output {
        result
    }
}

impl Has for Instance {
    type Output = (Instance, Result<(), RunError>);

    fn end(self, result: Result<(), RunError>) -> Self::Output {
        (self, result)
    }
}

/// The future of a run.
#[pin_project(PinnedDrop)]
pub struct Running<I: Has> {
    #[pin]
    line: RunWaiter,
    /// `None` once the run has completed.
    instance: Option<I>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    New,
    Begun,
    /// `Op::start` was called, and the run completed within that call.
    Ended,
}

impl<I: Has> Running<I> {
    fn is_draining(&mut self) -> bool {
        let instance = self.instance.as_mut();
        instance.is_some_and(|instance| instance.borrow_mut().is_draining())
    }
}

impl<I: Has> Kind for RunRequest<I> {
    type Output = I::Output;
    type JobFuture = Running<I>;

    fn flight(self) -> Running<I> {
        let RunRequest(instance) = self;
        let workq = instance.borrow().workq().clone();
        Running {
            line: RunWaiter::new(workq),
            instance: Some(instance),
            stage: Stage::New,
        }
    }

    fn poll(flight: Pin<&mut Running<I>>, cx: &mut Context<'_>) -> Poll<I::Output> {
        let mut this = flight.project();
        let Some(instance) = this.instance else {
            panic!("a Run was polled after it had finished");
        };
        let level = &mut instance.borrow_mut().level;
        if *this.stage == Stage::New {
            level.progress.start(&level.graph.0);
            *this.stage = Stage::Begun;
        }
        let result = match *this.stage {
            Stage::Ended => level.finish(),
            _ => ready!(level.poll(this.line.as_mut(), cx)),
        };
        level.forget_wakers();
        let instance = this.instance.take().expect("it was there");
        Poll::Ready(instance.end(result))
    }

    /// Starts the nodes that need not wait. The first poll continues the run.
    fn start(flight: &mut Running<I>) -> Result<(), JobError> {
        if flight.is_draining() {
            return Err(JobError::of(Reason::RunDraining));
        }
        let instance = flight.instance.as_mut().expect("it was not polled");
        let level = &mut instance.borrow_mut().level;
        flight.stage = match level.start() {
            true => Stage::Ended,
            false => Stage::Begun,
        };
        Ok(())
    }
}

impl Post for RunRequest<Instance> {
    fn post(flight: &mut Running<Instance>, user_data: u64) -> Result<(), JobError> {
        let instance = flight.instance.as_ref().expect("it was not polled");
        if instance.level.graph.needs_task() {
            return Err(JobError::of(Reason::NotPosted));
        }
        if flight.is_draining() {
            return Err(JobError::of(Reason::RunDraining));
        }
        let instance = flight.instance.take().expect("it was not polled");
        let workq = instance.workq().clone();
        let running = RunRequest(instance).flight();
        workq.post_run(user_data, Box::pin(running));
        Ok(())
    }
}

impl PostedRun for Running<Instance> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Box<dyn Any + Send>> {
        RunRequest::poll(self, cx).map(|ended| Box::new(ended) as Box<dyn Any + Send>)
    }
}

#[pinned_drop]
impl<I: Has> PinnedDrop for Running<I> {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        let Some(instance) = this.instance else {
            return;
        };
        if *this.stage == Stage::New {
            return;
        }
        if instance.borrow_mut().level.stop() {
            this.line.abandon();
        }
    }
}
