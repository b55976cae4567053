//! [`Crc`], the context that computes CRCs.

use super::request::{CopyCrcOp, CrcOp, CrcRequest};
use crate::device::{Caps, CrcCaps, CrcOptions, Device};
use crate::error::Result;
use crate::mem::{Destination, Source};
use crate::ops::context::{Context, Kind, contexts};
use crate::ops::operation::Op;
use crate::reactor::WorkQ;

/// A CRC context: a device computes the CRC-32C of memory, and can copy the memory in the same
/// pass.
///
/// A context is attached to one [`WorkQ`]; clones share its attachment. The module
/// [`crc`](crate::crc) has an example.
///
/// The CRC of a small source is computed while the operation is polled. The CRC of a larger source
/// is computed by the device, off the task's thread. On a software device, a source is small up to
/// an eighth of the [`inline_limit`](crate::soft::SoftBuilder::inline_limit): 32 KiB by default.
///
/// ```
/// use tokio_doca::crc::Crc;
/// # use tokio_doca::{BufPool, Device, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let crc = Crc::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let (block, copy) = (pool.alloc().await, pool.alloc().await);
/// block.extend_from_slice(b"123456789")?;
/// assert_eq!(crc.crc32c(&block).await?, 0xe306_9283);
/// let copied = crc.copy_crc(&block, &copy).await?;    // reads the bytes once for copy and CRC
/// assert_eq!((copied.bytes, copied.crc), (9, 0xe306_9283));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Crc(pub(super) Context<CrcCaps>);

impl Kind for CrcCaps {
    const ATTACH: &'static str = "CrcBuilder::attach";
    const DETACH: &'static str = "Crc::detach";
    const LACKS: &'static str = "computes no CRCs: DevInfo::caps().crc says which does";

    fn of(caps: &Caps) -> Option<&CrcCaps> {
        caps.crc.as_ref()
    }

    fn limits(&self) -> (bool, u64, u32) {
        // `CrcCopied` has 32 bits for the number of bytes.
        (
            self.event_driven,
            self.max_buf_size.min(u32::MAX.into()),
            self.max_list_len,
        )
    }
}

