//! The reasons why a connection ends, and the reason for each error of its socket.

use std::io;

use crate::error::{Error, ErrorKind};

/// The reason why a connection has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// This side called `disconnect` or `abort`.
    Here,
    /// The peer disconnected, or its process ended.
    There,
    /// The peer ended within a message.
    Torn,
    /// The peer sent a longer message than it may.
    TooLong,
    /// The socket failed.
    Failed(io::ErrorKind),
    /// The runtime of the socket has gone.
    Runtime,
}

impl Ended {
    pub(super) fn error(self, op: &'static str) -> Error {
        let (kind, text) = match self {
            Ended::Here => (ErrorKind::NotConnected, "this side has disconnected"),
            Ended::There => (
                ErrorKind::ConnectionReset,
                "the peer has disconnected, or its process has ended",
            ),
            Ended::Torn => (
                ErrorKind::ConnectionReset,
                "the peer has ended within a message",
            ),
            Ended::TooLong => (
                ErrorKind::ConnectionReset,
                "the peer has sent a longer message than it may: the connection was ended",
            ),
            Ended::Runtime => (
                ErrorKind::Shutdown,
                "the runtime on which the connection was made has ended",
            ),
            Ended::Failed(kind) => {
                let text = format!("the socket failed: {kind}");
                return Error::new(ErrorKind::ConnectionReset, op, text);
            }
        };
        Error::new(kind, op, text)
    }
}

pub(super) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Returns the reason that an error of a call on the socket means.
pub(super) fn failed(error: &io::Error) -> Ended {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ended::There,
        // Tokio's error for a socket whose I/O driver has gone.
        io::ErrorKind::Other => Ended::Runtime,
        kind => Ended::Failed(kind),
    }
}
