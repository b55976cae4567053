//! The other side, if it is in another process.

use std::fmt;
use std::net::SocketAddr;

use futures::future::LocalBoxFuture;
use tokio_doca::stream::{RdmaConnector, RdmaStream};
use tokio_doca::{Rdma, WorkQ};

use super::{Plan, Result};

/// The peer of a plan, which each thread that measures meets.
pub(crate) trait Meet: fmt::Debug + Send + Sync {
    /// Meets the other side, which agrees to the plan.
    fn meet<'a>(
        &'a self,
        connector: &'a RdmaConnector,
        plan: &'a Plan,
    ) -> LocalBoxFuture<'a, Result<Far>>;

    /// Meets the other side, and connects a context of the WorkQ with one there.
    fn connected<'a>(
        &'a self,
        workq: &'a WorkQ,
        plan: &'a Plan,
    ) -> LocalBoxFuture<'a, Result<(Rdma, Far)>>;
}

/// A connection to the other side, whose part ends with the stream.
pub(crate) struct Far {
    pub(crate) stream: RdmaStream,
    /// The blob of the memory that it lends.
    pub(crate) memory: Vec<u8>,
    /// Where it accepts a TCP connection, and the bytes with which that begins. Of the plan of the
    /// baseline TCP alone.
    pub(crate) tcp: Option<(SocketAddr, [u8; 16])>,
}
