//! Hashing by the CPU, for providers without hardware for it: does a [`ShaJob`] in parts.
//!
//! The state of a session changes once, at the end of a Job. A Job that fails, or is abandoned
//! midway, leaves the state as it was.
#![expect(unsafe_code, reason = "reads memory that was lent to a device")]

use std::fmt;

use sha1::Sha1;
use sha2::digest::{FixedOutput, Update};
use sha2::{Sha256, Sha512};

use super::read::read;
use super::segment::Segment;
use super::sha::ShaJob;
use crate::device::info::Algorithm;
use crate::device::memory::volatile_copy;

/// The state of a hash in the middle of a message.
///
/// It uses the CPU's SHA instructions if there are any (detected at run time), and portable code
/// otherwise.
#[derive(Clone, Default)]
pub struct Hasher(State);

#[derive(Clone, Default)]
enum State {
    #[default]
    Idle,
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Sha512),
}

/// The cost of hashing one byte: about the number of bytes that could be copied in the same time.
pub(super) const COST: usize = 8;

impl Hasher {
    /// Returns the state at the start of a message.
    pub fn new(algorithm: Algorithm) -> Hasher {
        Hasher(match algorithm {
            Algorithm::Sha1 => State::Sha1(Sha1::default()),
            Algorithm::Sha256 => State::Sha256(Sha256::default()),
            Algorithm::Sha512 => State::Sha512(Sha512::default()),
        })
    }

    /// Does a part of a Job: at most `most` bytes after the first `from`. Returns the number of
    /// bytes done. The Job has completed once `from` plus that number reaches [`ShaJob::len`]: the
    /// digest is written then, or the session updated.
    ///
    /// The caller does the parts of a Job in order, with one Hasher that no other Job uses in
    /// between. The Hasher's state before the part at 0 does not matter. A Job without data has one
    /// part, of 0 bytes.
    ///
    /// # Safety
    ///
    /// The Job was given to a [`Queue`](crate::device::Queue). During the call the Job's memory is
    /// valid and leased to the device, and no other party uses its session.
    pub unsafe fn work(&mut self, job: &ShaJob, from: usize, most: usize) -> usize {
        if from == 0 {
            *self = match job.session {
                // SAFETY: the session is lent to the device alone, as the caller promises.
                Some(session) => unsafe { session.hasher().as_ref() }.clone(),
                None => Hasher::new(job.algorithm),
            };
        }
        let left = job.len().saturating_sub(from);
        let part = most.min(left);
        let update = |bytes: &[u8]| self.update(bytes);
        // SAFETY: the memory is valid and leased, as the caller promises, and `shared` says whether
        // others may write it.
        unsafe { read(&job.src, job.shared, from, part, usize::MAX, update) };
        if part < left {
            return part;
        }
        let mut next = std::mem::take(self);
        if let Some(dst) = job.dst {
            // SAFETY: as the caller promises: the Segment is as long as a digest.
            unsafe { next.write(&dst) };
            next = Hasher::new(job.algorithm);
        }
        if let Some(session) = job.session {
            // SAFETY: as above.
            unsafe { session.hasher().write(next) };
        }
        part
    }

    fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Idle => {}
            State::Sha1(state) => state.update(bytes),
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    /// Ends the message, and writes its digest to `dst`.
    ///
    /// # Safety
    ///
    /// The Segment is valid to write.
    unsafe fn write(self, dst: &Segment) {
        match self.0 {
            State::Idle => {}
            // SAFETY: as the caller promises.
            State::Sha1(state) => unsafe { write(&state.finalize_fixed(), dst) },
            // SAFETY: as above.
            State::Sha256(state) => unsafe { write(&state.finalize_fixed(), dst) },
            // SAFETY: as above.
            State::Sha512(state) => unsafe { write(&state.finalize_fixed(), dst) },
        }
    }
}

