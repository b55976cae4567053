//! One hash, as the device sees it: plain data.
#![expect(
    unsafe_code,
    reason = "a session's state goes across threads by address"
)]

use std::ptr::NonNull;

use super::hasher::Hasher;
use super::segment::{Segment, Segments};
use crate::device::info::Algorithm;

/// One piece of hashing.
///
/// | `session` | `dst` | what it is | its result |
/// |---|---|---|---|
/// | none | some | a whole message, which may be empty | bytes of the digest |
/// | some | none | a part of a message, whole blocks or nothing | bytes that were hashed |
/// | some | some | the last part, which may be empty; the session begins anew | bytes of the digest |
///
/// A provider that computes on the CPU does it by [`Hasher::work`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[doc(alias = "doca_sha_job")]
#[doc(alias = "doca_sha_partial_job")]
pub struct ShaJob {
    /// Which hash.
    pub algorithm: Algorithm,
    /// Others may write the source meanwhile: it is to be read once, byte by byte, and believed nothing.
    pub shared: bool,
    /// What is read, all of it. Where there is no data it may be [`Segments::none`], or an empty
    /// piece.
    pub src: Segments,
    /// Where the digest goes: as many bytes as it has.
    pub dst: Option<Segment>,
    /// What was hashed before.
    pub session: Option<SessionRef>,
}

impl ShaJob {
    /// A whole message, in memory that nobody else writes.
    pub fn new(algorithm: Algorithm, src: Segments, dst: Segment) -> ShaJob {
        ShaJob {
            algorithm,
            shared: false,
            src,
            dst: Some(dst),
            session: None,
        }
    }

    /// How many bytes are hashed.
    #[allow(clippy::len_without_is_empty)] // nobody asks
    pub fn len(&self) -> usize {
        match self.src.as_one() {
            Some(segment) => segment.len(),
            None => self
                .src
                .as_slice()
                .iter()
                .map(|segment| segment.len())
                .sum(),
        }
    }

    /// What it answers when it is done.
    pub fn answer(&self) -> u64 {
        match self.dst {
            Some(_) => self.algorithm.digest_len() as u64,
            None => self.len() as u64,
        }
    }
}

/// What a session has hashed so far. Like a Segment it is an address: it is lent to the device, for it alone, until the
/// completion of the Job.
#[derive(Clone, Copy, Debug)]
pub struct SessionRef(NonNull<Hasher>);

impl SessionRef {
    /// The address of a session's state.
    pub(crate) fn new(hasher: NonNull<Hasher>) -> SessionRef {
        SessionRef(hasher)
    }

    /// The address.
    pub(super) fn hasher(self) -> NonNull<Hasher> {
        self.0
    }
}

// SAFETY: it is an address; who may touch the state is decided by the session's Lease.
unsafe impl Send for SessionRef {}
// SAFETY: as above.
unsafe impl Sync for SessionRef {}
