//! A message, as a stream yields it.

use crate::device::RecvOpcode;
use crate::mem::Buf;
use crate::reactor::Received;

/// What a [`RecvStream`](super::RecvStream) yields.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The data of the message; `None` if there is none: the peer sent an empty one, or wrote
    /// elsewhere.
    pub buf: Option<Buf>,
    /// What came.
    pub received: Received,
}

impl Message {
    pub(super) fn new(buf: Buf, received: Received) -> Message {
        let empty = received.len == 0 || received.opcode == RecvOpcode::WriteImm;
        Message {
            buf: (!empty).then_some(buf),
            received,
        }
    }
}
