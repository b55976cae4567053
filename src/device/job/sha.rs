//! One hash, as the device sees it: plain data.
#![expect(
    unsafe_code,
    reason = "promises what memory a hash names, and a session goes across threads by address"
)]

use std::ptr::NonNull;

use super::cpu::OnCpu;
use super::effect::Effect;
use super::hasher::{self, Hasher};
use super::lent::{Lent, OnLent};
use super::segment::{Segment, Segments};
use crate::device::info::Algorithm;
use crate::error::JobError;

/// A hash of a whole message, or of a part of one.
///
/// | `session` | `dst` | what it is | its result |
/// |---|---|---|---|
/// | none | some | a whole message, which may be empty | bytes of the digest |
/// | some | none | a part of a message, whole blocks or nothing | bytes that were hashed |
/// | some | some | the last part, which may be empty; the session begins anew | bytes of the digest |
///
/// A provider that computes on the CPU calls [`Hasher::work`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[doc(alias = "doca_sha_job")]
#[doc(alias = "doca_sha_partial_job")]
pub struct ShaJob {
    /// The hash that is computed.
    pub algorithm: Algorithm,
    /// True if other parties may write the source while the job runs: the device reads each byte
    /// once, and does not rely on its value.
    pub shared: bool,
    /// The bytes that are hashed. If there is no data, this may be [`Segments::none`] or an empty
    /// piece.
    pub src: Segments,
    /// The memory for the digest, of exactly the digest's length.
    pub dst: Option<Segment>,
    /// The session that the job continues; `None` for a whole message.
    pub session: Option<SessionRef>,
}

impl ShaJob {
    /// Returns a job that hashes a whole message, in memory that no other party writes. For a part
    /// of a message, set `session` as well; only the last part has a `dst`.
    pub fn new(algorithm: Algorithm, src: Segments, dst: impl Into<Option<Segment>>) -> ShaJob {
        ShaJob {
            algorithm,
            shared: false,
            src,
            dst: dst.into(),
            session: None,
        }
    }

    /// Returns how many bytes are hashed.
    #[allow(clippy::len_without_is_empty)] // it has no user
    pub fn len(&self) -> usize {
        self.src.bytes()
    }

    /// Returns the result of the job if it succeeds: the length of the digest if there is a `dst`,
    /// and otherwise the number of bytes hashed.
    pub fn answer(&self) -> u64 {
        match self.dst {
            Some(_) => self.algorithm.digest_len() as u64,
            None => self.len() as u64,
        }
    }
}

// SAFETY: the job names the source as it was lent, the session, and, of the destination, the first
// piece that is not empty, cut to the length of a digest.
unsafe impl OnLent for ShaJob {
    type Order = Algorithm;

    fn fills(_: Algorithm) -> bool {
        false
    }

    /// Makes the job. The caller has checked that a non-empty destination has the capacity for a
    /// digest.
    fn on(algorithm: Algorithm, lent: Lent) -> Result<ShaJob, JobError> {
        let free = lent.dst.as_slice().iter().find(|free| free.len() > 0);
        Ok(ShaJob {
            algorithm,
            shared: lent.shared,
            src: lent.src,
            dst: free.map(|free| free.part(0, algorithm.digest_len())),
            session: lent.session,
        })
    }
}

impl Effect for ShaJob {
    fn cost(&self) -> usize {
        self.len().saturating_mul(Self::COST)
    }
}

impl OnCpu for ShaJob {
    type State = Hasher;

    const COST: usize = hasher::COST;

    fn len(&self) -> usize {
        ShaJob::len(self)
    }

    unsafe fn work(&self, hasher: &mut Hasher, from: usize, most: usize) -> usize {
        // SAFETY: as the caller promises.
        unsafe { hasher.work(self, from, most) }
    }

    fn outcome(&self, _: &Hasher) -> Result<u64, JobError> {
        Ok(self.answer())
    }
}

/// The address of a session's state. The state is lent to the device alone until the Job completes.
#[derive(Clone, Copy, Debug)]
pub struct SessionRef(NonNull<Hasher>);

impl SessionRef {
    /// Returns the address of a session's state, for code that drives a queue itself.
    ///
    /// # Safety
    ///
    /// The state lives, and nothing else touches it, until the completion of the Job that has this
    /// address.
    #[doc(hidden)]
    pub unsafe fn new(hasher: NonNull<Hasher>) -> SessionRef {
        SessionRef(hasher)
    }

    /// Returns the address.
    pub(super) fn hasher(self) -> NonNull<Hasher> {
        self.0
    }
}

// SAFETY: this is only an address; the session's lease decides which code may touch the state.
unsafe impl Send for SessionRef {}
// SAFETY: as above.
unsafe impl Sync for SessionRef {}
