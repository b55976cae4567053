//! An operation as a value: a future that can also be owned, started, or posted.
//!
//! What a method such as [`Dma::copy`](super::Dma::copy) returns is an [`Op`]: a context and
//! operands, and nothing begun. A type that describes one kind of operation implements [`Kind`],
//! and says what state it has once it is begun ([`Kind::JobFuture`]), how that is polled, and how
//! it is started.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project::pin_project;

use crate::error::{Error, ErrorKind, JobError, Reason};
use crate::reactor::TimeLimit;
use sealed::{Kind, Limited, Own, Post};

/// What an [`Op`] does: the contexts have one type for each kind of operation.
///
/// The trait is sealed: the crate alone implements it.
pub trait Operation: Kind {}

impl<K: Kind> Operation for K {}

pub(super) mod sealed {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use crate::error::JobError;
    use crate::reactor::TimeLimit;

    /// A kind of operation: a context and operands.
    pub trait Kind: Sized {
        /// What awaiting it gives.
        type Output;
        /// The state of an operation that may be in flight, with what was asked for.
        type JobFuture;

        /// Begins nothing.
        fn flight(self) -> Self::JobFuture;

        fn poll(flight: Pin<&mut Self::JobFuture>, cx: &mut Context<'_>) -> Poll<Self::Output>;

        /// How long it may take, unless this kind has no limit. Nothing was begun.
        fn limit(_: &mut Self::JobFuture) -> Option<&mut TimeLimit> {
            None
        }

        /// Submits it now, or says why not. It was not polled.
        fn start(flight: &mut Self::JobFuture) -> Result<(), JobError>;
    }

    /// A kind that has a time limit.
    pub trait Limited: Kind {}

    /// A kind that can do without borrowing.
    pub trait Own: Kind {
        type Owned: Kind;

        fn own(flight: &Self::JobFuture) -> Self::Owned;
    }

    /// A kind that a loop of the caller's own can have.
    pub trait Post: Kind {
        /// Submits it now, or says why not. It was not polled, and is not polled afterwards.
        fn post(flight: &mut Self::JobFuture, user_data: u64) -> Result<(), JobError>;
    }
}

/// An operation: a value that says what is to be done, and a future that does it.
///
/// Nothing happens before it is
///
/// - awaited, or polled otherwise: it waits for a Slot if there is none, and for its end;
/// - [started](Op::start): it is submitted now, and the future of its end is returned;
/// - [posted](Op::post): it is submitted now, and [`WorkQ::progress`](crate::WorkQ::progress) tells
/// a
///   loop of the caller's own of its end.
///
/// It borrows its context, and whatever operands were lent to it. [`Op::owned`] makes it `'static`.
/// It can be moved until it is polled.
///
/// ```
/// # use tokio_doca::{Buf, Dma, Error};
/// # async fn copies(dma: &Dma, a: &Buf, b: &Buf) -> Result<(), Error> {
/// dma.copy(a, b).await?;                                      // one after the other
/// let copy = dma.copy(b, a).start()?;                         // begun here, awaited later
/// copy.await?;
/// let task = tokio::spawn(dma.copy(a, b).owned());            // in a task of its own
/// # task.await.unwrap()?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping one that nobody polled does nothing. What dropping one in flight does is written at the
/// method that makes it.
#[pin_project]
#[must_use = "an operation does nothing unless it is awaited, started or posted"]
pub struct Op<K: Operation> {
    #[pin]
    flight: K::JobFuture,
}

impl<K: Operation> Op<K> {
    #[inline(always)]
    pub(super) fn new(kind: K) -> Op<K> {
        let flight = kind.flight();
        Op { flight }
    }

    /// Submits it now, without waiting. The future that it returns waits for the end.
    ///
    /// # Errors
    ///
    /// Nothing was submitted, and the operation comes back with the reason. `Again` says that the
    /// WorkQ or the device is full, or that others wait for a Slot: try again, or await it. All
    /// others are what the operation is refused for.
    ///
    /// # Cancel safety
    ///
    /// What dropping an operation in flight does is written at the method that makes it.
    #[inline(always)]
    pub fn start(mut self) -> Result<Started<Self>, Refused<Self>> {
        match K::start(&mut self.flight) {
            Ok(()) => Ok(Started(self)),
            Err(error) => Err(Refused { op: self, error }),
        }
    }

