//! How a job is made from memory that is lent to a device. The module `mem` takes the leases; each
//! kind of job implements [`OnLent`].
#![expect(unsafe_code, reason = "a job names memory that others lend")]

use super::segment::Segments;
use super::sha::SessionRef;
use crate::error::JobError;

/// The memory that is lent to a job while the leases are held. `src` and `dst` are disjoint.
pub(crate) struct Lent {
    /// The memory that the job may read.
    pub(crate) src: Segments,
    /// The memory that the job may write.
    pub(crate) dst: Segments,
    /// The number of bytes in `src`.
    pub(crate) len: usize,
    /// True if other parties may write `src` while the job runs.
    pub(crate) shared: bool,
    /// The session that the job continues, if there is one.
    pub(crate) session: Option<SessionRef>,
}

/// A kind of job that is made from lent memory.
///
/// # Safety
///
/// The implementor promises:
///
/// - The job names only memory of its [`Lent`]. It reads `src` and writes `dst`, and reaches no
///   byte outside of either. If it [fills](OnLent::fills), it writes at most `len` bytes; otherwise
///   it writes at most the capacity of `dst`.
/// - If `shared` is true, it reads `src` as memory that other parties may write.
/// - If it takes [imports](OnLent::IMPORTS), only a device that checks their keys reaches that
///   memory.
///
/// `mem` promises that the two sides are disjoint; that `dst` has a capacity of at least `len`
/// bytes if the job fills; and that no piece of a list is imported unless the job takes imports.
pub(crate) unsafe trait OnLent: Sized {
    /// The caller's parameters for the job.
    type Order: Copy;

    /// True if a list may have pieces of imported memory. The device checks that each such piece is
    /// still exported.
    const IMPORTS: bool = false;

    /// Returns true if the job writes all of the source to the destination. A source that does not
    /// fit is then refused.
    fn fills(order: Self::Order) -> bool;

    /// Makes the job, or refuses the memory.
    fn on(order: Self::Order, lent: Lent) -> Result<Self, JobError>;
}
