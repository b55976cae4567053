//! A run as an operation: lent its instance, or owning it.

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

/// A run of a graph. `I` is how it has its instance: lent (`&mut Instance`) or owned (`Instance`).
pub struct RunRequest<I>(I);

/// The operation of [`Instance::run`](crate::graph::Instance::run), which says what dropping it
/// does.
///
/// # Panics
///
/// If it is polled after it had completed.
pub type Run<'a> = Op<RunRequest<&'a mut Instance>>;

/// The operation of [`Instance::into_run`](crate::graph::Instance::into_run). Its output is the
/// instance, and the result of the run.
pub type OwnedRun = Op<RunRequest<Instance>>;

impl Instance {
    /// Runs the graph: each node once its predecessors have completed. The future ends when all
    /// are, or when one failed and what was in flight has drained.
    ///
    /// Nothing is allocated, and nothing happens before the first poll. A WorkQ that is full is
    /// waited for, in line with all others. A job that has completed has its successors submitted
    /// in the same poll that sees it.
    ///
    /// # Errors
    ///
    /// [`RunError`](crate::graph::RunError): the first failure, and all nodes that failed. A
    /// context node fails as its job does ([`Dma::copy`](crate::Dma::copy),
    /// [`Sha::hash`](crate::sha::Sha::hash), [`Accel::call`](crate::accel::Accel::call),
    /// [`Rdma::send`](crate::Rdma::send)), a user node with its error or panic, a node that was not
    /// set with `BadState`. Receives are not waited for then: see
    /// [`GraphBuilder::rdma_recv`](crate::graph::GraphBuilder::rdma_recv).
    ///
    /// # Cancel safety
    ///
    /// Dropping it is ordinary. Nothing new starts, futures of async nodes and receives are
    /// dropped, jobs in flight continue, keep their Bufs leased (`InUse`) until they have
    /// completed, and are then forgotten. The instance can be set and run again at once: the next
    /// run begins when those jobs have completed, and waits for them. Forgetting it is sound too.
    #[doc(alias = "doca_workq_graph_submit")]
    #[doc(alias = "doca_graph_instance_submit")]
    pub fn run(&mut self) -> Run<'_> {
        Op::new(RunRequest::new(self))
    }

    /// The same run, which owns the instance: it is `'static`, can be spawned, and can be posted to
    /// a loop of the caller's own. It answers the instance, and how the run ended.
    ///
    /// A run that is posted begins inside the next [`WorkQ::progress`](crate::WorkQ::progress), as
    /// do its functions, and keeps its WorkQ until it is handed out.
    ///
    /// # Errors
    ///
    /// As [`Instance::run`]. [`start`](Op::start) and [`post`](Op::post) refuse it with `Again`
    /// while [jobs of a run before](Instance::is_draining) are in flight, and `post` with
    /// `NotSupported` if a node, also one of a sub-graph, is an async function, or waits on a
    /// device that cannot wait.
    ///
    /// # Cancel safety
    ///
    /// As [`Instance::run`]. The instance is dropped with it.
    pub fn into_run(self) -> OwnedRun {
        Op::new(RunRequest::new(self))
    }
}

/// How a run has its instance, and what it answers.
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

/// A run that may continue.
#[pin_project(PinnedDrop)]
pub struct Running<I: Has> {
    #[pin]
    line: RunWaiter,
    /// `None` once it has completed.
    instance: Option<I>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    New,
    Begun,
    /// It was started, and had completed within that.
    Ended,
}

impl<I: Has> Running<I> {
    fn is_draining(&mut self) -> bool {
        let instance = self.instance.as_mut();
        instance.is_some_and(|instance| instance.borrow_mut().is_draining())
    }
}

impl<I: Has> RunRequest<I> {
    fn new(instance: I) -> RunRequest<I> {
        RunRequest(instance)
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
        match *this.stage {
            Stage::New => level.progress.start(&level.graph.0),
            Stage::Begun | Stage::Ended => {}
        }
        let result = if *this.stage == Stage::Ended {
            level.finish()
        } else {
            *this.stage = Stage::Begun;
            ready!(level.poll(this.line.as_mut(), cx))
        };
        level.forget_wakers();
        let instance = this.instance.take().expect("it was there");
        Poll::Ready(instance.end(result))
    }

    /// Starts what can be started without waiting. The first poll continues.
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
        let running = RunRequest::new(instance).flight();
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
