//! One remote operation, as the device sees it: plain data.

use super::effect::Effect;
use super::segment::{Segment, Segments};

/// The operation of an [`RdmaJob`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wr_opcode")]
pub enum Verb {
    /// Sends the local data to the peer as a message, with an immediate if there is one.
    Send(Option<u32>),
    /// Writes the local data to the start of the remote range. With an immediate it also completes
    /// a receive of the peer.
    Write(Option<u32>),
    /// Reads the remote range into the local memory.
    Read,
    /// Sets the first 8 bytes of the remote range to `swap` if they equal `compare`. The result is
    /// their previous value.
    CompareSwap {
        /// The value that the bytes must have.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds this number to the first 8 bytes of the remote range. The result is their previous
    /// value.
    FetchAdd(u64),
}

/// A remote operation, for a connected Endpoint.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "doca_rdma_job_send")]
#[doc(alias = "doca_rdma_job_read_write")]
#[doc(alias = "doca_rdma_job_atomic")]
pub struct RdmaJob {
    /// The operation.
    pub verb: Verb,
    /// The memory of this side. A read scatters to it; sends and writes gather from it. If `len` is
    /// 0, it may have no piece, an empty piece, or more bytes than are moved. [`Segments::none`]
    /// for atomics.
    pub local: Segments,
    /// The memory of the peer; `None` for messages, and if no bytes are moved.
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
