//! [`Sha`], the context that hashes.

use super::ShaSession;
use super::request::{ShaOp, ShaRequest};
use crate::device::{Algorithm, Caps, Device, ShaCaps};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::{Destination, Source};
use crate::ops::context::{Context, Kind, contexts};
use crate::ops::operation::Op;
use crate::reactor::WorkQ;

/// A SHA context: a device hashes memory (`doca_sha`).
///
/// A context is attached to one [`WorkQ`]; clones share its attachment. A message in one piece, or
/// in one chain, is hashed by one job ([`Sha::hash`]). A message that comes in parts is hashed by a
/// session ([`Sha::session`]).
///
/// Small inputs are hashed while the operation is polled; larger ones by the device, off the task's
/// thread. On a software device, an input is small up to 1/32 of the
/// [`inline_limit`](crate::soft::SoftBuilder::inline_limit): 8 KiB by default.
///
/// ```
/// # use tokio_doca::{sha::{Algorithm, Sha}, BufPool, Device, Mmap, WorkQ};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_doca::Error> {
/// let device = Device::open_default()?;
/// let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let sha = Sha::builder(&device).attach(&WorkQ::builder().build()?)?;
///
/// let (src, digest) = (pool.alloc().await, pool.alloc().await);
/// src.extend_from_slice(b"abc")?;
/// assert_eq!(sha.hash(Algorithm::Sha256, &src, &digest).await?, 32);
/// assert_eq!(digest.data()?[..4], [0xba, 0x78, 0x16, 0xbf]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "doca_sha")]
pub struct Sha(pub(super) Context<ShaCaps>);

impl Kind for ShaCaps {
    const ATTACH: &'static str = "ShaBuilder::attach";
    const DETACH: &'static str = "Sha::detach";
    const LACKS: &'static str = "does not hash: DevInfo::caps().sha says who does";

    fn of(caps: &Caps) -> Option<&ShaCaps> {
        caps.sha.as_ref()
    }

    fn limits(&self) -> (bool, u64, u32) {
        (self.event_driven, self.max_src_len, self.max_list_len)
    }
}

impl Sha {
    /// Returns a builder of a context on `device`.
    #[doc(alias = "doca_sha_create")]
    pub fn builder(device: &Device) -> ShaBuilder<'_> {
        ShaBuilder { device }
    }

    /// Attaches another context of the same device to `workq`, and returns it.
    ///
    /// # Errors
    ///
    /// As [`ShaBuilder::attach`].
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(&self, workq: &WorkQ) -> Result<Sha> {
        Sha::builder(self.device()).attach(workq)
    }

    /// Detaches the context from its WorkQ. This handle must be the last one of its attachment.
    ///
    /// # Errors
    ///
    /// `InUse` if a clone, a session, a pending operation or a graph still holds the context. The
    /// handle is consumed either way; jobs in flight finish.
    #[doc(alias = "doca_ctx_workq_rm")]
    #[doc(alias = "doca_sha_destroy")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Hashes all data of `src`, and appends the digest to `dst`. Returns the length of the digest
    /// in bytes.
    ///
    /// If a hash fails, the data of `dst` does not grow. Nothing happens before the first poll.
    ///
    /// # Errors
    ///
    /// A hash that is refused has no effect: `InvalidValue` if the tailroom is shorter than a
    /// digest ([`Algorithm::digest_len`]), if the space for the digest lies in more than one Buf of
    /// a destination chain, if `src` and `dst` share memory or are not registered with the device,
    /// or if the source has more bytes or a longer list than the device takes ([`Sha::caps`]);
    /// `NotSupported` if the device does not compute this hash, or for a chain with imported
    /// memory; `NotPermitted` if the destination is read-only; `InUse` if a job or a guard uses
    /// `src` or `dst`; `Shutdown` if the WorkQ was shut down; `BadState` without a runtime in event
    /// or Hybrid mode.
    ///
    /// A hash that fails later returns the error of the device, or `BadState`
    /// ([`Reason::CannotWake`](crate::error::Reason::CannotWake)) if an event-driven hash in flight
    /// is polled without a runtime. In that case the hash continues.
    ///
    /// # Cancel safety
    ///
    /// The operation can be dropped at any time. A hash in flight continues, and keeps `src` and
    /// `dst` leased (`InUse`) until it has completed; the result is discarded, and the destination
    /// may have been written. Forgetting the operation (`mem::forget`) is sound too.
    #[doc(alias = "doca_sha_job")]
    #[doc(alias = "doca_sha_task_hash_alloc_init")]
    #[doc(alias = "doca_sha_task_hash_set_conf")]
    pub fn hash<S: Source, D: Destination>(
        &self,
        algorithm: Algorithm,
        src: S,
        dst: D,
    ) -> ShaOp<&Sha, S, D> {
        Op::new(ShaRequest::whole(self, algorithm, src, dst))
    }

    /// Returns a session, which hashes a message in parts. This call allocates; the session's jobs
    /// do not.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device does not compute this hash, or has no sessions.
    #[doc(alias = "doca_sha_partial_session_create")]
    #[doc(alias = "doca_sha_task_partial_hash_alloc_init")]
    pub fn session(&self, algorithm: Algorithm) -> Result<ShaSession> {
        let caps = self.caps();
        let lacks = match caps.supports(algorithm) {
            true if caps.sessions => return Ok(ShaSession::new(self.clone(), algorithm)),
            true => "has no sessions: gather the message in a chain".to_owned(),
            false => format!("does not compute {algorithm}: it has {:?}", caps.algorithms),
        };
        let text = format!("device {} {lacks}", self.device().info().name());
        Err(Error::new(ErrorKind::NotSupported, "Sha::session", text))
    }
}

contexts! {
    /// Returns the hashes that the device computes, and its limits.
    Sha: ShaCaps
}

/// Builds a [`Sha`].
///
/// ```
/// use tokio_doca::sha::{Algorithm, Sha};
/// use tokio_doca::{Device, ErrorKind, WorkQ};
///
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// match Sha::builder(&device).attach(&workq) {
///     Ok(sha) => assert!(sha.caps().supports(Algorithm::Sha1)),
///     Err(error) if error.kind() == ErrorKind::NotSupported => println!("hash on the CPU"),
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before attach"]
pub struct ShaBuilder<'a> {
    device: &'a Device,
}

impl ShaBuilder<'_> {
    /// Attaches the context to a WorkQ.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device cannot hash, or cannot signal an event-driven WorkQ for hashes;
    /// `InvalidValue` if the WorkQ is deeper than the device allows; `BadState` if the WorkQ was
    /// shut down; `Full` if the WorkQ already has 8 devices.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(self, workq: &WorkQ) -> Result<Sha> {
        Context::attach(self.device, workq).map(Sha)
    }
}
