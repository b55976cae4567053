//! What an operation that was posted to a loop of the caller's own answers.

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
    /// The number of bytes that a copy, a hash, a message, a read or a write moved. Of a hash that
    /// ends a message these are the bytes of the digest.
    Bytes(usize),
    /// Another number: what an atomic operation found, the value of a sync event, a CRC, what
    /// [`CrcCopied::from`](crate::crc::CrcCopied) reads of a copy with its CRC, or what a call to
    /// an accelerator returns. The method that made the operation says what it is.
    Value(u64),
    /// The operation is done, and has no other result.
    Done,
    /// The message that was received.
    Received(Received),
    /// The instance of a run, and how the run ended.
    #[doc(alias = "DOCA_GRAPH_JOB")]
    Run(Box<(Instance, Result<(), RunError>)>),
}

impl Output {
    /// Returns the number of bytes that were moved, or `None` if it is another output. Of a receive
    /// these are the bytes of the message.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Output::Bytes(bytes) => Some(*bytes),
            Output::Received(received) => Some(received.len),
            _ => None,
        }
    }

    /// Returns the value, or `None` if it is another output.
    pub fn value(&self) -> Option<u64> {
        match self {
            Output::Value(value) => Some(*value),
            _ => None,
        }
    }
}

impl Output {
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
    /// ([`Op::post`](crate::Op::post)) to `handle`: the caller's `user_data`, untouched, and the
    /// operation's result or why it failed. It hands out each result exactly once, on this thread:
    /// the jobs in the order in which they ended, then the receives, waits and runs that have
    /// ended. Returns how many.
    ///
    /// One call hands out at most [`depth`](WorkQ::depth) jobs: if it returns 0, nothing is left.
    /// `handle` may post, since a Slot is free by then, or call anything else. After a panic in it
    /// the others are still there.
    ///
    /// Futures on the same WorkQ whose jobs have completed are woken. It never waits, in any mode,
    /// and makes no system call while it finds something and no other task waits: a loop that calls
    /// nothing else polls busily. After 256 polls in a row that find nothing, those of futures on
    /// the same WorkQ among them, it gives the CPU up once (`sched_yield(2)`), and again after each
    /// 64 more, since an engine may share that CPU. A loop that has called [`arm`](WorkQ::arm) is
    /// not held up so.
    ///
    /// After [`shutdown`](WorkQ::shutdown) what has ended is still handed out. With the last handle
    /// of the WorkQ it is forgotten, and so is the word; but for runs, which keep their WorkQ
    /// ([`Op::post`](crate::Op::post)).
    #[doc(alias = "doca_workq_progress_retrieve")]
    #[doc(alias = "doca_pe_progress")]
    pub fn progress(&self, mut handle: impl FnMut(u64, Result<Output, JobError>)) -> usize {
        self.collect(|user_data, end| handle(user_data, Output::of(end)))
    }
}