    /// Submits it now, for a loop of the caller's own. [`WorkQ::progress`](crate::WorkQ::progress)
    /// tells of its end, and gives `user_data` back.
    ///
    /// There is no future, nothing to drop, and nothing waits. No runtime is needed, in any mode.
    /// What the device finishes inline is told by `progress` as well. The memory stays leased
    /// (`InUse`) until the completion was collected; the data of a destination grows then.
    ///
    /// A run of a graph begins inside the next `progress`, which also calls its functions. It keeps
    /// its WorkQ until it was handed out: hand it out before you drop the last handle, or both stay
    /// for the life of the process. A receive or a wait ends with [`Reason::ContextGone`] if its
    /// context is dropped first.
    ///
    /// Jobs allocate nothing. Receives and waits allocate when more of them are posted at once than
    /// ever before, and a run takes two boxes.
    ///
    /// # Errors
    ///
    /// Nothing was submitted, `progress` will not tell of it, and the operation comes back with the
    /// reason: `Again` if the WorkQ or the device is full, or what the operation is refused for.
    #[doc(alias = "doca_workq_submit")]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    pub fn post(mut self, user_data: u64) -> Result<(), Refused<Self>>
    where
        K: Post,
    {
        match K::post(&mut self.flight, user_data) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { op: self, error }),
        }
    }

    /// The same operation with everything owned: it is `'static`, and can be spawned. Handles that
    /// were lent are cloned.
    ///
    /// ```compile_fail,E0277
    /// # use tokio_doca::{Dma, Buf};
    /// struct NoOperand;
    /// # fn f(dma: &Dma, buf: &Buf) {
    /// let _ = dma.copy(NoOperand, buf).owned();
    /// # }
    /// ```
    pub fn owned(mut self) -> Op<K::Owned>
    where
        K: Own,
    {
        let mut owned = Op::new(K::own(&self.flight));
        let limit = K::limit(&mut self.flight);
        if let (Some(from), Some(to)) = (limit, K::Owned::limit(&mut owned.flight)) {
            *to = *from;
        }
        owned
    }

    /// Limits how long it may take, from its first poll, or from [`start`](Op::start): after that
    /// it fails with [`Reason::TimeLimit`], of kind `TimedOut`. The default is that of
    /// [`WorkQBuilder::time_limit`](crate::workq::WorkQBuilder::time_limit), which itself defaults
    /// to no limit. `Duration::MAX` is no limit.
    ///
    /// The wait for a Slot counts. What the device finishes inline is never late, and what is
    /// [posted](Op::post) has no limit. It needs no timer of a runtime, and holds in any mode.
    ///
    /// What becomes of a job that is late is what becomes of one whose future is dropped: the
    /// device cannot take it back. It goes on, has its memory until it is over (see
    /// [`Buf::released`](crate::Buf::released)), and may take effect. The connection of an
    /// [`Rdma`](crate::Rdma) is as it was; on an adapter the connection fails by itself once the
    /// peer has not acknowledged the job for the device's own time
    /// ([`Transport::ack_timeout`](crate::rdma::Transport::ack_timeout)). To have the memory
    /// back at once, [reset](crate::Rdma::reset) it.
    ///
    /// Receives and waits have no limit, that of the WorkQ neither, since nothing is lost if they
    /// are dropped: put a `tokio::time::timeout` around them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tokio_doca::{Buf, Dma, Error, ErrorKind};
    /// # async fn copy(dma: &Dma, src: &Buf, dst: &Buf) -> Result<(), Error> {
    /// match dma.copy(src, dst).time_limit(Duration::from_millis(50)).await {
    ///     Err(error) if error.kind() == ErrorKind::TimedOut => dst.released().await,
    ///     copied => println!("{} bytes", copied?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn time_limit(mut self, limit: Duration) -> Op<K>
    where
        K: Limited,
    {
        if let Some(of) = K::limit(&mut self.flight) {
            *of = TimeLimit::of(limit);
        }
        self
    }
}

impl<K: Operation> Future for Op<K> {
    type Output = K::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<K::Output> {
        K::poll(self.project().flight, cx)
    }
}

impl<K: Operation> fmt::Debug for Op<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").finish_non_exhaustive()
    }
}

/// An operation that was submitted: the future of its end. [`Op::start`] makes it.
///
/// `O` is the operation, by the name that its context gives it: `Started<DmaCopy<&Dma, Buf, Buf>>`.
///
/// # Cancel safety
///
/// What dropping an operation in flight does is written at the method that makes it.
#[pin_project]
#[must_use = "it goes on, and a drop forgets its result"]
pub struct Started<O>(#[pin] O);

impl<O: Future> Future for Started<O> {
    type Output = O::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O::Output> {
        self.project().0.poll(cx)
    }
}

impl<O> fmt::Debug for Started<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started").finish_non_exhaustive()
    }
}

/// An operation that was not submitted, and why.
///
/// `?` keeps the reason alone, in functions that fail with [`JobError`], [`Error`],
/// [`std::io::Error`] or a boxed [`std::error::Error`]. For other errors write
/// `.map_err(JobError::from)?`.
pub struct Refused<O> {
    op: O,
    error: JobError,
}

impl<O> Refused<O> {
    /// Returns why it was refused.
    pub fn error(&self) -> JobError {
        self.error
    }

    /// Returns what kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Returns the exact reason.
    pub fn reason(&self) -> Reason {
        self.error.reason()
    }

    /// Gives the operation back, with its operands: to be started once more, or awaited.
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

// Not `std::error::Error`: `?` would box the operation, which borrows, as a `dyn Error`, which must
// not.
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
