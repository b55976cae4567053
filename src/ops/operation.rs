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

use pin_project::pin_project;

use super::refused::Refused;
use sealed::{Kind, Own, Post};

/// A request that an [`Op`] carries out. The contexts have one type for each kind of operation.
///
/// The trait is sealed: the crate alone implements it.
///
/// ```
/// use tokio_doca::op::{Op, Operation};
/// use tokio_doca::error::JobError;
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
///
/// /// Awaits an operation of any context, and writes a failure to the log.
/// async fn logged<T, K>(op: Op<K>) -> Option<T>
/// where
///     K: Operation,
///     Op<K>: Future<Output = Result<T, JobError>>,
/// {
///     op.await.inspect_err(|error| eprintln!("{error}")).ok()
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # assert_eq!(logged(dma.copy(&src, &dst)).await, Some(0));
/// # Ok(())
/// # }
/// ```
pub trait Operation: Kind {}

impl<K: Kind> Operation for K {}

pub(super) mod sealed {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::Op;
    use crate::error::JobError;

    /// A kind of operation: a context and operands.
    pub trait Kind: Sized {
        /// What awaiting it gives.
        type Output;
        /// The state of an operation that may be in flight, with what was asked for.
        type JobFuture;

        /// Begins nothing.
        fn flight(self) -> Self::JobFuture;

        fn poll(flight: Pin<&mut Self::JobFuture>, cx: &mut Context<'_>) -> Poll<Self::Output>;

        /// Submits the operation now, or returns why it could not. The operation was not polled
        /// before.
        fn start(flight: &mut Self::JobFuture) -> Result<(), JobError>;

        /// Submits the operations now, in order. Returns how many it submitted, and why it could
        /// not submit the next one.
        fn start_all(ops: &mut [Op<Self>]) -> (usize, Option<JobError>) {
            for (number, op) in ops.iter_mut().enumerate() {
                if let Err(error) = Self::start(&mut op.flight) {
                    return (number, Some(error));
                }
            }
            (ops.len(), None)
        }
    }

    /// A kind that can do without borrowing.
    pub trait Own: Kind {
        type Owned: Kind;

        fn own(flight: &Self::JobFuture) -> Self::Owned;
    }

    /// A kind that a loop of the caller's own can have.
    pub trait Post: Kind {
        /// Submits the operation now, or returns why it could not. The operation was not polled
        /// before, and is not polled afterwards.
        fn post(flight: &mut Self::JobFuture, user_data: u64) -> Result<(), JobError>;
    }
}

/// An operation: a value that says what is to be done, and a future that does it.
///
/// Nothing happens before it is
///
/// - awaited, or polled otherwise: it waits for a Slot if there is none, and for its end;
/// - [started](Op::start): it is submitted now, and the future of its end is returned;
/// - [posted](Op::post): it is submitted now, and [`WorkQ::progress`](crate::WorkQ::progress)
///   returns its result to a loop that the caller runs.
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
/// Dropping an operation that was never polled does nothing. The method that makes an operation
/// documents what happens if it is dropped in flight.
#[doc(alias = "doca_task")]
#[pin_project]
#[must_use = "an operation does nothing unless it is awaited, started or posted"]
pub struct Op<K: Operation> {
    #[pin]
    pub(super) flight: K::JobFuture,
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
    #[doc(alias = "doca_task_try_submit")]
    #[inline(always)]
    pub fn start(mut self) -> Result<Started<Self>, Refused<Self>> {
        match K::start(&mut self.flight) {
            Ok(()) => Ok(Started(self)),
            Err(error) => Err(Refused { op: self, error }),
        }
    }

