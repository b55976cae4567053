//! One cell of the arena of a rig.

use tokio_doca::device::contract::Token;

/// The piece of the arena that a token index has, and what the rig knows of its job.
pub(super) struct Cell {
    pub(super) token: Token,
    pub(super) in_flight: bool,
    pub(super) len: usize,
    /// What its Job must answer.
    pub(super) answer: u64,
    /// What is in it if nobody touches it.
    pub(super) bytes: Vec<u8>,
    /// What a prepared Job will make of it.
    pub(super) after: Vec<u8>,
    /// What its session has hashed, and will have when a prepared Job is over.
    pub(super) message: Vec<u8>,
    pub(super) message_after: Vec<u8>,
}
