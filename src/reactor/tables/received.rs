//! [`Received`], which describes a received message, and `RecvBuf`, the memory of a receive.
#![expect(unsafe_code, reason = "a message is copied between leased memory")]

use crate::device::{Completion, RecvOpcode, Segments};
use crate::error::{ErrorKind, JobError, Reason};
use crate::mem::{Extent, Grow, Leased, Writing, hand_over};

/// A description of a received message: the output of [`Rdma::recv`](crate::Rdma::recv).
///
/// ```
/// use tokio_doca::rdma::{Received, RecvOpcode};
/// # use tokio_doca::{BufPool, Device, Mmap, Rdma, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let (a, b) = (Rdma::builder(&device).attach(&workq)?, Rdma::builder(&device).attach(&workq)?);
/// # let (of_a, of_b) = (a.export()?, b.export()?);
/// # tokio::try_join!(a.connect(&of_b), b.connect(&of_a))?;
/// // `a` and `b` are connected.
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let (_, received) = tokio::try_join!(a.send(&src), b.recv(&dst))?;
/// let Received { len, opcode, .. } = received;
/// assert_eq!((len, opcode), (5, RecvOpcode::Send));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "doca_rdma_result")]
#[doc(alias = "doca_rdma_task_receive_get_result_len")]
#[doc(alias = "doca_rdma_task_receive_get_result_immediate_data")]
#[non_exhaustive]
pub struct Received {
    /// The number of bytes that the peer sent, or that its write with an immediate has written.
    pub len: usize,
    /// The operation by which the peer sent the message.
    pub opcode: RecvOpcode,
    /// The immediate value that the peer sent with the message, if any.
    pub immediate: Option<u32>,
}

impl Received {
    /// Returns a description with these values, for tests of code that awaits receives.
    pub const fn new(len: usize, opcode: RecvOpcode, immediate: Option<u32>) -> Received {
        Received {
            len,
            opcode,
            immediate,
        }
    }

    /// Returns the number of bytes of the message that lie in the memory of the receive.
    pub(crate) fn landed(&self) -> usize {
        match self.opcode {
            RecvOpcode::WriteImm => 0,
            _ => self.len,
        }
    }
}

/// The memory of a receive, and the Lease on it.
pub(crate) struct RecvBuf {
    /// `None` if the receive has no destination.
    pub(in crate::reactor) lease: Option<Writing>,
    /// The memory of the Lease.
    pub(in crate::reactor) segments: Segments,
    /// The length of the memory, in bytes.
    pub(in crate::reactor) len: usize,
}

impl RecvBuf {
    pub(crate) fn new(begun: Leased<Option<Writing>, Segments>) -> RecvBuf {
        let (lease, segments) = begun.into_parts();
        let len = Extent::of(&segments).bytes;
        RecvBuf {
            lease,
            segments,
            len,
        }
    }

    /// Returns the Lease, if the receive has a destination.
    pub(crate) fn lease(&self) -> Option<&Writing> {
        self.lease.as_ref()
    }
}

/// The outcome of a receive, and its memory.
pub(crate) struct RecvCompletion {
    pub(crate) outcome: Result<Received, JobError>,
    pub(crate) buf: RecvBuf,
}

impl RecvCompletion {
    /// Returns the number of bytes of the message that lie in the receive's memory.
    pub(crate) fn len(&self) -> usize {
        self.outcome.map_or(0, |received| received.landed())
    }

    /// Appends the message, which lies in the receive's memory already, to the data of that memory.
    pub(crate) fn grow(&self) {
        if let Some(lease) = &self.buf.lease {
            lease.grow(self.len());
        }
    }

    /// Copies the message to the memory of `to`, if it fits, and appends it to the data there.
    pub(crate) fn hand_over(&self, to: &RecvBuf) -> Result<(), JobError> {
        let len = self.len();
        if len == 0 {
            return Ok(());
        }
        if len > to.len {
            let (len, capacity) = (len as u64, to.len as u64);
            return Err(JobError::new(Reason::ReceiveTooSmall, len, capacity));
        }
        assert!(len <= self.buf.len);
        // SAFETY: each RecvBuf has the write Lease of its memory (`RecvBuf::new`), which has `len`
        // bytes.
        unsafe { hand_over(&self.buf.segments, &to.segments, len) };
        if let Some(lease) = &to.lease {
            lease.grow(len);
        }
        Ok(())
    }
}

/// Returns an empty receive buffer.
pub(super) fn nowhere() -> RecvBuf {
    RecvBuf {
        lease: None,
        segments: Segments::none(),
        len: 0,
    }
}

/// Checks a completion that a device has reported for a receive of `capacity` bytes. Returns the
/// description of the message.
pub(in crate::reactor) fn received(
    completion: &Completion,
    capacity: usize,
) -> Result<Received, JobError> {
    let nonsense = JobError::device(ErrorKind::Unexpected, 0);
    let len = usize::try_from(completion.result?).map_err(|_| nonsense)?;
    let arrival = completion.received.ok_or(nonsense)?;
    let opcode = arrival.opcode();
    if opcode != RecvOpcode::WriteImm && len > capacity {
        return Err(nonsense);
    }
    Ok(Received {
        len,
        opcode,
        immediate: arrival.immediate(),
    })
}
