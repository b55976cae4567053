//! One remote operation, as the device sees it: plain data.

use super::effect::Effect;
use super::segment::{Segment, Segments};

/// What is done with the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wr_opcode")]
pub enum Verb {
    /// Sends the local data to the peer as a message, with an immediate if there is one.
    Send(Option<u32>),
    /// Writes the local data to the start of the remote range. With an immediate it also ends a
    /// receive of the peer.
    Write(Option<u32>),
    /// Reads the remote range into the local memory.
    Read,
    /// The first 8 bytes of the remote range become `swap` if they are `compare`. The answer is
    /// what they were.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What is put there.
        swap: u64,
    },
    /// This is added to the first 8 bytes of the remote range. The answer is what they were.
    FetchAdd(u64),
}

/// One piece of work for a connected Endpoint.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "doca_rdma_job_send")]
#[doc(alias = "doca_rdma_job_read_write")]
#[doc(alias = "doca_rdma_job_atomic")]
pub struct RdmaJob {
    /// What is done.
    pub verb: Verb,
    /// Memory of this side: gathered from, or, by a read, scattered to. Where `len` is 0 there may
    /// be none, an empty piece, or more than is moved. [`Segments::none`] for atomics.
    pub local: Segments,
    /// Memory of the peer; `None` for messages, and where nothing is moved.
    pub remote: Option<Segment>,
    /// The number of bytes that are moved; 8 for atomics. `local` and `remote` have at least that
    /// length.
    pub len: usize,
}

impl Effect for RdmaJob {
    #[inline(always)]
    fn cost(&self) -> usize {
        self.len
    }
}
