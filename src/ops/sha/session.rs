//! [`ShaSession`], a message that is hashed in parts.

use std::fmt;
use std::sync::Arc;

use super::Sha;
use super::request::{ShaOp, ShaRequest};
use crate::device::{Algorithm, Hasher};
use crate::error::{JobError, Reason, Result};
use crate::mem::{Destination, MaybeSource, Session, Source};
use crate::ops::operation::Op;

/// A session that hashes a message in parts, with one job for each part
/// (`doca_sha_partial_session`).
///
/// The parts are hashed one after the other: while one part is in flight, the next fails with
/// `InUse`. The lengths of all parts but the last are multiples of [`Algorithm::block_len`]. The
/// last part is passed to [`finish`](ShaSession::finish), with the destination of the digest.
/// Afterwards the session begins a new message. A part that fails or is refused was not hashed, and
/// leaves the session as it was.
///
/// ```
/// # use tokio_doca::{sha::{Algorithm, Sha}, BufPool, Device, Mmap, WorkQ};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_doca::Error> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let sha = Sha::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let (part, digest) = (pool.alloc().await, pool.alloc().await);
/// part.extend_from_slice(&[b'a'; 128])?;
/// let session = sha.session(Algorithm::Sha256)?;
/// session.update(&part).await?;                          // two blocks
/// let fork = session.copy()?;                            // another message that begins alike
/// session.finish(&part.slice(0..72)?, &digest).await?;   // 200 bytes in all
/// fork.finish((), &digest).await?;                       // 128
/// assert_eq!(digest.data_len(), 64);
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// The operation of a part can be dropped at any time. A part in flight continues, and *is hashed*.
/// Until it has completed, its source and the session stay leased (`InUse`). If you do not know
/// whether the part was hashed, begin the message again ([`reset`](ShaSession::reset)).
#[doc(alias = "doca_sha_partial_session")]
#[doc(alias = "doca_sha_task_partial_hash")]
pub struct ShaSession {
    sha: Sha,
    state: Arc<Session>,
}

impl ShaSession {
    pub(super) fn new(sha: Sha, algorithm: Algorithm) -> ShaSession {
        let state = Session::new(algorithm);
        ShaSession { sha, state }
    }

    /// Returns the context that the session hashes with.
    pub fn sha(&self) -> &Sha {
        &self.sha
    }

    /// Returns the hash algorithm of the session.
    pub fn algorithm(&self) -> Algorithm {
        self.state.algorithm()
    }

    /// Hashes a part that is not the last one, and returns its length in bytes. Nothing happens
    /// before the first poll.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the length of the data is not a multiple of [`Algorithm::block_len`];
    /// `InUse` if a job in flight uses the session; otherwise as [`Sha::hash`].
    ///
    /// # Cancel safety
    ///
    /// As the [session's](ShaSession#cancel-safety).
    #[doc(alias = "doca_sha_partial_job")]
    #[doc(alias = "DOCA_SHA_JOB_SHA1_PARTIAL")]
    #[doc(alias = "DOCA_SHA_JOB_SHA256_PARTIAL")]
    #[doc(alias = "DOCA_SHA_JOB_SHA512_PARTIAL")]
    #[doc(alias = "doca_sha_task_partial_hash_set_src")]
    pub fn update<S: Source>(&self, src: S) -> ShaOp<&Sha, S, ()> {
        Op::new(self.part(&self.sha, src, ()))
    }

    /// Hashes the last part, and appends the digest of the message to `dst`. If `src` is `()`, the
    /// message has no further part. Returns the length of the digest in bytes. Afterwards the
    /// session begins a new message.
    ///
    /// # Errors
    ///
    /// `InUse` if a job in flight uses the session; otherwise as [`Sha::hash`].
    ///
    /// # Cancel safety
    ///
    /// As the [session's](ShaSession#cancel-safety).
    #[doc(alias = "DOCA_SHA_JOB_FLAGS_SHA_PARTIAL_FINAL")]
    #[doc(alias = "doca_sha_task_partial_hash_set_is_final_buf")]
    pub fn finish<S: MaybeSource, D: Destination>(&self, src: S, dst: D) -> ShaOp<&Sha, S, D> {
        Op::new(self.part(&self.sha, src, dst))
    }

    /// Returns a new session that has hashed the same parts so far. This call allocates.
    ///
    /// # Errors
    ///
    /// `InUse` if a job in flight uses the session.
    pub fn copy(&self) -> Result<ShaSession, JobError> {
        let copy = ShaSession::new(self.sha.clone(), self.algorithm());
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// Makes this session continue from the state of `from`, which may belong to another context.
    /// The parts that this session has hashed are discarded.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `from` has another algorithm; `InUse` if a job in flight uses one of the
    /// two sessions.
    #[doc(alias = "doca_sha_partial_session_copy")]
    pub fn copy_from(&self, from: &ShaSession) -> Result<(), JobError> {
        if from.algorithm() != self.algorithm() {
            let [from, to] = [from, self].map(|session| session.algorithm().digest_len() as u64);
            return Err(JobError::new(Reason::OtherAlgorithm, from, to));
        }
        let hasher = from.state.lease()?.get();
        self.state.lease()?.set(hasher);
        Ok(())
    }

    /// Begins a new message, and discards the parts that were hashed.
    ///
    /// # Errors
    ///
    /// `InUse` if a job in flight uses the session.
    pub fn reset(&self) -> Result<(), JobError> {
        self.state.lease()?.set(Hasher::new(self.algorithm()));
        Ok(())
    }

    fn part<C, S, D>(&self, sha: C, src: S, dst: D) -> ShaRequest<C, S, D> {
        ShaRequest {
            sha,
            algorithm: self.algorithm(),
            session: Some(Arc::clone(&self.state)),
            src,
            dst,
        }
    }
}

impl fmt::Debug for ShaSession {
    /// Prints no state of the hash, since the hashed data may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShaSession")
            .field("algorithm", &self.algorithm())
            .field("sha", &self.sha)
            .finish()
    }
}
