//! [`Accel`], the context for jobs whose kinds a provider defines.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use crate::device::{AccelCaps, AccelJob, AccelOrder, Caps, Device, RegistrationUse};
use crate::error::{JobError, Reason, Result};
use crate::mem::{Extent, Handle, Leased, LeasesOf, MaybeDestination, MaybeSource, Reach, Sides};
use crate::ops::context::{Context, Kind, contexts};
use crate::ops::op::{Answers, LeasedJob, Request};
use crate::ops::operation::Op;
use crate::ops::operation::sealed::Own;
use crate::reactor::{Attachment, HasAttachment, JobFuture, WorkQ};

/// A context for an accelerator: a device whose provider defines the kinds of its jobs, each with
/// an opcode.
///
/// Leases, back-pressure, cancellation and shutdown work for these jobs as they do for copies. The
/// provider decides what an opcode means. A context is attached to one [`WorkQ`]; clones share its
/// attachment.
///
/// ```
/// use tokio_doca::{accel::{Accel, AccelCall}, error::JobError, Buf, Device, WorkQ};
///
/// /// The provider's opcode that reads the source and returns its checksum.
/// const CHECKSUM: u32 = 1;
///
/// async fn checksum(accel: &Accel, buf: &Buf) -> Result<u64, JobError> {
///     accel.call(AccelCall::new(CHECKSUM).src(buf)).await
/// }
///
/// # fn main() -> Result<(), tokio_doca::Error> {
/// // The software device has none, and says so.
/// let device = Device::open_default()?;
/// assert!(device.info().caps().accel.is_none());
/// assert!(Accel::builder(&device).attach(&WorkQ::builder().build()?).is_err());
/// # Ok(())
/// # }
/// ```
///
/// `examples/custom_provider.rs` has a provider of such jobs, and a program that calls it.
#[derive(Clone)]
#[doc(alias = "doca_ctx")]
pub struct Accel(Context<AccelCaps>);

impl Kind for AccelCaps {
    const ATTACH: &'static str = "AccelBuilder::attach";
    const DETACH: &'static str = "Accel::detach";
    const LACKS: &'static str = "has no accelerator: DevInfo::caps().accel says who has";

    fn of(caps: &Caps) -> Option<&AccelCaps> {
        caps.accel.as_ref()
    }

    fn limits(&self) -> (bool, u64, u32) {
        (self.event_driven, self.max_buf_size, self.max_list_len)
    }
}

/// A call of an accelerator: an opcode, an argument, and the operands.
///
/// `S` is a [`Source`](crate::mem::Source) and `D` a [`Destination`](crate::mem::Destination), or
/// `()` if the call has no such operand.
///
/// ```
/// use tokio_doca::accel::{Accel, AccelCall};
/// # use tokio_doca::{Buf, error::JobError};
///
/// /// An opcode of the provider: compresses the source; the argument is the level.
/// const COMPRESS: u32 = 2;
///
/// async fn compress(accel: &Accel, from: &Buf, to: &Buf) -> Result<u64, JobError> {
///     accel.call(AccelCall::new(COMPRESS).arg(9).src(from).dst(to)).await
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call does nothing unless it is given to Accel::call"]
pub struct AccelCall<S = (), D = ()> {
    opcode: u32,
    arg: u64,
    src: S,
    dst: D,
}

impl AccelCall {
    /// Returns a call without operands, and with the argument 0.
    pub fn new(opcode: u32) -> AccelCall {
        AccelCall {
            opcode,
            arg: 0,
            src: (),
            dst: (),
        }
    }
}

impl<S, D> AccelCall<S, D> {
    /// Sets the argument: a number whose meaning depends on the opcode.
    pub fn arg(self, arg: u64) -> AccelCall<S, D> {
        AccelCall { arg, ..self }
    }

    /// Sets the operand whose data the accelerator reads.
    pub fn src<T>(self, src: T) -> AccelCall<T, D> {
        AccelCall {
            opcode: self.opcode,
            arg: self.arg,
            src,
            dst: self.dst,
        }
    }

    /// Returns the same call with other operands: `src` and `dst` convert the present ones.
    pub(super) fn map<T, E>(
        self,
        src: impl FnOnce(S) -> T,
        dst: impl FnOnce(D) -> E,
    ) -> AccelCall<T, E> {
        AccelCall {
            opcode: self.opcode,
            arg: self.arg,
            src: src(self.src),
            dst: dst(self.dst),
        }
    }

    /// Sets the destination: the accelerator appends its output to the data of this operand.
    pub fn dst<T>(self, dst: T) -> AccelCall<S, T> {
        AccelCall {
            opcode: self.opcode,
            arg: self.arg,
            src: self.src,
            dst,
        }
    }
}

