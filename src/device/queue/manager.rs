//! Connections that the network's connection manager makes (rdma_cm), between addresses of the
//! Internet.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};

/// What one side says when it asks for a connection, or accepts one.
#[derive(Clone, Debug)]
pub struct CmOptions {
    /// For the peer's application.
    pub private_data: Vec<u8>,
    /// The peer is a program without this library: it is sent `private_data` alone, and nothing is
    /// expected of it.
    pub foreign: bool,
    /// The time at which the attempt fails.
    pub deadline: Instant,
}

/// Is called once, on any thread, with what the peer's application said. It wakes the task that
/// waits, and does nothing else.
pub type CmAnswer = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

/// Is called with each request, on any thread, and with an error once there will be none. As a
/// [`CmAnswer`].
pub type CmArrivals = Arc<dyn Fn(Result<Box<dyn CmOffer>>) + Send + Sync>;

/// A listener of [`Adapter::listen_at`](super::super::contract::Adapter::listen_at). It ends when
/// it is dropped, which does not wait.
pub trait CmListening: Send + Sync {
    /// Returns the address, with the port that was chosen.
    fn local_addr(&self) -> SocketAddr;
}

/// A connection that a peer has asked for, and that was neither accepted nor refused. Dropping it
/// refuses.
pub trait CmOffer: Any + Send + Sync {
    /// Returns the peer's address.
    fn peer_addr(&self) -> SocketAddr;

    /// Returns what the peer's application said. Of a foreign peer, it is as long as the transport
    /// makes it, with zeros at its end.
    fn private_data(&self) -> &[u8];

    /// Returns true if the peer is a program without this library.
    fn is_foreign(&self) -> bool;

    /// Refuses the peer, and sends its application the reason. It does not wait.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the transport carries less.
    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()>;
}

/// What the peer's application said when it refused: the source of the error.
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

/// Says that a device has no connection manager.
pub(in super::super) fn no_manager() -> Error {
    let text = "rdma_cm connects adapters only, and this device has no network: Rdma::connect takes \
                the blob of a peer on this host";
    Error::new(ErrorKind::NotSupported, None, text)
}
