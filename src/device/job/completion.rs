//! The name of a job in flight, and what the device says when it has completed.

use crate::error::JobError;

/// The name of one Job in flight: which Slot, and which use of it.
///
/// ```text
/// 63            32 31       20 19         0
/// |  generation   |   table   |   index   |
/// ```
///
/// A provider gives it back untouched. Its index may serve as an index into the provider's own
/// tables: it is less than the depth of the queue. On an adapter the whole word is the `wr_id` of a
/// Job's last request; `u64::MAX` is never a Token, and the others may name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "wr_id")]
pub struct Token(u64);

const INDEX_BITS: u32 = 20;
const TABLE_BITS: u32 = 12;

impl Token {
    /// The longest table of Slots.
    pub(crate) const MAX_SLOTS: u32 = 1 << INDEX_BITS;

    /// Returns the Token of a Slot; public so that a provider can be driven without a WorkQ, in its
    /// tests.
    ///
    /// # Panics
    ///
    /// Beyond 12 bits of table or 20 of index.
    pub const fn new(table: u32, index: u32, generation: u32) -> Token {
        assert!(table < (1 << TABLE_BITS) - 1 && index < Token::MAX_SLOTS);
        Token((generation as u64) << 32 | (table << INDEX_BITS | index) as u64)
    }

    /// From the word that a device gave back.
    pub const fn from_raw(raw: u64) -> Token {
        Token(raw)
    }

    /// Returns the word to give to a device.
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// Returns the Slot's index in its table; less than the depth of the queue.
    pub const fn index(self) -> u32 {
        self.0 as u32 & (Token::MAX_SLOTS - 1)
    }

    /// Returns the number of the table: 0 for Jobs that finish by themselves, others for receives
    /// and waits of a context.
    pub const fn table(self) -> u32 {
        self.0 as u32 >> INDEX_BITS
    }

    /// Returns the generation: the number of this use of the Slot.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The operation of the peer that completed a receive.
///
/// ```
/// use tokio_doca::rdma::{Received, RecvOpcode};
///
/// /// Handles a message of a peer, whose immediates are file numbers.
/// fn handle(received: Received) {
///     let file = received.immediate.unwrap_or(0);
///     match received.opcode {
///         RecvOpcode::Send => println!("{} bytes", received.len),
///         RecvOpcode::SendImm => println!("{} bytes for file {file}", received.len),
///         RecvOpcode::WriteImm => println!("the peer has written file {file} to our memory"),
///     }
/// }
/// # handle(Received::new(3, RecvOpcode::Send, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "doca_rdma_opcode_t")]
#[doc(alias = "doca_rdma_opcode")]
#[doc(alias = "doca_rdma_task_receive_get_result_opcode")]
pub enum RecvOpcode {
    /// The peer sent a message.
    #[doc(alias = "DOCA_RDMA_OPCODE_RECV_SEND")]
    Send,
    /// The peer sent a message with an immediate.
    #[doc(alias = "DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM")]
    SendImm,
    /// The peer wrote to memory of this side, and sent an immediate. The memory of the receive is
    /// untouched.
    #[doc(alias = "DOCA_RDMA_OPCODE_RECV_WRITE_WITH_IMM")]
    WriteImm,
}

/// What a device says of a finished Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "doca_event")]
pub struct Completion {
    /// The Job.
    pub token: Token,
    /// What the job answers, which is most often the number of bytes moved, or why it failed.
    pub result: Result<u64, JobError>,
    /// What the peer did that ended a receive; `None` for jobs and waits, and for a receive that
    /// failed.
    pub received: Option<Arrival>,
}

/// What a peer did that ended a receive, and the immediate that came with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wc_opcode")]
pub enum Arrival {
    /// The peer sent a message.
    Send,
    /// The peer sent a message with this immediate.
    SendImm(u32),
    /// The peer wrote to memory of this side, and sent this immediate. The memory of the receive is
    /// untouched.
    WriteImm(u32),
}

impl Arrival {
    /// Returns what the peer did, as the receiver learns it.
    pub(crate) const fn opcode(self) -> RecvOpcode {
        match self {
            Arrival::Send => RecvOpcode::Send,
            Arrival::SendImm(_) => RecvOpcode::SendImm,
            Arrival::WriteImm(_) => RecvOpcode::WriteImm,
        }
    }

    /// Returns the immediate that came.
    pub(crate) const fn immediate(self) -> Option<u32> {
        match self {
            Arrival::Send => None,
            Arrival::SendImm(immediate) | Arrival::WriteImm(immediate) => Some(immediate),
        }
    }
}

impl Completion {
    /// A job or wait has completed.
    pub const fn new(token: Token, result: Result<u64, JobError>) -> Completion {
        Completion {
            token,
            result,
            received: None,
        }
    }

    /// A receive has completed: what the peer did, and how many bytes there are of it.
    pub const fn received(token: Token, arrival: Arrival, len: usize) -> Completion {
        Completion {
            token,
            result: Ok(len as u64),
            received: Some(arrival),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_keeps_its_three_parts() {
        let token = Token::new(4094, Token::MAX_SLOTS - 1, u32::MAX);
        assert_eq!(
            (token.table(), token.index(), token.generation()),
            (4094, Token::MAX_SLOTS - 1, u32::MAX)
        );
        assert_eq!(Token::from_raw(token.as_raw()), token);
        let token = Token::new(0, 7, 1);
        assert_eq!(
            (token.table(), token.index(), token.generation()),
            (0, 7, 1)
        );
    }
}
