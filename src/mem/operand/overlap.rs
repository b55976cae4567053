//! Whether the two sides of a job share memory.

use arrayvec::ArrayVec;

use super::model::sealed::Operand;
use crate::error::{ErrorKind, JobError, Reason};

/// Where a Buf begins and ends.
type Span = (usize, usize);

/// The addresses of an operand's Bufs that are not empty, in order. One is the rule, and takes no memory.
fn spans(operand: &impl Operand) -> (ArrayVec<Span, 1>, Vec<Span>) {
    let (mut one, mut many) = (ArrayVec::new(), Vec::new());
    operand.each(&mut |span| {
        if span.is_empty() {
            return;
        }
        if let Err(full) = one.try_push((span.start, span.end)) {
            many.push(full.element());
        }
    });
    if !many.is_empty() {
        many.extend(one.take());
        many.sort_unstable();
    }
    (one, many)
}

/// Whether two operands have a byte in common, of which one has no Leases that tell: a list is locked meanwhile, and only one may be.
pub(super) fn share(src: &impl Operand, dst: &impl Operand) -> bool {
    let mut shared = false;
    dst.each(&mut |to| {
        src.each(&mut |from| shared |= from.start.max(to.start) < from.end.min(to.end));
    });
    shared
}

/// The cause behind a refused Lease: a job that shares memory with itself is wrong, whoever else has it.
#[cold]
pub(super) fn explain(src: &impl Operand, dst: &impl Operand, error: JobError) -> JobError {
    if error.kind() != ErrorKind::InUse {
        return error;
    }
    let (one_from, many_from) = spans(src);
    let (one_to, many_to) = spans(dst);
    let from = if many_from.is_empty() {
        &one_from[..]
    } else {
        &many_from
    };
    let to = if many_to.is_empty() {
        &one_to[..]
    } else {
        &many_to
    };
    let twice = to.windows(2).any(|pair| pair[1].0 < pair[0].1);
    let below = |end: usize| from.iter().take_while(move |from| from.0 < end);
    let shared = to.iter().any(|to| below(to.1).any(|from| to.0 < from.1));
    if twice || shared {
        JobError::of(Reason::Overlap)
    } else {
        error
    }
}
