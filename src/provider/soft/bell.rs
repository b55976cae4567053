//! The socket by which processes wake each other: one byte for each wake-up. Sending never blocks.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use crate::process::{Guarded, hang_up, receive};

/// The maximum number of messages that are read in one go.
const READS: usize = 64;

/// Wakes the peer. If the socket is full, the peer has not read earlier bytes: it is awake, or
/// hostile. Returns false if the peer has closed its end.
pub(super) fn ring(socket: &Guarded) -> bool {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let signalled = send(socket.as_raw_fd(), &[1], flags);
    !matches!(signalled, Err(Errno::EPIPE | Errno::ECONNRESET))
}

/// Reads what the peer has sent, to make space for more. If the peer sends a descriptor, this side
/// hangs up. If the peer has sent too many bytes to read in one go, its later wake-ups may be lost.
pub(super) fn drain(socket: &Guarded) {
    read(socket, READS);
}

/// Reads the only byte that the peer can have sent.
pub(super) fn read_byte(socket: &Guarded) {
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

/// Returns true if the peer has closed its end.
pub(super) fn is_hung_up(socket: &Guarded) -> bool {
    // The kernel reports a hang-up even if no event is requested.
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
}
