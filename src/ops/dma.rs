//! Memory copies by a device.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use crate::device::{Device, DmaCaps, Job};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::mem::{self, Destination, Grow, Source};
use crate::reactor::{Attachment, Flight, Held, Outcome, Prepared, WorkQ, budget};

/// A DMA context: copies memory by a device (DMA guide; `doca_dma`).
///
/// It is attached to one [`WorkQ`]; [`Dma::attach`] gives a handle on another one. Clones are the same attachment.
///
/// ```
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_doca::Error> {
/// let device = Device::open_default()?;
/// let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let workq = WorkQ::builder().build()?;
/// let dma = Dma::builder(&device).attach(&workq)?;
///
/// let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// src.extend_from_slice(b"hello")?;
/// assert_eq!(dma.copy(&src, &dst).await?, 5);
/// assert_eq!(&dst.data()?[..], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "doca_dma")]
pub struct Dma(Arc<Inner>);

struct Inner {
    attachment: Attachment,
    caps: DmaCaps,
}

impl Deref for Inner {
    type Target = Attachment;

    fn deref(&self) -> &Attachment {
        &self.attachment
    }
}

impl Dma {
    /// Begins a context on a device.
    #[doc(alias = "doca_dma_create")]
    pub fn builder(device: &Device) -> DmaBuilder<'_> {
        DmaBuilder { device }
    }

    /// A handle on another WorkQ.
    ///
    /// # Errors
    ///
    /// As [`DmaBuilder::attach`].
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(&self, workq: &WorkQ) -> Result<Dma> {
        Dma::builder(self.device()).attach(workq)
    }

    /// Gives this handle up, if it is the last one on its attachment.
    ///
    /// # Errors
    ///
    /// `InUse` while a clone or an Op has it. What it was is dropped all the same; Jobs in flight are finished.
    #[doc(alias = "doca_ctx_workq_rm")]
    pub fn detach(self) -> Result<()> {
        match Arc::try_unwrap(self.0) {
            Ok(_) => Ok(()),
            Err(_) => {
                let text = "a clone or an Op still has this attachment";
                Err(Error::new(ErrorKind::InUse, "Dma::detach", text))
            }
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.0.device()
    }

    /// The WorkQ that it is attached to.
    pub fn workq(&self) -> WorkQ {
        self.0.workq()
    }

    /// The limits of its device.
    pub fn caps(&self) -> &DmaCaps {
        &self.0.caps
    }

    /// Copies the data of `src` into the tailroom of `dst`, whose data grows; answers the number of bytes.
    ///
    /// The headroom of `dst` is untouched, and a copy that fails leaves its rooms as they were. Nothing happens before
    /// the first poll.
    ///
    /// # Errors
    ///
    /// Refused, and nothing moved: `InvalidValue` if there is no data, too little tailroom, shared memory, a foreign
    /// device, or more than the device takes; `NotPermitted` if the destination is read-only; `InUse` if a job or a
    /// guard has either side; `Shutdown`; `BadState` without a runtime in event mode. Failed: what the device reports, and `BadState`
    /// ([`Reason::Unheard`]) if an event-driven copy in flight is polled where there is no runtime: it goes on.
    ///
    /// # Cancel safety
    ///
    /// Dropping it is ordinary. A copy in flight goes on, keeps both sides leased (`InUse`) until it is over, and is
    /// then forgotten; the destination may have been written. Forgetting the future is sound too.
    #[inline(always)]
    pub fn copy<S: Source, D: Destination>(&self, src: S, dst: D) -> DmaCopy<&Dma, S, D> {
        DmaCopy {
            flight: Flight::new(Handle(self)),
            src,
            dst,
        }
    }

    /// The same with everything owned: the future is `'static`, and can be spawned.
    ///
    /// # Errors
    ///
    /// As [`Dma::copy`].
    ///
    /// # Cancel safety
    ///
    /// As [`Dma::copy`].
    pub fn copy_owned<S: Source + 'static, D: Destination + 'static>(
        &self,
        src: S,
        dst: D,
    ) -> DmaCopy<Dma, S, D> {
        DmaCopy {
            flight: Flight::new(Handle(self.clone())),
            src,
            dst,
        }
    }

    /// Submits the copy now, without waiting: `Again` if there is no Slot. The future answers its end.
    ///
    /// # Errors
    ///
    /// `Again`, and what [`Dma::copy`] is refused for.
    ///
    /// # Cancel safety
    ///
    /// As [`Dma::copy`].
    pub fn try_copy<S: Source, D: Destination>(
        &self,
        src: S,
        dst: D,
    ) -> Result<DmaCopy<&Dma, S, D>, JobError> {
        let mut flight = Flight::new(Handle(self));
        let begun = self.0.begin(&src, &dst)?;
        match self.0.finish_inline(&begun.job) {
            Some(outcome) => flight.set_ready(end(begun.read, begun.write, outcome)),
            None => flight.try_start(self.0.prepared(begun))?,
        }
        Ok(DmaCopy { flight, src, dst })
    }
}

impl Dma {
    /// Submits the copy now, for a loop of the caller's own: its end is told by [`WorkQ::progress`], which gives `user_data`
    /// back untouched. There is no future, nothing to drop, and nothing waits; no runtime is needed, in any mode.
    ///
    /// Both sides are leased (`InUse`) until the completion was collected, and the data of `dst` grows then. A copy that
    /// the device finishes inline is told by `progress` as well.
    ///
    /// # Errors
    ///
    /// Nothing was submitted, and `progress` will not tell of it: `Again` if the WorkQ or the device is full, and what
    /// [`Dma::copy`] is refused for.
    #[doc(alias = "doca_workq_submit")]
    pub fn submit_copy<S: Source, D: Destination>(
        &self,
        src: S,
        dst: D,
        user_data: u64,
    ) -> Result<(), JobError> {
        let dma = &self.0;
        let begun = dma.begin(&src, &dst)?;
        let index = dma.try_reserve()?;
        match dma.finish_inline(&begun.job) {
            Some(outcome) => {
                dma.settle(index, user_data, end(begun.read, begun.write, outcome));
                Ok(())
            }
            None => dma.post(index, dma.prepared(begun), user_data),
        }
    }
}

impl Inner {
    /// Checks, and takes the Leases.
    #[inline(always)]
    fn begin<S: Source, D: Destination>(
        &self,
        src: &S,
        dst: &D,
    ) -> Result<Begun<S::Lease, D::Lease>, JobError> {
        self.check_open()?;
        let mem::Begun {
            read,
            write,
            src,
            dst,
            len,
        } = mem::begin(src, dst, self.device_id())?;
        if len as u64 > self.caps.max_buf_size {
            return Err(JobError::new(
                Reason::TooLarge,
                len as u64,
                self.caps.max_buf_size,
            ));
        }
        let longest = src.as_slice().len().max(dst.as_slice().len());
        if longest > 1 && longest > self.caps.max_list_len as usize {
            let limit = u64::from(self.caps.max_list_len);
            return Err(JobError::new(Reason::ListTooLong, longest as u64, limit));
        }
        Ok(Begun {
            read,
            write,
            job: Job::Copy { src, dst, len },
        })
    }

    /// What a Slot keeps of it.
    fn prepared<R, W>(&self, begun: Begun<R, W>) -> Prepared
    where
        R: Into<mem::Reading>,
        W: Into<mem::Writing>,
    {
        let held = Held::new(
            Some(begun.read.into()),
            Some(begun.write.into()),
            self.queue_index(),
        );
        Prepared {
            job: begun.job,
            held,
        }
    }
}

/// A copy that holds its Leases.
struct Begun<R, W> {
    read: R,
    write: W,
    job: Job,
}

/// A copy is over: the data has grown, and the Leases go back.
#[inline(always)]
fn end<R, W: Grow>(read: R, write: W, outcome: Outcome) -> Outcome {
    if let Ok(len) = outcome {
        write.grow(len as usize);
    }
    drop(write);
    drop(read);
    outcome
}

impl fmt::Debug for Dma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dma")
            .field("device", self.device())
            .field("workq", &self.workq())
            .finish()
    }
}

