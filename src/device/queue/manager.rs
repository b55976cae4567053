//! Connections between IP addresses, made by the network's connection manager (rdma_cm).

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};

/// The options with which one side requests or accepts a connection.
#[derive(Clone, Debug)]
pub struct CmOptions {
    /// Bytes for the peer's application.
    pub private_data: Vec<u8>,
    /// True if the peer is a program without this library. The library then sends it only
    /// `private_data`, without data of its own, and expects no such data from the peer.
    pub foreign: bool,
    /// The time at which the attempt fails.
    pub deadline: Instant,
}

/// A function that the provider calls once, on any thread, with the private data of the peer's
/// application, or an error. The function is cheap: it only wakes the task that waits. If the
/// provider drops it without a call, the attempt fails with `Unexpected`.
pub type CmAnswer = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

/// A function that is called, on any thread, with each connection request, and with an error once
/// no more can come. Like a [`CmAnswer`], the function only wakes a task.
pub type CmArrivals = Arc<dyn Fn(Result<Box<dyn CmOffer>>) + Send + Sync>;

/// A listener of [`Adapter::listen_at`](super::super::contract::Adapter::listen_at). Dropping it
/// stops listening, and does not wait.
pub trait CmListening: Send + Sync {
    /// Returns the listener's address. Its port is the one that the system chose if port 0 was
    /// requested.
    fn local_addr(&self) -> SocketAddr;
}

/// A peer's connection request that was neither accepted nor refused yet. Dropping it refuses the
/// peer.
pub trait CmOffer: Any + Send + Sync {
    /// Returns the peer's address.
    fn peer_addr(&self) -> SocketAddr;

    /// Returns the private data of the peer's application. If the peer is foreign, the transport
    /// has padded the data with zeros.
    fn private_data(&self) -> &[u8];

    /// Returns true if the peer is a program without this library.
    fn is_foreign(&self) -> bool;

    /// Refuses the peer, and sends `private_data` to its application as the reason. It does not
    /// wait.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `private_data` is longer than the transport carries.
    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()>;
}

/// The private data with which a peer has refused, as the source of an error.
#[derive(Debug)]
pub(crate) struct CmRefused(pub(crate) Vec<u8>);

impl fmt::Display for CmRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [] => f.write_str("its application does not want it"),
            said => write!(f, "its application says \"{}\"", said.escape_ascii()),
        }
    }
}

impl std::error::Error for CmRefused {}

/// Returns the error of a device that has no connection manager.
pub(in super::super) fn no_manager() -> Error {
    let text = "rdma_cm connects adapters only, and this device has no network: Rdma::connect takes \
                the blob of a peer on this host";
    Error::new(ErrorKind::NotSupported, None, text)
}
