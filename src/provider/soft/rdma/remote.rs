//! One-sided operations, which read and write memory that was imported from the peer's process.
#![expect(unsafe_code, reason = "reaches imported memory")]

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::copy;
use super::super::fabric::{Import, words_of};
use super::payload::Identity;
use crate::device::{Access, RdmaJob, Segment, Verb};
use crate::error::{JobError, Reason};

/// The result of a step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The job is done, with this result.
    Done(u64),
    /// A part of the job is done. The rest could continue at once.
    More,
    /// The peer has no receive posted, or this side's bytes of longer messages fill the message
    /// ring.
    Waits,
}

/// Returns the access that the peer's Rdma must permit.
fn needed(verb: &Verb) -> Access {
    match verb {
        Verb::Read => Access::RDMA_READ,
        Verb::CompareSwap { .. } | Verb::FetchAdd(_) => Access::RDMA_ATOMIC,
        Verb::Write(_) | Verb::Send(_) => Access::RDMA_WRITE,
    }
}

/// Checks that the peer permits an operation.
///
/// # Safety
///
/// The key is that of an import that is kept alive.
#[inline(always)]
unsafe fn check(
    verb: &Verb,
    remote: &Segment,
    permitted: Access,
    peer: &[u64; 2],
) -> Result<(), JobError> {
    if !permitted.contains(needed(verb)) || remote.key() == 0 {
        return Err(JobError::of(Reason::RemoteAccess));
    }
    // SAFETY: as the caller promises.
    let import = unsafe { Import::from_key(remote.key()) };
    if !import.is_of(peer) {
        return Err(JobError::of(Reason::RemoteAccess));
    }
    import.check()
}

/// Does a whole job. Returns `None` if the peer does not permit it, or does not export the memory
/// any more, or if the address of an atomic is not a multiple of eight.
///
/// # Safety
///
/// The job's memory is valid and leased.
#[inline(always)]
pub(super) unsafe fn finish(job: &RdmaJob, permitted: Access, peer: &[u64; 2]) -> Option<u64> {
    let remote = job.remote.as_ref()?;
    // SAFETY: as the caller promises; the crate keeps the imports of jobs.
    unsafe { check(&job.verb, remote, permitted, peer) }.ok()?;
    match &job.verb {
        // SAFETY: both sides have `len` bytes, are valid and disjoint, as the caller promises.
        Verb::Write(_) | Verb::Send(_) => unsafe {
            copy::gather(&job.local, 0, remote, 0, job.len)
        },
        // SAFETY: as above.
        Verb::Read => unsafe { copy::scatter(remote, 0, &job.local, 0, job.len) },
        // SAFETY: as the caller promises.
        atomic => return unsafe { operate(atomic, remote) },
    }
    Some(job.len as u64)
}

/// Does a part of `job`, of which `*copied` bytes are done. Copies at most `most` bytes.
///
/// # Errors
///
/// The error with which the job fails.
///
/// # Safety
///
/// The job's memory is valid and leased.
pub(super) unsafe fn step(
    job: &RdmaJob,
    peer: &Identity,
    copied: &mut usize,
    most: usize,
) -> Result<Step, JobError> {
    let Some(remote) = &job.remote else {
        return Ok(Step::Done(0));
    };
    // SAFETY: as the caller promises; the crate keeps the imports of jobs.
    unsafe {
        check(
            &job.verb,
            remote,
            peer.permissions,
            &words_of(&peer.instance),
        )
    }?;
    let (at, len) = (*copied, most.min(job.len - *copied));
    match &job.verb {
        // SAFETY: both sides have `len` bytes from `at` on, are valid and disjoint, as the caller
        // promises.
        Verb::Write(_) | Verb::Send(_) => unsafe { copy::gather(&job.local, at, remote, at, len) },
        // SAFETY: as above.
        Verb::Read => unsafe { copy::scatter(remote, at, &job.local, at, len) },
        atomic => {
            // SAFETY: as the caller promises.
            let before = unsafe { operate(atomic, remote) };
            // The mapping begins at a page, so this is also the remainder of the range's offset.
            let odd = remote.addr().addr().get() % 8;
            let misaligned = JobError::new(Reason::Misaligned, odd as u64, 8);
            return before.map(Step::Done).ok_or(misaligned);
        }
    }
    *copied += len;
    Ok(match *copied < job.len {
        true => Step::More,
        false => Step::Done(job.len as u64),
    })
}

/// Does an atomic on the first eight bytes, and returns their former value. Returns `None` if the
/// address is not a multiple of eight.
///
/// # Safety
///
/// The first eight bytes are valid to be read and written.
#[inline]
unsafe fn operate(verb: &Verb, remote: &Segment) -> Option<u64> {
    let at = remote.addr().as_ptr().cast::<u64>();
    if remote.len() < 8 || !at.is_aligned() {
        return None;
    }
    // SAFETY: valid as the caller promises, and aligned. This process accesses the bytes only by
    // atomics, or by the opaque routine.
    let word = unsafe { AtomicU64::from_ptr(at) };
    Some(match *verb {
        Verb::CompareSwap { compare, swap } => word
            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|before| before),
        Verb::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
        Verb::Send(_) | Verb::Write(_) | Verb::Read => return None,
    })
}
