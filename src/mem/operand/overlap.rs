//! Finds out whether the two sides of a job share memory.

use super::model::Reach;
use super::model::sealed::Operand;
use crate::error::{ErrorKind, JobError, Reason};
use crate::mem::buf::Span;

/// Returns true if two operands have a byte in common, or if a destination has a byte twice. Leases
/// rule that out, so operands that are both leased are not compared. The caller holds the leases of
/// both operands.
///
/// `single` is true if each operand is one piece. Such operands are compared only if at least one
/// of them is imported.
#[inline(always)]
pub(super) fn share(src: &impl Operand, dst: &impl Operand, single: bool) -> bool {
    if !single {
        return lists_share(src, dst);
    }
    let imported = src.reach() == Reach::Remote || dst.reach() == Reach::Remote;
    let meet = || matches!((src.span(), dst.span()), (Some(from), Some(to)) if from.meets(&to));
    imported && !(src.is_leased() && dst.is_leased()) && meet()
}

/// Does the work of [`share`] if at least one side is a list.
///
/// A list is locked while its pieces are compared. Here two lists may be locked, first the
/// destination. This cannot deadlock: a thread that has locked one of them and waits for the other
/// would have to hold the write lease of the list that this thread reads, or a lease of the list
/// that this thread writes.
#[cold]
#[inline(never)]
fn lists_share(src: &impl Operand, dst: &impl Operand) -> bool {
    if src.is_leased() && dst.is_leased() {
        return false;
    }
    let mut shared = false;
    dst.with_spans(&mut |to| {
        shared = Span::any_twice(to);
        if !shared {
            src.with_spans(&mut |from| shared = Span::any_shared(from, to));
        }
    });
    shared
}

/// Returns the cause behind a refused lease. If the two sides of the job overlap, that is the
/// error, even if another job uses the memory too.
#[cold]
pub(super) fn explain(src: &impl Operand, dst: &impl Operand, error: JobError) -> JobError {
    if error.kind() != ErrorKind::InUse {
        return error;
    }
    let shares = |to: &[Span]| {
        let mut shared = Span::any_twice(to);
        if !shared {
            src.with_spans(&mut |from| shared = Span::any_shared(from, to));
        }
        shared
    };
    let shared = match dst.span() {
        Some(to) => shares(&[to]),
        None => {
            // Both operands may be the same list, since they are not leased here. Its spans are
            // copied first, so that the list is locked once at a time.
            let mut to = Vec::new();
            dst.with_spans(&mut |spans| to.extend_from_slice(spans));
            shares(&to)
        }
    };
    match shared {
        true => JobError::of(Reason::Overlap),
        false => error,
    }
}