impl Accel {
    /// Returns a builder of a context on `device`.
    pub fn builder(device: &Device) -> AccelBuilder<'_> {
        AccelBuilder { device }
    }

    /// Attaches another context of the same device to `workq`, and returns it.
    ///
    /// # Errors
    ///
    /// As [`AccelBuilder::attach`].
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(&self, workq: &WorkQ) -> Result<Accel> {
        Accel::builder(self.device()).attach(workq)
    }

    /// Detaches the context from its WorkQ. This handle must be the last one of its attachment.
    ///
    /// # Errors
    ///
    /// `InUse` if a clone, a pending operation or a graph still holds the context. The handle is
    /// consumed either way; jobs in flight finish.
    #[doc(alias = "doca_ctx_workq_rm")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Makes the device perform a call, and returns the result. If the call has a destination, the
    /// result is the number of bytes that the device appended to it; otherwise it is a number that
    /// the opcode defines.
    ///
    /// If a call fails, the data of its destination does not grow, but bytes of the destination's
    /// tailroom may have been overwritten. Nothing happens before the first poll.
    ///
    /// # Errors
    ///
    /// A call that is refused has no effect: `NotSupported` if the device does not know the opcode,
    /// or for a chain with imported memory; `InvalidValue` if the source has no data or the
    /// destination no tailroom, if the two operands share memory or are not registered with the
    /// device, or if they have more bytes or longer lists than the device takes ([`Accel::caps`];
    /// the bytes of the tailroom count only if there is no source); `NotPermitted` if the
    /// destination is read-only; `InUse` if a job or a guard uses either operand; `Shutdown` if the
    /// WorkQ was shut down; `BadState` without a runtime in event or Hybrid mode.
    ///
    /// A call that fails later returns the error of the device, or `BadState`
    /// ([`Reason::CannotWake`]) if an event-driven call in flight is polled without a runtime. In
    /// that case the call continues.
    ///
    /// # Cancel safety
    ///
    /// The operation can be dropped at any time. A call in flight continues, and keeps its operands
    /// leased (`InUse`) until it has completed; the result is discarded, and the destination may
    /// have been written. Forgetting the operation (`mem::forget`) is sound too.
    pub fn call<S: MaybeSource, D: MaybeDestination>(
        &self,
        call: AccelCall<S, D>,
    ) -> AccelOp<&Accel, S, D> {
        let accel = self;
        Op::new(CallRequest { accel, call })
    }

    /// Checks a call, and takes the Leases of its operands.
    fn begin<S: MaybeSource, D: MaybeDestination>(
        &self,
        call: &AccelCall<S, D>,
    ) -> Result<Leased<LeasesOf<S, D>, AccelJob>, JobError> {
        let context = &self.0;
        context.attachment().check_open()?;
        if !context.caps().supports(call.opcode) {
            return Err(JobError::new(Reason::UnknownOpcode, call.opcode.into(), 0));
        }
        let [reads, writes] = [call.src.reach(), call.dst.reach()].map(|it| it != Reach::None);
        let limits = |src: Extent, dst: Extent| {
            let bytes = if reads { src.bytes } else { dst.bytes };
            context.check_limits(src, dst, bytes)
        };
        let order = AccelOrder {
            opcode: call.opcode,
            arg: call.arg,
            reads,
            writes,
        };
        let holder = context.attachment().holder(RegistrationUse::Dma);
        Sides::new(&call.src, &call.dst, holder).lend(order, None, limits)
    }
}

contexts! {
    /// Returns the opcodes that the device knows, and its limits.
    Accel: AccelCaps
}

/// A request of a call. `C` is the context: borrowed (`&Accel`) or owned (`Accel`).
pub struct CallRequest<C, S, D> {
    pub(super) accel: C,
    pub(super) call: AccelCall<S, D>,
}

impl<C: AsRef<Accel>, S, D> HasAttachment for CallRequest<C, S, D> {
    fn attachment(&self) -> &Attachment {
        self.accel.as_ref().attachment()
    }
}

impl<C: AsRef<Accel>, S: MaybeSource, D: MaybeDestination> Request for CallRequest<C, S, D> {
    type Leases = LeasesOf<S, D>;
    type Job = AccelJob;

    fn begin(&self) -> Result<LeasedJob<Self>, JobError> {
        self.accel.as_ref().begin(&self.call)
    }
}

impl<C, S, D> Answers for CallRequest<C, S, D> {
    type Answer = u64;
}

impl<C, S, D> Own for CallRequest<C, S, D>
where
    C: AsRef<Accel> + Handle<Owned = Accel>,
    S: MaybeSource + Handle<Owned: MaybeSource>,
    D: MaybeDestination + Handle<Owned: MaybeDestination>,
{
    type Owned = CallRequest<Accel, S::Owned, D::Owned>;

    fn own(flight: &JobFuture<Self>) -> Self::Owned {
        let CallRequest { accel, call } = flight.context();
        let (opcode, arg) = (call.opcode, call.arg);
        let (src, dst) = (call.src.cloned(), call.dst.cloned());
        CallRequest {
            accel: accel.cloned(),
            call: AccelCall {
                opcode,
                arg,
                src,
                dst,
            },
        }
    }
}

/// The operation of [`Accel::call`]. Its output is the device's result.
pub type AccelOp<C, S, D> = Op<CallRequest<C, S, D>>;

/// Builds an [`Accel`].
///
/// ```
/// use tokio_doca::{Device, WorkQ, accel::Accel};
///
/// /// Attaches to the first accelerator that knows the opcode.
/// fn find(opcode: u32, workq: &WorkQ) -> tokio_doca::Result<Option<Accel>> {
///     for info in Device::list()? {
///         if info.caps().accel.as_ref().is_some_and(|caps| caps.supports(opcode)) {
///             let device = Device::open(info.name())?;
///             return Accel::builder(&device).attach(workq).map(Some);
///         }
///     }
///     Ok(None)
/// }
/// # assert!(find(1, &WorkQ::builder().build()?)?.is_none());
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before attach"]
pub struct AccelBuilder<'a> {
    device: &'a Device,
}

impl AccelBuilder<'_> {
    /// Attaches the context to a WorkQ.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device has no accelerator, or one whose jobs cannot signal an event
    /// handle and the WorkQ is not busy-polled; `InvalidValue` if the WorkQ is deeper than the
    /// device allows; `BadState` if the WorkQ was shut down; `Full` if the WorkQ already has 8
    /// devices.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(self, workq: &WorkQ) -> Result<Accel> {
        Context::attach(self.device, workq).map(Accel)
    }
}
