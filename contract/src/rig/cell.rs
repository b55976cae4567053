//! One cell of the arena of a rig.

use tokio_doca::device::contract::Token;

/// A cell: the range of the arena that belongs to a token index, and the state of that token's job.
pub(super) struct Cell {
    pub(super) token: Token,
    pub(super) in_flight: bool,
    pub(super) len: usize,
    /// The answer that the Job must give.
    pub(super) answer: u64,
    /// The bytes that the cell must have while no Job uses it.
    pub(super) bytes: Vec<u8>,
    /// The bytes that the cell must have after the prepared Job.
    pub(super) after: Vec<u8>,
    /// The message that the cell's session has hashed so far.
    pub(super) message: Vec<u8>,
    /// The same message after the prepared Job.
    pub(super) message_after: Vec<u8>,
}
