//! [`Body`], the state of a node in an instance, by its kind.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Settable")]

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::super::kinds::{Receive, Waiting};
use super::super::node::{AsyncBody, Data, Step};
use super::super::plan::Graph;
use super::level::Level;
use crate::error::JobError;
use crate::reactor::{Outcome, WorkQ};

/// The state of a node in an instance.
pub(super) enum Body {
    Context(Box<dyn Step>),
    User,
    Data(Data),
    Async(AsyncBody),
    Recv(Pin<Box<Receive>>),
    Wait(Pin<Box<Waiting>>),
    Sub(Sub),
}

/// The state of a sub-graph node in an instance.
pub struct Sub {
    /// The graph and the WorkQ of the instances that the node can be set to.
    pub(super) graph: Graph,
    pub(super) workq: WorkQ,
    /// The instance that the node was set to.
    pub(super) level: Option<Box<Level>>,
}

impl Body {
    /// Returns the state that `Instance::set` writes; `None` if the node cannot be set.
    pub(super) fn seat(&mut self) -> Option<&mut dyn Any> {
        Some(match self {
            Body::Context(step) => &mut **step,
            Body::Data(data) => &mut **data,
            Body::Recv(recv) => recv,
            Body::Wait(wait) => wait,
            Body::Sub(sub) => sub,
            Body::User | Body::Async(_) => return None,
        })
    }

    /// Returns the instance of a sub-graph node, if it was set.
    pub(super) fn level(&self) -> Option<&Level> {
        match self {
            Body::Sub(sub) => sub.level.as_deref(),
            _ => None,
        }
    }

    pub(super) fn level_mut(&mut self) -> Option<&mut Level> {
        match self {
            Body::Sub(sub) => sub.level.as_deref_mut(),
            _ => None,
        }
    }

    /// Starts a receive or a wait.
    pub(super) fn start_polled(&mut self) -> Result<(), JobError> {
        match self {
            Body::Recv(recv) => recv.as_mut().start(),
            Body::Wait(wait) => wait.as_mut().start(),
            _ => Ok(()),
        }
    }

    /// Polls a receive or a wait.
    pub(super) fn poll_polled(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self {
            Body::Recv(recv) => recv.as_mut().poll(cx),
            Body::Wait(wait) => wait.as_mut().poll(cx),
            _ => Poll::Pending,
        }
    }

    /// Drops a receive or a wait.
    pub(super) fn stop_polled(&mut self) {
        match self {
            Body::Recv(recv) => recv.as_mut().stop(),
            Body::Wait(wait) => wait.as_mut().stop(),
            _ => {}
        }
    }
}
