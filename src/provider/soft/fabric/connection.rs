//! Connections to the fabric's thread, and what becomes of those that were answered.

use std::time::Instant;

use crate::process::Guarded;

// What the thread's epoll descriptor says of what is ready.
pub(super) const BELL: u64 = 0;
pub(super) const LISTENER: u64 = 1;
/// Connections are numbered from here on.
pub(super) const FIRST: u64 = 2;
/// Marks processes that are watched, beside connections.
pub(super) const PROCESS: u64 = 1 << 63;

/// What was answered.
pub(super) enum After {
    /// No, or nothing.
    Refused,
    /// An answer with descriptors.
    Answered(Then),
}

/// What becomes of a connection that was answered.
pub(super) enum Then {
    HangUp,
    Keep,
    HandOver(Box<dyn FnOnce(Guarded) + Send>),
}

pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) socket: Guarded,
    /// When it has been silent for too long.
    pub(super) until: Instant,
}
