//! [`Refused`], an operation that was not submitted and is returned with the reason.

use std::fmt;

use crate::error::{Error, ErrorKind, JobError, Reason};

/// An operation that was not submitted, and why.
///
/// The operator `?` keeps only the reason. It works in functions that fail with [`JobError`],
/// [`Error`], [`std::io::Error`] or a boxed [`std::error::Error`]. In other functions write
/// `.map_err(JobError::from)?`.
///
/// ```
/// use tokio_doca::error::Reason;
/// use tokio_doca::soft::Soft;
/// # use tokio_doca::{BufPool, Dma, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let soft = Soft::builder().defer(true).build();
/// # let device = soft.open("pf0")?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let dma = Dma::builder(&device).attach(&WorkQ::builder().depth(1).build()?)?;
/// # let (a, b, c) = (pool.alloc().await, pool.alloc().await, pool.alloc().await);
/// # a.extend_from_slice(b"abc")?;
/// let first = dma.copy(&a, &b).start()?;
/// let refused = dma.copy(&a, &c).start().unwrap_err();
/// assert_eq!(refused.reason(), Reason::QueueFull);
/// let second = refused.into_op();                             // the operation itself
/// first.await?;
/// assert_eq!(second.await?, 3);
/// # Ok(())
/// # }
/// ```
pub struct Refused<O> {
    pub(super) op: O,
    pub(super) error: JobError,
}

impl<O> Refused<O> {
    /// Returns the error with which the operation was refused.
    pub fn error(&self) -> JobError {
        self.error
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Returns the exact reason of the error.
    pub fn reason(&self) -> Reason {
        self.error.reason()
    }

    /// Returns the operation with its operands, to be started again or awaited.
    pub fn into_op(self) -> O {
        self.op
    }
}

impl<O> From<Refused<O>> for JobError {
    fn from(refused: Refused<O>) -> JobError {
        refused.error
    }
}

impl<O> From<Refused<O>> for Error {
    fn from(refused: Refused<O>) -> Error {
        refused.error.into()
    }
}

impl<O> From<Refused<O>> for std::io::Error {
    fn from(refused: Refused<O>) -> std::io::Error {
        refused.error.into()
    }
}

impl<O> fmt::Debug for Refused<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refused").field(&self.error).finish()
    }
}

impl<O> fmt::Display for Refused<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

// `Refused` does not implement `std::error::Error`: `?` would then box the operation, which may
// borrow, as a `dyn Error`, which must be `'static`.
impl<O> From<Refused<O>> for Box<dyn std::error::Error> {
    fn from(refused: Refused<O>) -> Box<dyn std::error::Error> {
        refused.error.into()
    }
}

impl<O> From<Refused<O>> for Box<dyn std::error::Error + Send + Sync> {
    fn from(refused: Refused<O>) -> Box<dyn std::error::Error + Send + Sync> {
        refused.error.into()
    }
}
