//! The other side of a measurement, if it is in another process.

use std::fmt;
use std::net::SocketAddr;

use futures::future::LocalBoxFuture;
use tokio_doca::stream::{RdmaConnector, RdmaStream};
use tokio_doca::{Rdma, WorkQ};

use super::{Plan, Result};

/// The peer of a plan. Each measuring thread connects to it through this trait.
pub(crate) trait Meet: fmt::Debug + Send + Sync {
    /// Connects to the other side, and has it agree to the plan.
    fn meet<'a>(
        &'a self,
        connector: &'a RdmaConnector,
        plan: &'a Plan,
    ) -> LocalBoxFuture<'a, Result<Far>>;

    /// As [`Meet::meet`], and also connects a new RDMA context on `workq` with a context of the
    /// other side.
    fn connected<'a>(
        &'a self,
        workq: &'a WorkQ,
        plan: &'a Plan,
    ) -> LocalBoxFuture<'a, Result<(Rdma, Far)>>;
}

/// A connection to the other side. Dropping the stream ends the other side's part.
pub(crate) struct Far {
    pub(crate) stream: RdmaStream,
    /// The export blob of the memory that the other side lends.
    pub(crate) memory: Vec<u8>,
    /// Where the other side accepts a TCP connection, and the bytes that must come first on it. Set
    /// only for the TCP baseline.
    pub(crate) tcp: Option<(SocketAddr, [u8; 16])>,
}
