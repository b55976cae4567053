//! Hashes, and the sins against them.

use tokio_doca::device::contract::{Hasher, Segment, Segments, SessionRef, ShaJob};

use super::Sin;

/// Does a Job; `len` is what it shall answer, or a byte less. `before` is the session of the Job
/// before it.
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
    // SAFETY: the list outlives the Job below.
    job.src = unsafe { Segments::list(&list) };
    for _ in 0..1 + usize::from(sin == Sin::HashesTwice && job.dst.is_none()) {
        // SAFETY: as the caller promises.
        unsafe { Hasher::default().work(&job, 0, usize::MAX) };
    }
    if let (Sin::WrongDigest, Some(dst)) = (sin, job.dst) {
        // SAFETY: as the caller promises.
        let byte = unsafe { dst.addr().read() };
        // SAFETY: as above.
        unsafe { dst.addr().write(byte ^ 0x10) };
    }
}

/// Leaves out some bytes of the first piece.
fn skip(list: &mut [Segment], bytes: usize) {
    list[0] = list[0].part(bytes, list[0].len() - bytes);
}
