//! Hashes, and the sins in computing them.

use tokio_doca::device::contract::{Hasher, Segment, Segments, SessionRef, ShaJob};

use super::Sin;

/// Executes a job. `len` is the job's correct result, or one byte less. `before` is the session of
/// the previous job.
///
/// # Safety
///
/// The memory and the sessions are valid, and lent to the device.
pub(super) unsafe fn execute(job: &ShaJob, sin: Sin, len: usize, before: Option<SessionRef>) {
    let mut job = *job;
    let mut list = job.src.as_slice().to_vec();
    let short = job.answer() as usize - len;
    match &mut job.dst {
        Some(dst) => *dst = dst.part(0, dst.len() - short),
        None => skip(&mut list, short),
    }
    match sin {
        Sin::SkipsAtABoundary if list.len() > 1 => skip(&mut list[1..], 1),
        Sin::ForgetsTheSession if job.dst.is_some() => job.session = None,
        Sin::MixesSessions => job.session = job.session.map(|own| before.unwrap_or(own)),
        _ => {}
    }
    // SAFETY: the list outlives `job`.
    job.src = unsafe { Segments::list(&list) };
    for _ in 0..1 + usize::from(sin == Sin::HashesTwice && job.dst.is_none()) {
        // SAFETY: the caller guarantees that the memory and the sessions are valid.
        unsafe { Hasher::default().work(&job, 0, usize::MAX) };
    }
    if let (Sin::WrongDigest, Some(dst)) = (sin, job.dst) {
        // SAFETY: the caller guarantees that the memory is valid.
        let byte = unsafe { dst.addr().read() };
        // SAFETY: as above.
        unsafe { dst.addr().write(byte ^ 0x10) };
    }
}

/// Skips the first `bytes` bytes of the first piece.
fn skip(list: &mut [Segment], bytes: usize) {
    list[0] = list[0].part(bytes, list[0].len() - bytes);
}
