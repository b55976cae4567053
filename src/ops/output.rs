//! [`Output`], the output of an operation that was posted for the caller's own loop.

use super::graph::{Instance, RunError};
use crate::error::JobError;
use crate::reactor::{End, Received, ResultKind, WorkQ};

/// The output of a posted operation ([`Op::post`](super::Op::post)), as
/// [`WorkQ::progress`](crate::WorkQ::progress) returns it.
///
/// ```
/// use tokio_doca::op::Output;
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, Mode, WorkQ};
///
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let workq = WorkQ::builder().mode(Mode::BusyPoll).build()?;
/// let dma = Dma::builder(&device).attach(&workq)?;
/// # let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
/// # src.extend_from_slice(b"hello")?;
/// dma.copy(&src, &dst).post(42)?;
/// let mut copied = None;
/// while copied.is_none() {
///     workq.progress(|user_data, ended| match ended {
///         Ok(Output::Bytes(bytes)) => copied = Some((user_data, bytes)),
///         other => panic!("{user_data}: {other:?}"),
///     });
/// }
/// assert_eq!(copied, Some((42, 5)));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Output {
    /// The number of bytes that were copied, hashed, sent, read or written. For a hash that
    /// completes its message, this is the length of the digest.
    Bytes(usize),
    /// Another number: the value that an atomic operation found, the value of a sync event, a CRC,
    /// the number that [`CrcCopied::from`](crate::crc::CrcCopied) converts, or the result of a call
    /// of an accelerator. The method that makes the operation documents the number.
    Value(u64),
    /// The operation has completed, and has no result.
    Done,
    /// The description of the message that was received.
    Received(Received),
    /// The instance of a run of a graph, and the result of the run.
    #[doc(alias = "DOCA_GRAPH_JOB")]
    Run(Box<(Instance, Result<(), RunError>)>),
}

impl Output {
    /// Returns the number of bytes of [`Output::Bytes`], or the length of a received message;
    /// `None` for other outputs.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Output::Bytes(bytes) => Some(*bytes),
            Output::Received(received) => Some(received.len),
            _ => None,
        }
    }

    /// Returns the number of [`Output::Value`]; `None` for other outputs.
    pub fn value(&self) -> Option<u64> {
        match self {
            Output::Value(value) => Some(*value),
            _ => None,
        }
    }

    fn of(end: End) -> Result<Output, JobError> {
        match end {
            End::Job(ResultKind::Bytes, outcome) => {
                outcome.map(|bytes| Output::Bytes(bytes as usize))
            }
            End::Job(ResultKind::Value, outcome) | End::Waited(outcome) => {
                outcome.map(Output::Value)
            }
            End::Job(ResultKind::Nothing, outcome) => outcome.map(|_| Output::Done),
            End::Received(received) => received.map(Output::Received),
            End::Run(ended) => match ended.downcast() {
                Ok(ended) => Ok(Output::Run(ended)),
                Err(_) => unreachable!("a run that is posted ends so"),
            },
        }
    }
}

impl WorkQ {
    /// Collects completions, and hands the results of posted operations
    /// ([`Op::post`](crate::Op::post)) to `handle`: the caller's `user_data`, unchanged, and the
    /// operation's result or error. Each result is handed out exactly once, on this thread: first
    /// those of jobs, in the order in which they completed, then those of receives, waits and runs.
    /// Returns the number of results that were handed out.
    ///
    /// One call hands out the results of at most [`depth`](WorkQ::depth) jobs. If it returns 0, no
    /// result is left. `handle` may post operations, since the job's slot is free by then, or call
    /// anything else. If `handle` panics, later calls hand out the remaining results.
    ///
    /// Futures on the same WorkQ whose jobs have completed are woken. This call never waits, in any
    /// mode: a loop that calls nothing else polls busily. While calls find results and no other
    /// task waits, they make no system calls. After 256 polls in a row that find nothing, the call
    /// yields the CPU once (`sched_yield(2)`), and again after each 64 more such polls, since a
    /// thread of the software device may need that CPU. Polls of futures on the same WorkQ count
    /// too. The call does not yield if the loop has called [`arm`](WorkQ::arm).
    ///
    /// Results are still handed out after [`shutdown`](WorkQ::shutdown). When the last handle of
    /// the WorkQ is dropped, results that were not handed out are lost together with their
    /// `user_data`. Runs are an exception: they keep their WorkQ ([`Op::post`](crate::Op::post)).
    #[doc(alias = "doca_workq_progress_retrieve")]
    #[doc(alias = "doca_pe_progress")]
    pub fn progress(&self, mut handle: impl FnMut(u64, Result<Output, JobError>)) -> usize {
        self.collect(|user_data, end| handle(user_data, Output::of(end)))
    }
}
