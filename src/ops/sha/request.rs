//! The request to hash a message, or a part of one.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::sync::Arc;

use super::Sha;
use crate::device::{Algorithm, RegistrationUse, ShaJob};
use crate::error::{JobError, Reason, Result};
use crate::mem::{Extent, Handle, Leases, MaybeDestination, MaybeSource, Reach, Session, Sides};
use crate::ops::op::{Answers, LeasedJob, Request};
use crate::ops::operation::Op;
use crate::ops::operation::sealed::Own;
use crate::reactor::{Attachment, HasAttachment, JobFuture};

/// A request to hash. `C` is the context: borrowed (`&Sha`) or owned (`Sha`).
pub struct ShaRequest<C, S, D> {
    pub(super) sha: C,
    pub(super) algorithm: Algorithm,
    /// The session, if this hashes a part of a message.
    pub(super) session: Option<Arc<Session>>,
    pub(super) src: S,
    pub(super) dst: D,
}

impl<C, S, D> ShaRequest<C, S, D> {
    /// Returns a request to hash a message in one piece.
    pub(in crate::ops) fn whole(
        sha: C,
        algorithm: Algorithm,
        src: S,
        dst: D,
    ) -> ShaRequest<C, S, D> {
        ShaRequest {
            sha,
            algorithm,
            session: None,
            src,
            dst,
        }
    }
}

impl<C: AsRef<Sha>, S: MaybeSource, D: MaybeDestination> ShaRequest<C, S, D> {
    fn check(&self, from: Extent, dst: Extent) -> Result<(), JobError> {
        let context = &self.sha.as_ref().0;
        context.check_limits(from, Extent::default(), from.bytes)?;
        let (digest, block) = (self.algorithm.digest_len(), self.algorithm.block_len());
        let (reason, have, limit) = match self.dst.reach() {
            Reach::None if from.bytes.is_multiple_of(block) => return Ok(()),
            Reach::None => (Reason::NotWholeBlocks, from.bytes, block),
            _ if dst.bytes < digest => (Reason::DigestTailroom, dst.bytes, digest),
            _ if dst.pieces > 1 => (Reason::ListTooLong, dst.pieces, 1),
            _ => return Ok(()),
        };
        Err(JobError::new(reason, have as u64, limit as u64))
    }
}

impl<C: AsRef<Sha>, S, D> HasAttachment for ShaRequest<C, S, D> {
    fn attachment(&self) -> &Attachment {
        self.sha.as_ref().attachment()
    }
}

impl<C: AsRef<Sha>, S: MaybeSource, D: MaybeDestination> Request for ShaRequest<C, S, D> {
    type Leases = Leases;
    type Job = ShaJob;

    fn begin(&self) -> Result<LeasedJob<Self>, JobError> {
        let context = &self.sha.as_ref().0;
        context.attachment().check_open()?;
        let algorithm = self.algorithm;
        if !context.caps().supports(algorithm) {
            let bits = 8 * algorithm.digest_len() as u64;
            return Err(JobError::new(Reason::UnknownAlgorithm, bits, 0));
        }
        let check = |from, to| self.check(from, to);
        let holder = context.attachment().holder(RegistrationUse::Dma);
        let sides = Sides::new(&self.src, &self.dst, holder);
        sides.lend_read(algorithm, self.session.as_ref(), check)
    }
}

impl<C, S, D> Answers for ShaRequest<C, S, D> {
    type Answer = usize;
}

impl<C, S, D> Own for ShaRequest<C, S, D>
where
    C: AsRef<Sha> + Handle<Owned = Sha>,
    S: MaybeSource + Handle<Owned: MaybeSource>,
    D: MaybeDestination + Handle<Owned: MaybeDestination>,
{
    type Owned = ShaRequest<Sha, S::Owned, D::Owned>;

    fn own(flight: &JobFuture<Self>) -> Self::Owned {
        let request = flight.context();
        ShaRequest {
            sha: request.sha.cloned(),
            algorithm: request.algorithm,
            session: request.session.clone(),
            src: request.src.cloned(),
            dst: request.dst.cloned(),
        }
    }
}

/// The type of the operations of a [`Sha`] and of a [`ShaSession`](super::ShaSession). Its output
/// is the length of the digest, or, for a part that is not the last one, the number of hashed
/// bytes.
pub type ShaOp<C, S, D> = Op<ShaRequest<C, S, D>>;

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use crate::device::{Access, Device};
    use crate::mem::{Buf, BufChain, BufPool, Mmap};
    use crate::reactor::WorkQ;

    #[test]
    fn a_job_says_whether_others_may_write_its_source() {
        let device = Device::open_default().unwrap();
        let sha = Sha::builder(&device).attach(&WorkQ::builder().build().unwrap());
        let sha = sha.unwrap();
        let [private, shared] = [Access::default(), Access::default() | Access::RDMA_WRITE]
            .map(|access| Mmap::builder().device(&device).access(access).alloc(4096))
            .map(|mmap| BufPool::builder(&mmap.unwrap()).element_size(1024).build())
            .map(|pool| pool.unwrap());
        let dst = private.try_alloc().unwrap();
        fn is_shared(sha: &Sha, src: impl MaybeSource, dst: &Buf) -> bool {
            let request = ShaRequest {
                sha,
                algorithm: Algorithm::Sha1,
                session: None,
                src,
                dst,
            };
            request.begin().unwrap().job().shared
        }
        let chain = BufChain::with_capacity(2);
        for (pool, expected) in [(&private, false), (&shared, true)] {
            let src = pool.try_alloc().unwrap();
            src.set_data(0, 3).unwrap();
            chain.push(&src).unwrap();
            assert_eq!(is_shared(&sha, &src, &dst), expected);
            assert_eq!(is_shared(&sha, &chain, &dst), expected);
        }
    }
}
