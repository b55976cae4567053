//! [`Dma`], the context for memory copies by a device.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use crate::device::{Caps, CopyJob, Device, DmaCaps, RegistrationUse};
use crate::error::{JobError, Result};
use crate::mem::{CopyDestination, CopySource, Extent, Handle, LeasesOf, Sides};
use crate::ops::context::{Context, Kind, contexts};
use crate::ops::op::{Answers, LeasedJob, Request};
use crate::ops::operation::Op;
use crate::ops::operation::sealed::Own;
use crate::reactor::{Attachment, HasAttachment, JobFuture, WorkQ};

/// A DMA context: a device copies memory (NVIDIA's DMA guide; `doca_dma`).
///
/// A context is attached to one [`WorkQ`]; [`Dma::attach`] attaches another context of the same
/// device to another WorkQ. Clones share one attachment.
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
pub struct Dma(Context<DmaCaps>);

impl Kind for DmaCaps {
    const ATTACH: &'static str = "DmaBuilder::attach";
    const DETACH: &'static str = "Dma::detach";
    const LACKS: &'static str = "does not copy";

    fn of(caps: &Caps) -> Option<&DmaCaps> {
        caps.dma.as_ref()
    }

    fn limits(&self) -> (bool, u64, u32) {
        (self.event_driven, self.max_buf_size, self.max_list_len)
    }
}

impl Dma {
    /// Returns a builder of a context on `device`.
    #[doc(alias = "doca_dma_create")]
    #[doc(alias = "doca_ctx_dev_add")]
    pub fn builder(device: &Device) -> DmaBuilder<'_> {
        DmaBuilder { device }
    }

    /// Attaches another context of the same device to `workq`, and returns it.
    ///
    /// # Errors
    ///
    /// As [`DmaBuilder::attach`].
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(&self, workq: &WorkQ) -> Result<Dma> {
        Dma::builder(self.device()).attach(workq)
    }

    /// Detaches the context from its WorkQ. This handle must be the last one of its attachment.
    ///
    /// # Errors
    ///
    /// `InUse` if a clone, a pending operation or a graph still holds the context. The handle is
    /// consumed either way; jobs in flight finish.
    #[doc(alias = "doca_ctx_workq_rm")]
    #[doc(alias = "doca_dma_destroy")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Appends the data of `src` to the data of `dst`, and returns the number of copied bytes. If
    /// `src` has no data, returns 0.
    ///
    /// The copied bytes go into the tailroom of `dst`, after its old data. To overwrite the old
    /// data, call [`Buf::reset_data_len`](crate::Buf::reset_data_len) first.
    ///
    /// A copy does not touch the headroom of `dst`. If a copy fails, the data of `dst` does not
    /// grow, but bytes of its tailroom may have been overwritten. Nothing happens before the first
    /// poll.
    ///
    /// # Errors
    ///
    /// A copy that is refused has moved nothing: `InvalidValue` if there is too little tailroom, if
    /// `src` and `dst` have bytes in common or are not registered with the device, or if they have
    /// more bytes or longer lists than the device takes ([`Dma::caps`]); `NotPermitted` if the
    /// destination is read-only, or if the exporter of imported memory does not permit the access;
    /// `NotSupported` if imported memory was exported to the peers of an Rdma; `InUse` if a job or
    /// a guard uses `src` or `dst`; `Shutdown` if the WorkQ was shut down; `BadState` without a
    /// runtime in event or Hybrid mode.
    ///
    /// A copy that fails later returns the error of the device, or `BadState`
    /// ([`Reason::CannotWake`](crate::error::Reason::CannotWake)) if an event-driven copy in flight
    /// is polled without a runtime. In that case the copy continues.
    ///
    /// # Cancel safety
    ///
    /// The operation can be dropped at any time. A copy in flight continues, and keeps `src` and
    /// `dst` leased (`InUse`) until it has completed; the result is discarded, and the destination
    /// may have been written. Forgetting the operation (`mem::forget`) is sound too.
    #[doc(alias = "doca_dma_task_memcpy_alloc_init")]
    #[doc(alias = "doca_dma_task_memcpy_set_conf")]
    #[doc(alias = "doca_dma_job_memcpy")]
    #[doc(alias = "DOCA_DMA_JOB_MEMCPY")]
    #[inline(always)]
    pub fn copy<S: CopySource, D: CopyDestination>(&self, src: S, dst: D) -> DmaCopy<&Dma, S, D> {
        let dma = self;
        Op::new(CopyRequest { dma, src, dst })
    }
}

contexts! {
    /// Returns the limits of the device.
    Dma: DmaCaps
}

/// A request to copy. `C` is the context: borrowed (`&Dma`) or owned (`Dma`).
pub struct CopyRequest<C, S, D> {
    pub(super) dma: C,
    pub(super) src: S,
    pub(super) dst: D,
}

impl<C: AsRef<Dma>, S, D> HasAttachment for CopyRequest<C, S, D> {
    #[inline(always)]
    fn attachment(&self) -> &Attachment {
        self.dma.as_ref().attachment()
    }
}

impl<C: AsRef<Dma>, S: CopySource, D: CopyDestination> Request for CopyRequest<C, S, D> {
    type Leases = LeasesOf<S, D>;
    type Job = CopyJob;

    #[inline(always)]
    fn begin(&self) -> Result<LeasedJob<Self>, JobError> {
        let context = &self.dma.as_ref().0;
        context.attachment().check_open()?;
        let check = |from: Extent, to| context.check_limits(from, to, from.bytes);
        let holder = context.attachment().holder(RegistrationUse::Dma);
        let fits = Some(context.caps().max_buf_size);
        Sides::new(&self.src, &self.dst, holder).lend((), fits, check)
    }
}

impl<C, S, D> Answers for CopyRequest<C, S, D> {
    type Answer = usize;
}

impl<C, S, D> Own for CopyRequest<C, S, D>
where
    C: AsRef<Dma> + Handle<Owned = Dma>,
    S: CopySource + Handle<Owned: CopySource>,
    D: CopyDestination + Handle<Owned: CopyDestination>,
{
    type Owned = CopyRequest<Dma, S::Owned, D::Owned>;

    fn own(flight: &JobFuture<Self>) -> Self::Owned {
        let CopyRequest { dma, src, dst } = flight.context();
        CopyRequest {
            dma: dma.cloned(),
            src: src.cloned(),
            dst: dst.cloned(),
        }
    }
}

/// The operation of [`Dma::copy`]. Its output is the number of bytes that were copied.
pub type DmaCopy<C, S, D> = Op<CopyRequest<C, S, D>>;

/// Builds a [`Dma`].
///
/// ```
/// use tokio_doca::{Device, Dma, WorkQ};
///
/// # let device = Device::open_default()?;
/// let [bulk, urgent] = [WorkQ::builder().build()?, WorkQ::builder().depth(16).build()?];
/// let dma = Dma::builder(&device).attach(&bulk)?;
/// let other = dma.attach(&urgent)?;                   // the same device, another queue
/// assert_eq!(other.workq().depth(), 16);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
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
    /// `NotSupported` if the device cannot copy, or cannot signal an event-driven WorkQ for copies;
    /// `InvalidValue` if the WorkQ is deeper than the device allows; `BadState` if the WorkQ was
    /// shut down; `Full` if the WorkQ already has 8 devices.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    #[doc(alias = "doca_pe_connect_ctx")]
    pub fn attach(self, workq: &WorkQ) -> Result<Dma> {
        Context::attach(self.device, workq).map(Dma)
    }
}
