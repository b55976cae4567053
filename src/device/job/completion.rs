//! Tokens, which name jobs in flight, and the completions that a device reports.

use crate::error::JobError;

/// The name of one Job, receive or wait in flight: a table, the index of an entry there, and the
/// generation, which counts the uses of the entry.
///
/// ```text
/// 63            32 31       20 19         0
/// |  generation   |   table   |   index   |
/// ```
///
/// A provider returns the Token unchanged in the [`Completion`]. The provider's own tables may use
/// the Token's index, which for a Job is less than the depth of the queue. On an adapter, the whole
/// word is the `wr_id` of a Job's last request. `u64::MAX` is never a Token, so the Job's other
/// requests may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "wr_id")]
pub struct Token(u64);

const INDEX_BITS: u32 = 20;
const TABLE_BITS: u32 = 12;

impl Token {
    /// The maximum number of slots in a table.
    pub(crate) const MAX_SLOTS: u32 = 1 << INDEX_BITS;

    /// Returns the Token of an entry. This is public for tests that drive a provider without a
    /// WorkQ.
    ///
    /// # Panics
    ///
    /// If `table` is 4,095 or more, or `index` is 2^20 or more.
    pub const fn new(table: u32, index: u32, generation: u32) -> Token {
        assert!(table < (1 << TABLE_BITS) - 1 && index < Token::MAX_SLOTS);
        Token((generation as u64) << 32 | (table << INDEX_BITS | index) as u64)
    }

    /// Returns the Token with this raw value, which a device has returned.
    pub const fn from_raw(raw: u64) -> Token {
        Token(raw)
    }

    /// Returns the Token as one number, which a device can carry.
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// Returns the index of the entry in its table. For Jobs it is less than the depth of the
    /// queue.
    pub const fn index(self) -> u32 {
        self.0 as u32 & (Token::MAX_SLOTS - 1)
    }

    /// Returns the number of the table: 0 for the Jobs of a WorkQ. Receives and waits of each
    /// context are in tables with other numbers.
    pub const fn table(self) -> u32 {
        self.0 as u32 >> INDEX_BITS
    }

    /// Returns the generation: the number of this use of the entry.
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

/// A device's report that a job, receive or wait has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "doca_event")]
pub struct Completion {
    /// The Token of the job, receive or wait.
    pub token: Token,
    /// The result of the job, receive or wait, which is most often the number of bytes moved, or
    /// the reason why it failed.
    pub result: Result<u64, JobError>,
    /// The peer's operation that completed a receive; `None` for jobs and waits, and for a receive
    /// that failed.
    pub received: Option<Arrival>,
}

/// The peer's operation that completed a receive, with its immediate.
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
    /// Returns the peer's operation without its immediate, as the application receives it.
    pub(crate) const fn opcode(self) -> RecvOpcode {
        match self {
            Arrival::Send => RecvOpcode::Send,
            Arrival::SendImm(_) => RecvOpcode::SendImm,
            Arrival::WriteImm(_) => RecvOpcode::WriteImm,
        }
    }

    /// Returns the immediate, if the operation has one.
    pub(crate) const fn immediate(self) -> Option<u32> {
        match self {
            Arrival::Send => None,
            Arrival::SendImm(immediate) | Arrival::WriteImm(immediate) => Some(immediate),
        }
    }
}

impl Completion {
    /// Returns the completion of a job or wait.
    pub const fn new(token: Token, result: Result<u64, JobError>) -> Completion {
        Completion {
            token,
            result,
            received: None,
        }
    }

    /// Returns the completion of a receive by an operation of the peer that has `len` bytes.
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