    /// [Starts](Op::start) operations together, in order, until one is refused.
    ///
    /// The jobs of one context that follow one another are given to the device in one call, up to
    /// 32 of them. An adapter then reads a list, and is notified of it once. Those that the device
    /// finishes inline are done one after the other, up to the first that it does not. What takes
    /// no job, as a receive or a wait, is started alone.
    ///
    /// ```
    /// use tokio_doca::{Op, op::StartedAll};
    /// # use tokio_doca::mem::{Access, RemoteMmap};
    /// # use tokio_doca::{Buf, BufPool, Device, Mmap, Rdma, WorkQ};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tokio_doca::Result<()> {
    /// # let device = Device::open_default()?;
    /// # let access = Access::LOCAL_READ_WRITE | Access::RDMA_WRITE;
    /// # let memory = Mmap::builder().device(&device).access(access).alloc(1 << 20)?;
    /// # let pool = BufPool::builder(&memory).build()?;
    /// # let workq = WorkQ::builder().build()?;
    /// # let side = || Rdma::builder(&device).permissions(Access::RDMA_WRITE).attach(&workq);
    /// # let (rdma, peer) = (side()?, side()?);
    /// # let (of_rdma, of_peer) = (rdma.export()?, peer.export()?);
    /// # tokio::try_join!(rdma.connect(&of_peer), peer.connect(&of_rdma))?;
    /// # let shared = Mmap::builder().device(&device).access(access).alloc(64)?;
    /// # let remote = RemoteMmap::from_export(&device, &shared.export_rdma(&device)?).await?;
    /// # let blocks: Vec<Buf> = (0..8).map(|_| pool.try_alloc()).collect::<Result<_, _>>()?;
    /// # blocks.iter().try_for_each(|block| block.extend_from_slice(b"block"))?;
    /// let writes = blocks.iter().enumerate().map(|(number, block)| {
    ///     let there = remote.buf(number * 8..number * 8 + 8)?;
    ///     Ok(rdma.write(block, there))
    /// });
    /// let writes = writes.collect::<tokio_doca::Result<Vec<_>>>()?;
    /// let StartedAll { started, refused } = Op::start_all(writes);
    /// for write in started {
    ///     write.await?;
    /// }
    /// if let Some(refused) = refused {
    ///     for write in refused.into_op() {                        // there was no Slot
    ///         write.await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StartedAll::refused`] has the operations from the first one on that was refused, as
    /// [`Op::start`] refuses it.
    ///
    /// # Cancel safety
    ///
    /// As [`Op::start`].
    #[doc(alias = "doca_task_batch_submit")]
    #[doc(alias = "ibv_post_send")]
    pub fn start_all(ops: impl IntoIterator<Item = Self>) -> StartedAll<Self> {
        let mut ops: Vec<Self> = ops.into_iter().collect();
        let (count, error) = K::start_all(&mut ops);
        let refused = error.map(|error| Refused {
            op: ops.split_off(count),
            error,
        });
        StartedAll {
            started: ops.into_iter().map(Started).collect(),
            refused,
        }
    }

    /// Submits the operation now, for a loop that the caller runs.
    /// [`WorkQ::progress`](crate::WorkQ::progress) returns its result, together with `user_data`.
    ///
    /// There is no future, nothing to drop, and nothing waits. No runtime is needed, in any mode.
    /// What the device finishes inline is returned by `progress` as well. The memory stays leased
    /// (`InUse`) until the completion was collected; the data of a destination grows then.
    ///
    /// A run of a graph begins inside the next `progress`, which also calls its functions. It keeps
    /// its WorkQ until it was handed out: hand it out before you drop the last handle, or both stay
    /// for the life of the process. A receive or a wait ends with
    /// [`Reason::ContextGone`](crate::error::Reason::ContextGone) if its context is dropped first.
    ///
    /// Jobs allocate nothing. Receives and waits allocate when more of them are posted at once than
    /// ever before, and a run takes two boxes.
    ///
    /// # Errors
    ///
    /// Nothing was submitted, `progress` will not report it, and the operation comes back with the
    /// reason: `Again` if the WorkQ or the device is full, or what the operation is refused for.
    #[doc(alias = "doca_workq_submit")]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "doca_task_submit")]
    #[doc(alias = "doca_task_set_user_data")]
    #[doc(alias = "doca_task_get_user_data")]
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
    pub fn owned(self) -> Op<K::Owned>
    where
        K: Own,
    {
        Op::new(K::own(&self.flight))
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
/// ```
/// use tokio_doca::{dma::DmaCopy, op::Started};
/// # use tokio_doca::{Buf, BufPool, Device, Dma, Mmap, WorkQ};
///
/// /// A block that is being read ahead.
/// struct Ahead {
///     copy: Started<DmaCopy<Dma, Buf, Buf>>,
///     block: Buf,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, block) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let copy = dma.copy(&src, &block).owned().start()?;         // submitted here
/// let ahead = Ahead { copy, block };
/// assert_eq!(ahead.copy.await?, 5);                           // awaited later
/// assert_eq!(&ahead.block.data()?[..], b"hello");
/// # Ok(())
/// # }
/// ```
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

/// The result of [`Op::start_all`]: the operations that were submitted, and those that were
/// refused.
#[derive(Debug)]
#[must_use = "what was refused was not begun"]
pub struct StartedAll<O> {
    /// The operations that were submitted, in order.
    pub started: Vec<Started<O>>,
    /// The others, in order, and why the first of them was refused; `None` if all were submitted.
    pub refused: Option<Refused<Vec<O>>>,
}
