//! [`Op`], an operation as a value: a future that can also be made owned, started, or posted.
//!
//! A method such as [`Dma::copy`](super::Dma::copy) returns an [`Op`] that has a context and
//! operands, and has not begun. The type of each kind of operation implements [`Kind`]: the state
//! of an operation that may have begun ([`Kind::JobFuture`]), how to poll that state, and how to
//! start the operation.

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

/// A request that an [`Op`] carries out. Each kind of operation has its own type of request.
///
/// The trait is sealed: only the crate implements it.
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
        /// The output of the operation when it is awaited.
        type Output;
        /// The state of an operation that may be in flight, which includes the request.
        type JobFuture;

        /// Returns the state of the operation, which has not begun.
        fn flight(self) -> Self::JobFuture;

        fn poll(flight: Pin<&mut Self::JobFuture>, cx: &mut Context<'_>) -> Poll<Self::Output>;

        /// Submits the operation without waiting, or returns why it cannot be submitted now. The
        /// operation must not have been polled.
        fn start(flight: &mut Self::JobFuture) -> Result<(), JobError>;

        /// Submits the operations in order, without waiting. Returns the number of submitted
        /// operations, and why the next one could not be submitted.
        fn start_all(ops: &mut [Op<Self>]) -> (usize, Option<JobError>) {
            for (number, op) in ops.iter_mut().enumerate() {
                if let Err(error) = Self::start(&mut op.flight) {
                    return (number, Some(error));
                }
            }
            (ops.len(), None)
        }
    }

    /// A kind of operation that can be converted to one that borrows nothing.
    pub trait Own: Kind {
        type Owned: Kind;

        fn own(flight: &Self::JobFuture) -> Self::Owned;
    }

    /// A kind of operation that can be posted for the caller's own loop.
    pub trait Post: Kind {
        /// Submits the operation without waiting, or returns why it cannot be submitted now. The
        /// operation must not have been polled, and is not polled afterwards.
        fn post(flight: &mut Self::JobFuture, user_data: u64) -> Result<(), JobError>;
    }
}

/// An operation: a value that describes the work, and a future that does it.
///
/// Nothing happens before the operation is
///
/// - awaited, or polled otherwise: the operation waits for a slot of the WorkQ if none is free, and
///   then for its completion;
/// - [started](Op::start): the call submits it, and returns a future of its completion;
/// - [posted](Op::post): the call submits it, and [`WorkQ::progress`](crate::WorkQ::progress)
///   returns its result to a loop that the caller runs.
///
/// An operation borrows its context and those operands that were passed by reference. [`Op::owned`]
/// makes it `'static`. It can be moved until it is polled.
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

    /// Submits the operation without waiting. Returns a future of its completion.
    ///
    /// # Errors
    ///
    /// On an error nothing was submitted, and [`Refused`] has the operation and the reason. `Again`
    /// means that the WorkQ or the device is full, or that other operations wait for a slot: try
    /// again, or await the operation. For the other errors see the method that makes the operation.
    ///
    /// # Cancel safety
    ///
    /// The method that makes the operation documents what happens if it is dropped in flight.
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
    /// Successive jobs of one context are submitted to the device in one call, up to 32 of them. An
    /// adapter then reads the jobs as one list, after one notification. Before that, leading jobs
    /// that the device finishes inline are done one by one. An operation without a job, such as a
    /// receive or a wait, is started alone.
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
    ///     for write in refused.into_op() {                        // there was no slot
    ///         write.await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StartedAll::refused`] has the first operation that was refused and all operations after
    /// it, with the error that [`Op::start`] would return.
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

    /// Submits the operation without waiting, for a loop that the caller runs.
    /// [`WorkQ::progress`](crate::WorkQ::progress) hands out the result, together with `user_data`.
    ///
    /// A posted operation has no future to await or drop. No runtime is needed, in any mode.
    /// `progress` also hands out the results of jobs that the device finishes inline. The memory of
    /// such a job is free, and its destination has grown, when `post` returns. The memory of other
    /// operations stays leased (`InUse`), and their destinations do not grow, until their
    /// completions are collected.
    ///
    /// A run of a graph begins inside the next `progress`, which also calls its functions. The run
    /// keeps its WorkQ alive until `progress` has handed out its result. If you drop the last
    /// handle of the WorkQ before that, the run and the WorkQ stay in memory for the life of the
    /// process. A receive or a wait fails with
    /// [`Reason::ContextGone`](crate::error::Reason::ContextGone) if its context is dropped first.
    ///
    /// Posting a job allocates nothing. Posting a receive or a wait allocates if more of them are
    /// posted at once than ever before. Posting a run allocates twice.
    ///
    /// # Errors
    ///
    /// On an error nothing was submitted, `progress` will not report the operation, and [`Refused`]
    /// has the operation and the reason: `Again` if the WorkQ or the device is full; `NotSupported`
    /// for a wait on a device that cannot wait; for the other errors see the method that makes the
    /// operation.
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
        let posted = K::post(&mut self.flight, user_data);
        posted.map_err(|error| Refused { op: self, error })
    }

    /// Converts the operation to one that borrows nothing: it is `'static`, and can be spawned.
    /// Borrowed handles are cloned.
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

/// An operation that was submitted by [`Op::start`]: the future of its completion.
///
/// `O` is the type of the operation, such as `DmaCopy` in `Started<DmaCopy<&Dma, Buf, Buf>>`.
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
/// The method that makes the operation documents what happens if it is dropped in flight.
#[pin_project]
#[must_use = "it continues, and a drop forgets its result"]
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
    /// The operations that were not submitted, in order, and the error of the first of them; `None`
    /// if all were submitted.
    pub refused: Option<Refused<Vec<O>>>,
}