/// # Safety
///
/// The Segment is valid to write.
unsafe fn write(digest: &[u8], dst: &Segment) {
    let len = digest.len().min(dst.len());
    // SAFETY: valid as the caller promises. It may be memory that others write meanwhile.
    unsafe { volatile_copy(digest.as_ptr(), dst.addr().as_ptr(), len) };
}

impl fmt::Debug for Hasher {
    /// Prints the algorithm only, since the hashed data may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Idle => "Hasher(idle)",
            State::Sha1(_) => "Hasher(SHA-1)",
            State::Sha256(_) => "Hasher(SHA-256)",
            State::Sha512(_) => "Hasher(SHA-512)",
        })
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use crate::device::Segments;
    use std::ptr::NonNull;

    use proptest::prelude::*;
    use sha2::Digest;

    fn segment(bytes: &mut [u8]) -> Segment {
        let len = bytes.len();
        // SAFETY: the test keeps the bytes, and leaves them alone while they are lent.
        unsafe { Segment::new(NonNull::from(bytes).cast(), len, 0) }
    }

    fn bare(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
        match algorithm {
            Algorithm::Sha1 => Sha1::digest(bytes).to_vec(),
            Algorithm::Sha256 => Sha256::digest(bytes).to_vec(),
            Algorithm::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    proptest! {
        #[test]
        fn parts_of_lists_hash_like_one_piece(
            which in 0..3usize,
            cuts in proptest::collection::vec(0usize..9000, 0..6),
            most in 1usize..6000,
            shared: bool,
        ) {
            let algorithm = Algorithm::ALL[which];
            let mut bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
            let expected = bare(algorithm, &bytes);
            let mut list = Vec::new();
            let mut rest = &mut bytes[..];
            for cut in cuts {
                let (piece, tail) = rest.split_at_mut(cut.min(rest.len()));
                list.push(segment(piece));
                rest = tail;
            }
            list.push(segment(rest));
            let mut out = vec![0xee_u8; algorithm.digest_len() + 1];
            let dst = segment(&mut out[..algorithm.digest_len()]);
            // SAFETY: the list outlives the Job.
            let mut job = ShaJob::new(algorithm, unsafe { Segments::list(&list) }, dst);
            job.shared = shared;
            let (mut hasher, mut at) = (Hasher::default(), 0);
            while at < job.len() {
                // SAFETY: the memory is this test's.
                at += unsafe { hasher.work(&job, at, most) };
            }
            prop_assert_eq!(at, 20_000);
            prop_assert_eq!(&out[..algorithm.digest_len()], &expected[..]);
            prop_assert_eq!(out[algorithm.digest_len()], 0xee, "no byte more");
        }
    }

    #[test]
    fn a_job_that_is_left_in_the_middle_leaves_its_session_as_it_was() {
        let mut session = Hasher::new(Algorithm::Sha256);
        let session = NonNull::from(&mut session);
        let (mut bytes, mut out) = ([7_u8; 192], [0_u8; 32]);
        let mut job = ShaJob::new(
            Algorithm::Sha256,
            Segments::one(segment(&mut bytes)),
            segment(&mut out),
        );
        // SAFETY: the state is this test's, and no Job is in flight after the call.
        job.session = Some(unsafe { crate::device::SessionRef::new(session) });
        let mut hasher = Hasher::default();
        // SAFETY: the memory is this test's.
        assert_eq!(unsafe { hasher.work(&job, 0, 64) }, 64);
        // SAFETY: as above.
        assert_eq!(unsafe { hasher.work(&job, 0, 191) }, 191);
        // SAFETY: as above.
        assert_eq!(unsafe { hasher.work(&job, 191, 9) }, 1);
        assert_eq!(out[..], bare(Algorithm::Sha256, &[7; 192])[..]);
        // Then the session begins anew.
        job.src = Segments::none();
        // SAFETY: as above.
        assert_eq!(unsafe { hasher.work(&job, 0, 9) }, 0);
        assert_eq!(out[..], bare(Algorithm::Sha256, &[])[..]);
    }
}
