//! A run as an operation: lent its instance, or owning it.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::any::Any;
use std::borrow::BorrowMut;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::{pin_project, pinned_drop};

use super::super::operation::Op;
use super::super::operation::sealed::{Kind, Post};
use super::error::RunError;
use super::instance::Instance;
use crate::error::{JobError, Reason};
use crate::reactor::{Line, PostedRun};

/// A run of a graph. `I` is how it has its instance: lent (`&mut Instance`) or owned (`Instance`).
pub struct RunRequest<I>(I);

/// What [`Instance::run`](super::Instance::run) returns, which says what dropping it does.
///
/// # Panics
///
/// If it is polled after it was over.
pub type Run<'a> = Op<RunRequest<&'a mut Instance>>;

/// What [`Instance::into_run`](super::Instance::into_run) returns: it answers the instance, and how
/// the run ended.
pub type OwnedRun = Op<RunRequest<Instance>>;

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

/// A run that may go on.
#[pin_project(PinnedDrop)]
pub struct Running<I: Has> {
    #[pin]
    line: Line,
    /// `None` once it is over.
    instance: Option<I>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    New,
    Begun,
    /// It was started, and was over within that.
    Ended,
}

impl<I: Has> Running<I> {
    fn is_draining(&mut self) -> bool {
        let instance = self.instance.as_mut();
        instance.is_some_and(|instance| instance.borrow_mut().is_draining())
    }
}

impl<I: Has> RunRequest<I> {
    pub(super) fn new(instance: I) -> RunRequest<I> {
        RunRequest(instance)
    }
}

impl<I: Has> Kind for RunRequest<I> {
    type Output = I::Output;
    type Flight = Running<I>;

    fn flight(self) -> Running<I> {
        let RunRequest(instance) = self;
        let workq = instance.borrow().workq().clone();
        Running {
            line: Line::new(workq),
            instance: Some(instance),
            stage: Stage::New,
        }
    }

    fn poll(flight: Pin<&mut Running<I>>, cx: &mut Context<'_>) -> Poll<I::Output> {
        let mut this = flight.project();
        let Some(instance) = this.instance else {
            panic!("a Run was polled after it had finished");
        };
        let inner = &mut instance.borrow_mut().inner;
        match *this.stage {
            Stage::New => inner.progress.start(&inner.graph.0),
            Stage::Begun | Stage::Ended => {}
        }
        let result = if *this.stage == Stage::Ended {
            inner.finish()
        } else {
            *this.stage = Stage::Begun;
            ready!(inner.poll(this.line.as_mut(), cx))
        };
        inner.forget_wakers();
        let instance = this.instance.take().expect("it was there");
        Poll::Ready(instance.end(result))
    }

    /// Starts what can be started without waiting. The first poll goes on.
    fn start(flight: &mut Running<I>) -> Result<(), JobError> {
        if flight.is_draining() {
            return Err(JobError::of(Reason::RunDraining));
        }
        let instance = flight.instance.as_mut().expect("it was not polled");
        let inner = &mut instance.borrow_mut().inner;
        flight.stage = match inner.start() {
            true => Stage::Ended,
            false => Stage::Begun,
        };
        Ok(())
    }
}

impl Post for RunRequest<Instance> {
    fn post(flight: &mut Running<Instance>, user_data: u64) -> Result<(), JobError> {
        let instance = flight.instance.as_ref().expect("it was not polled");
        if instance.inner.graph.needs_task() {
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
        if instance.borrow_mut().inner.stop() {
            this.line.abandon();
        }
    }
}