impl Crc {
    /// Returns a builder of a context on `device`.
    pub fn builder(device: &Device) -> CrcBuilder<'_> {
        CrcBuilder { device }
    }

    /// Attaches another context of the same device to `workq`, and returns it.
    ///
    /// # Errors
    ///
    /// As [`CrcBuilder::attach`].
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(&self, workq: &WorkQ) -> Result<Crc> {
        Crc::builder(self.device()).attach(workq)
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

    /// Computes the CRC-32C of all data of `src`. The CRC of no data is 0.
    ///
    /// Nothing happens before the first poll. [`WorkQ::progress`] and graphs return the CRC as a
    /// number ([`Output::Value`](crate::op::Output::Value)).
    ///
    /// # Errors
    ///
    /// An operation that is refused has no effect: `InvalidValue` if `src` is not registered with
    /// the device, or has more bytes or a longer list than the device takes ([`Crc::caps`]);
    /// `NotSupported` ([`Reason::RemoteInChain`](crate::error::Reason::RemoteInChain)) for a chain
    /// with imported memory; `InUse` if a job or a guard writes `src`; `Shutdown` if the WorkQ was
    /// shut down; `BadState` without a runtime in event or Hybrid mode.
    ///
    /// An operation that fails later returns the error of the device, or `BadState`
    /// ([`Reason::CannotWake`](crate::error::Reason::CannotWake)) if an event-driven job in flight
    /// is polled without a runtime. In that case the job continues.
    ///
    /// # Cancel safety
    ///
    /// The operation can be dropped at any time. A job in flight continues, and keeps `src` leased
    /// (`InUse`) until it has completed; the result is discarded. Forgetting the operation
    /// (`mem::forget`) is sound too.
    pub fn crc32c<S: Source>(&self, src: S) -> CrcOp<&Crc, S> {
        self.crc32c_with(CrcOptions::new(), src)
    }

    /// Computes the CRC-32C of the data of `src` from the seed in `options`. If `options` have an
    /// expected CRC, compares the result with it. The CRC of no data is the seed.
    ///
    /// # Errors
    ///
    /// `IoFailed` ([`Reason::CrcMismatch`](crate::error::Reason::CrcMismatch)) if the CRC is not
    /// the expected one; otherwise as [`Crc::crc32c`].
    ///
    /// # Cancel safety
    ///
    /// As [`Crc::crc32c`].
    pub fn crc32c_with<S: Source>(&self, options: CrcOptions, src: S) -> CrcOp<&Crc, S> {
        Op::new(CrcRequest::new(self, options, src, ()))
    }

    /// Appends the data of `src` to the data of `dst`, and computes the CRC-32C of the copied bytes
    /// in the same pass.
    ///
    /// The CRC is that of the bytes that were written to `dst`, even if a peer writes `src`
    /// meanwhile. If the operation fails, the data of `dst` does not grow. Nothing happens before
    /// the first poll. [`WorkQ::progress`] and graphs return the result as one number, which
    /// [`CrcCopied::from`](super::CrcCopied) converts back.
    ///
    /// # Errors
    ///
    /// An operation that is refused has copied nothing: `InvalidValue` if there is too little
    /// tailroom, if `src` and `dst` have bytes in common or are not registered with the device, or
    /// if they have more bytes or longer lists than the device takes ([`Crc::caps`]);
    /// `NotSupported` ([`Reason::RemoteInChain`](crate::error::Reason::RemoteInChain)) for a chain
    /// with imported memory; `NotPermitted` if the destination is read-only; `InUse` if a job or a
    /// guard uses `src` or `dst`; `Shutdown` if the WorkQ was shut down; `BadState` without a
    /// runtime in event or Hybrid mode.
    ///
    /// An operation that fails later returns the error of the device, or `BadState`
    /// ([`Reason::CannotWake`](crate::error::Reason::CannotWake)) if an event-driven job in flight
    /// is polled without a runtime. In that case the job continues.
    ///
    /// # Cancel safety
    ///
    /// The operation can be dropped at any time. A job in flight continues, and keeps `src` and
    /// `dst` leased (`InUse`) until it has completed; the result is discarded, but the data of
    /// `dst` grows if the job succeeds. Forgetting the operation (`mem::forget`) is sound too.
    pub fn copy_crc<S: Source, D: Destination>(&self, src: S, dst: D) -> CopyCrcOp<&Crc, S, D> {
        self.copy_crc_with(CrcOptions::new(), src, dst)
    }

    /// Appends the data of `src` to the data of `dst`, and computes the CRC-32C of the copied bytes
    /// from the seed in `options`. If `options` have an expected CRC, compares the result with it.
    ///
    /// If the CRC is not the expected one, the operation fails and the data of `dst` does not grow.
    /// But the bytes of the tailroom have been overwritten.
    ///
    /// # Errors
    ///
    /// `IoFailed` ([`Reason::CrcMismatch`](crate::error::Reason::CrcMismatch)) if the CRC is not
    /// the expected one; otherwise as [`Crc::copy_crc`].
    ///
    /// # Cancel safety
    ///
    /// As [`Crc::copy_crc`].
    pub fn copy_crc_with<S: Source, D: Destination>(
        &self,
        options: CrcOptions,
        src: S,
        dst: D,
    ) -> CopyCrcOp<&Crc, S, D> {
        Op::new(CrcRequest::new(self, options, src, dst))
    }
}

contexts! {
    /// Returns the limits of the device.
    Crc: CrcCaps
}

/// Builds a [`Crc`].
///
/// ```
/// use tokio_doca::{Device, WorkQ, crc::Crc};
///
/// let infos = Device::list()?;
/// let info = infos.iter().find(|info| info.caps().crc.is_some()).expect("the software device");
/// let device = Device::open(info.name())?;
/// let crc = Crc::builder(&device).attach(&WorkQ::builder().build()?)?;
/// println!("up to {} bytes", crc.caps().max_buf_size);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before attach"]
pub struct CrcBuilder<'a> {
    device: &'a Device,
}

impl CrcBuilder<'_> {
    /// Attaches the context to a WorkQ.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device computes no CRCs, or cannot signal an event-driven WorkQ for
    /// them; `InvalidValue` if the WorkQ is deeper than the device allows; `BadState` if the WorkQ
    /// was shut down; `Full` if the WorkQ already has 8 devices.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(self, workq: &WorkQ) -> Result<Crc> {
        Context::attach(self.device, workq).map(Crc)
    }
}
