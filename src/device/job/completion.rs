//! The name of a Job in flight, and what the device says when it is over.

use crate::error::JobError;

/// The name of one Job in flight: which Slot, and which use of it.
///
/// ```text
/// 63            32 31       20 19         0
/// |  generation   |   table   |   index   |
/// ```
///
/// A provider gives it back untouched. Its index may serve as an index into the provider's own tables: it is
/// less than the depth of the queue. On an adapter the whole word is the `wr_id` of a Job's last request; `u64::MAX` is
/// never a Token, and may stand in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "wr_id")]
pub struct Token(u64);

const INDEX_BITS: u32 = 20;
const TABLE_BITS: u32 = 12;

impl Token {
    /// The longest table of Slots.
    pub(crate) const MAX_SLOTS: u32 = 1 << INDEX_BITS;

    /// The Token of a Slot; public so that a provider can be driven without a WorkQ, in its tests.
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

    /// The word to give to a device.
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// The Slot's place in its table; less than the depth of the queue.
    pub const fn index(self) -> u32 {
        self.0 as u32 & (Token::MAX_SLOTS - 1)
    }

    /// Which table: 0 for Jobs that finish by themselves, others for receives and waits of a context.
    pub const fn table(self) -> u32 {
        self.0 as u32 >> INDEX_BITS
    }

    /// Which use of the Slot.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What a peer did that ended a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "doca_rdma_opcode_t")]
pub enum RecvOpcode {
    /// It sent a message.
    #[doc(alias = "DOCA_RDMA_OPCODE_RECV_SEND")]
    Send,
    /// It sent a message, and an immediate.
    #[doc(alias = "DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM")]
    SendImm,
    /// It wrote to memory of this side, and sent an immediate. The receive's own memory is untouched.
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
    /// The number of bytes moved, or why not.
    pub result: Result<u64, JobError>,
    /// Of a receive: what came beside the data. 0 otherwise.
    pub immediate: u32,
}

/// Where the opcode of a receive stands in its result.
const OPCODE_SHIFT: u32 = 62;

impl Completion {
    /// A Job is over.
    pub const fn new(token: Token, result: Result<u64, JobError>) -> Completion {
        Completion {
            token,
            result,
            immediate: 0,
        }
    }

    /// A receive is over: what the peer did, how many bytes there are of it, and its immediate.
    pub const fn received(
        token: Token,
        opcode: RecvOpcode,
        len: usize,
        immediate: u32,
    ) -> Completion {
        let code = match opcode {
            RecvOpcode::Send => 0,
            RecvOpcode::SendImm => 1,
            RecvOpcode::WriteImm => 2,
        };
        Completion {
            token,
            result: Ok(code << OPCODE_SHIFT | len as u64),
            immediate,
        }
    }

    /// What peer did, and how many bytes there are, by the result of a receive; `None` for what `received` never makes.
    pub(crate) fn opcode_and_len(result: u64) -> Option<(RecvOpcode, usize)> {
        let opcode = match result >> OPCODE_SHIFT {
            0 => RecvOpcode::Send,
            1 => RecvOpcode::SendImm,
            2 => RecvOpcode::WriteImm,
            _ => return None,
        };
        let len = result & ((1 << OPCODE_SHIFT) - 1);
        Some((opcode, usize::try_from(len).ok()?))
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

    #[test]
    fn a_receive_says_what_the_peer_did() {
        let token = Token::new(1, 2, 3);
        for opcode in [RecvOpcode::Send, RecvOpcode::SendImm, RecvOpcode::WriteImm] {
            let completion = Completion::received(token, opcode, 1 << 31, 7);
            let result = completion.result.unwrap();
            assert_eq!(Completion::opcode_and_len(result), Some((opcode, 1 << 31)));
            assert_eq!(completion.immediate, 7);
        }
        assert_eq!(Completion::opcode_and_len(u64::MAX), None);
    }
}
