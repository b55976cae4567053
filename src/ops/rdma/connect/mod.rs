//! The ways to connect a context: over a stream, by the peer's blob, or by rdma_cm.

// This module comes first, since rustdoc shows the methods of a type in the order of modules.
mod handshake;

mod blob;
mod cm;
mod dial;

pub use blob::Connect;
pub(super) use blob::How;
pub use cm::{CmAccept, CmListener, CmRequest, ConnectTo};
