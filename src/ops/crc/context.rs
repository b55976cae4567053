//! The context that computes CRCs.

use super::request::{CopyCrcOp, CrcOp, CrcRequest};
use crate::device::{Caps, CrcCaps, CrcOptions, Device};
use crate::error::Result;
use crate::mem::{Destination, Source};
use crate::ops::context::{Context, Kind, contexts};
use crate::ops::operation::Op;
use crate::reactor::WorkQ;

/// A CRC context: computes the CRC-32C of memory by a device, and copies it in the same pass.
///
/// It is attached to one [`WorkQ`]; clones are the same attachment. The module
/// [`crc`](crate::crc) has an example.
///
/// Small sources are done by the poll, larger ones by the device, off the task's thread: on a
/// software device the limit is half of its inline limit, 32 KiB.
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
/// let copied = crc.copy_crc(&block, &copy).await?;    // reads the bytes once for both
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

    fn event_driven(&self) -> bool {
        self.event_driven
    }

    fn max_buf_size(&self) -> u64 {
        // An answer has 32 bits for it.
        self.max_buf_size.min(u32::MAX.into())
    }

    fn max_list_len(&self) -> u32 {
        self.max_list_len
    }
}

impl Crc {
    /// Begins a context on a device.
    pub fn builder(device: &Device) -> CrcBuilder<'_> {
        CrcBuilder { device }
    }

    /// Attaches a context of the same device to another WorkQ.
    ///
    /// # Errors
    ///
    /// As [`CrcBuilder::attach`].
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(&self, workq: &WorkQ) -> Result<Crc> {
        Crc::builder(self.device()).attach(workq)
    }

    /// Gives this handle up, if it is the last one on its attachment.
    ///
    /// # Errors
    ///
    /// `InUse` if a clone, a pending operation or a graph still holds the context. The handle is
    /// consumed either way; jobs in flight finish.
    #[doc(alias = "doca_ctx_workq_rm")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Computes the CRC-32C of the data of `src`, all of it. The CRC of no data is 0.
    ///
    /// Nothing happens before the first poll. [`WorkQ::progress`] and graphs hand the CRC out as a
    /// number ([`Output::Value`](crate::op::Output::Value)).
    ///
    /// # Errors
    ///
    /// Refused, and nothing happened: `InvalidValue` if `src` is a foreign device's, or has more
    /// bytes or a longer list than the device takes ([`Crc::caps`]); `NotSupported`
    /// ([`Reason::RemoteInChain`](crate::error::Reason::RemoteInChain)) for a chain with imported
    /// memory; `InUse` if a job or a guard writes it; `Shutdown`; `BadState` without a runtime in
    /// event mode. Failed: what the device reports, and `BadState`
    /// ([`Reason::CannotWake`](crate::error::Reason::CannotWake)) if an event-driven job in flight
    /// is polled where there is no runtime: the job continues.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is ordinary. A job in flight continues, keeps `src` leased (`InUse`)
    /// until it has completed, and is then forgotten. Forgetting the future is sound too.
    pub fn crc32c<S: Source>(&self, src: S) -> CrcOp<&Crc, S> {
        self.crc32c_with(CrcOptions::new(), src)
    }

    /// Computes the CRC-32C of the data of `src`, from a seed on, and checks it if `options` say
    /// what it must be. The CRC of no data is the seed.
    ///
    /// # Errors
    ///
    /// `IoFailed` ([`Reason::CrcMismatch`](crate::error::Reason::CrcMismatch)) if the CRC is not
    /// the expected one; else as [`Crc::crc32c`].
    ///
    /// # Cancel safety
    ///
    /// As [`Crc::crc32c`].
    pub fn crc32c_with<S: Source>(&self, options: CrcOptions, src: S) -> CrcOp<&Crc, S> {
        Op::new(CrcRequest::new(self, options, src, ()))
    }

    /// Copies the data of `src` into the tailroom of `dst`, whose data grows, and computes the
    /// CRC-32C of what it copies in the same pass.
    ///
    /// The CRC is that of the bytes that were written to `dst`, even if a peer writes `src`
    /// meanwhile. If the operation fails, the data of `dst` does not grow. Nothing happens before
    /// the first poll. [`WorkQ::progress`] and graphs hand the result out as a number, which
    /// [`CrcCopied::from`](super::CrcCopied) reads.
    ///
    /// # Errors
    ///
    /// Refused, and nothing was copied: `InvalidValue` if there is too little tailroom, if the two
    /// sides have bytes in common, for a foreign device, and for more bytes or longer lists than
    /// the device takes ([`Crc::caps`]); `NotSupported`
    /// ([`Reason::RemoteInChain`](crate::error::Reason::RemoteInChain)) for a chain with imported
    /// memory; `NotPermitted` if the destination is read-only; `InUse` if a job or a guard has
    /// either side; `Shutdown`; `BadState` without a runtime in event mode. Failed: what the device
    /// reports, and `BadState` ([`Reason::CannotWake`](crate::error::Reason::CannotWake)) if an
    /// event-driven job in flight is polled where there is no runtime: the job continues.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is ordinary. A job in flight continues, keeps both sides leased
    /// (`InUse`) until it has completed, and is then forgotten; the data of `dst` grows if it
    /// succeeds. Forgetting the future is sound too.
    pub fn copy_crc<S: Source, D: Destination>(&self, src: S, dst: D) -> CopyCrcOp<&Crc, S, D> {
        self.copy_crc_with(CrcOptions::new(), src, dst)
    }

    /// Copies the data of `src` into the tailroom of `dst`, computes the CRC-32C of what it copies
    /// from a seed on, and checks it if `options` say what it must be.
    ///
    /// If the CRC is not the expected one, the operation fails and the data of `dst` does not grow.
    /// The tailroom has been written: do not read it as if it were old.
    ///
    /// # Errors
    ///
    /// `IoFailed` ([`Reason::CrcMismatch`](crate::error::Reason::CrcMismatch)) if the CRC is not
    /// the expected one; else as [`Crc::copy_crc`].
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
    /// them; `InvalidValue` if the WorkQ is deeper than the device allows; `BadState` if it was
    /// shut down; `Full` beyond 8 devices on a WorkQ.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(self, workq: &WorkQ) -> Result<Crc> {
        Context::attach(self.device, workq).map(Crc)
    }
}
