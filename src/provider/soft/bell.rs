//! The bell between processes: a byte on a socket, which never blocks whoever rings.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

/// Messages that are read in one go.
const READS: usize = 64;

/// Rings. If the socket is full the peer has not read what rang before, and is awake or hostile.
pub(super) fn ring(socket: &OwnedFd) {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = send(socket.as_raw_fd(), &[1], flags);
}

/// Reads what rang, so that there is room for more. What a flooding peer leaves there costs it its bell.
pub(super) fn drain(socket: &OwnedFd) {
    let mut message = [0; 64];
    for _ in 0..READS {
        match recv(socket.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
            Ok(1..) | Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Whether nobody is at the other end any more.
pub(super) fn is_hung_up(socket: &OwnedFd) -> bool {
    // A hang-up is told in any case.
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
}