/// How an Op has its context: borrowed (`&Dma`) or owned (`Dma`).
struct Handle<C>(C);

impl<C: AsRef<Dma>> Deref for Handle<C> {
    type Target = Attachment;

    #[inline(always)]
    fn deref(&self) -> &Attachment {
        &self.0.as_ref().0
    }
}

impl AsRef<Dma> for Dma {
    fn as_ref(&self) -> &Dma {
        self
    }
}

/// The future of [`Dma::copy`], [`Dma::copy_owned`] and [`Dma::try_copy`]: the number of bytes copied.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct DmaCopy<C: AsRef<Dma>, S, D> {
    #[pin]
    flight: Flight<Handle<C>>,
    src: S,
    dst: D,
}

impl<C: AsRef<Dma>, S: Source, D: Destination> Future for DmaCopy<C, S, D> {
    type Output = Result<usize, JobError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if !this.flight.is_idle() {
            return this
                .flight
                .go_on(cx, |handle| handle.prepare(&*this.src, &*this.dst))
                .map(to_usize);
        }
        ready!(budget::proceed(cx));
        let dma = &this.flight.context().0.as_ref().0;
        let Begun { read, write, job } = match dma.begin(&*this.src, &*this.dst) {
            Ok(begun) => begun,
            Err(error) => {
                // A loop of refused copies must not starve the others either.
                budget::spent(0);
                this.flight.as_mut().finish();
                return Poll::Ready(Err(error));
            }
        };
        match dma.finish_inline(&job) {
            Some(outcome) => {
                let Job::Copy { len, .. } = job;
                budget::spent(len);
                this.flight.as_mut().finish();
                Poll::Ready(to_usize(end(read, write, outcome)))
            }
            None => {
                let prepared = dma.prepared(Begun { read, write, job });
                let again = |handle: &Handle<C>| handle.prepare(&*this.src, &*this.dst);
                this.flight.start(cx, prepared, again).map(to_usize)
            }
        }
    }
}

impl<C: AsRef<Dma>> Handle<C> {
    fn prepare(&self, src: &impl Source, dst: &impl Destination) -> Result<Prepared, JobError> {
        let dma = &self.0.as_ref().0;
        Ok(dma.prepared(dma.begin(src, dst)?))
    }
}

#[inline(always)]
fn to_usize(outcome: Outcome) -> Result<usize, JobError> {
    outcome.map(|len| len as usize)
}

/// Builds a [`Dma`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built before attach"]
pub struct DmaBuilder<'a> {
    device: &'a Device,
}

impl DmaBuilder<'_> {
    /// Attaches the context to a WorkQ.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device does not copy, or cannot ring an event-driven WorkQ; `InvalidValue` if the WorkQ is
    /// deeper than the device allows; `BadState` if it was shut down; `Full` beyond 8 devices on a WorkQ.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(self, workq: &WorkQ) -> Result<Dma> {
        let info = self.device.info();
        let Some(caps) = info.caps().dma.clone() else {
            let text = format!("device {} does not copy", info.name());
            return Err(Error::new(
                ErrorKind::NotSupported,
                "DmaBuilder::attach",
                text,
            ));
        };
        Ok(Dma(Arc::new(Inner {
            attachment: workq.attach(self.device)?,
            caps,
        })))
    }
}
