//! Socket calls for channels, and for streams that continue without RDMA. They find out whether the
//! peer's host has received all bytes, and whether that host is still there.

use std::io;

use nix::sys::socket::{setsockopt, sockopt};

use super::socket::{Socket, Stream};
use crate::process;

impl Socket {
    /// Returns how many of the written bytes the peer's host has not acknowledged. This is 0 for a
    /// Unix socket, whose peer is on this host.
    pub(crate) fn unacknowledged(&self) -> usize {
        match &self.stream {
            Stream::Unix(_) => 0,
            Stream::Tcp(stream) => process::unacknowledged(stream).unwrap_or(usize::MAX),
        }
    }

    /// Acknowledges received bytes at once, instead of with the next bytes that are sent (tcp(7):
    /// TCP_QUICKACK).
    pub(crate) fn acknowledge(&self) {
        if let Stream::Tcp(stream) = &self.stream {
            let _ = stream.set_quickack(true);
        }
    }

    /// Takes a pending error of the socket, which no read or write has returned, and fails with it.
    pub(crate) fn take_error(&self) -> io::Result<()> {
        let error = match &self.stream {
            Stream::Unix(stream) => stream.take_error(),
            Stream::Tcp(stream) => stream.take_error(),
        };
        error?.map_or(Ok(()), Err)
    }

    /// Makes an idle connection end within a minute if the peer's machine has gone: after 30 s
    /// without a packet there are six probes, one every 5 s. TCP_USER_TIMEOUT would also end
    /// connections whose peer does not read.
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
