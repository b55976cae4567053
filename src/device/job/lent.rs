//! How a job is made of memory that is lent to a device: `mem` takes the leases, and each kind of
//! job says here what it does with them.
#![expect(unsafe_code, reason = "a job names memory that others lend")]

use super::segment::Segments;
use super::sha::SessionRef;
use crate::error::JobError;

/// Memory that is lent to a job, while its leases are held. The two sides are disjoint.
pub(crate) struct Lent {
    /// What the job may read.
    pub(crate) src: Segments,
    /// What the job may write.
    pub(crate) dst: Segments,
    /// The number of bytes in `src`.
    pub(crate) len: usize,
    /// True if others may write `src` meanwhile.
    pub(crate) shared: bool,
    /// The session that the job continues with.
    pub(crate) session: Option<SessionRef>,
}

/// A job that is made of the memory that is lent to it.
///
/// # Safety
///
/// The implementor promises:
///
/// - The job names no memory but that of its [`Lent`]. It reads `src` and writes `dst`, and reaches
///   no byte outside of either. If it [fills](OnLent::fills), it writes at most `len` bytes;
///   otherwise it writes at most the capacity of `dst`.
/// - It reads bytes that are `shared` as memory that others write.
/// - If it takes [imports](OnLent::IMPORTS), only a device that checks their keys reaches them.
///
/// `mem` promises that the two sides are disjoint; that `dst` has a capacity of at least `len`
/// bytes if the job fills; and that no piece of a list is imported unless the job takes imports.
pub(crate) unsafe trait OnLent: Sized {
    /// What the caller wants to be done.
    type Order: Copy;

    /// True if a list may have pieces of imported memory. The device checks of each such piece
    /// whether it is still exported.
    const IMPORTS: bool = false;

    /// Returns true if all of the source goes to the destination: a source that does not fit is
    /// refused.
    fn fills(order: Self::Order) -> bool;

    /// Makes the job, or refuses the memory.
    fn on(order: Self::Order, lent: Lent) -> Result<Self, JobError>;
}
