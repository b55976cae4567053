//! What a stream that continues over a socket asks of it: whether its peer's host has everything,
//! and whether that is there yet.

use std::io;

use nix::sys::socket::{setsockopt, sockopt};

use super::socket::{Socket, Stream};
use crate::process;

impl Socket {
    /// Returns how many bytes of what was written the peer's host has not. What a Unix socket has
    /// taken it has.
    pub(crate) fn unacknowledged(&self) -> usize {
        match &self.stream {
            Stream::Unix(_) => 0,
            Stream::Tcp(stream) => process::unacknowledged(stream).unwrap_or(usize::MAX),
        }
    }

    /// Acknowledges what has come at once, and not with the next answer (tcp(7): TCP_QUICKACK).
    pub(crate) fn acknowledge(&self) {
        if let Stream::Tcp(stream) = &self.stream {
            let _ = stream.set_quickack(true);
        }
    }

    /// What has gone wrong, and no read or write has said.
    pub(crate) fn take_error(&self) -> io::Result<()> {
        let error = match &self.stream {
            Stream::Unix(stream) => stream.take_error(),
            Stream::Tcp(stream) => stream.take_error(),
        };
        error?.map_or(Ok(()), Err)
    }

    /// Has an idle connection end within a minute if the peer's machine has gone: after 30 s
    /// without a packet there are six probes, every 5 s. TCP_USER_TIMEOUT would end it while the
    /// peer does not read as well.
    pub(crate) fn keep_alive(&self) {
        let Stream::Tcp(stream) = &self.stream else {
            return;
        };
        let _ = setsockopt(stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(stream, sockopt::TcpKeepIdle, &30);
        let _ = setsockopt(stream, sockopt::TcpKeepInterval, &5);
        let _ = setsockopt(stream, sockopt::TcpKeepCount, &6);
    }
}
