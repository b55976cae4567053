//! The bell between processes: a byte on a socket, which never blocks whoever rings.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use crate::process::{Guarded, hang_up, receive};

/// Messages that are read in one go.
const READS: usize = 64;

/// Rings. If the socket is full the peer has not read what rang before, and is awake or hostile.
/// Returns false if nobody is at the other end any more.
pub(super) fn ring(socket: &Guarded) -> bool {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let signalled = send(socket.as_raw_fd(), &[1], flags);
    !matches!(signalled, Err(Errno::EPIPE | Errno::ECONNRESET))
}

/// Reads what rang, so that there is room for more. What a flooding peer leaves there costs it its
/// bell, and so does a descriptor.
pub(super) fn drain(socket: &Guarded) {
    read(socket, READS);
}

/// Reads the one ring that there is.
pub(super) fn hear(socket: &Guarded) {
    read(socket, 1);
}

fn read(socket: &Guarded, most: usize) {
    let mut message = [0; 64];
    for _ in 0..most {
        match receive(socket, &mut message) {
            Ok(1..) | Err(Errno::EINTR) => {}
            Err(Errno::EBADMSG) => return hang_up(socket),
            Ok(0) | Err(_) => return,
        }
    }
}

/// Returns true if nobody is at the other end any more.
pub(super) fn is_hung_up(socket: &Guarded) -> bool {
    // A hang-up is told in any case.
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
}
