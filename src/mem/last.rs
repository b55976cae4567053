//! What is left to do after the Leases of a job were given back.
//!
//! To give a count back runs no code of the application's. After a last count its element goes
//! home, and perhaps its Mmap ends: that wakes wakers and drops owners. A caller in whose place no
//! such code may run ends the Leases, and drops what they leave later.

use super::element::Count;
use super::operand::{Reading, Writing};
use super::remote_lease::LastPiece;
use crate::device::Keep;

/// What is left to do after a Lease was given back. Its drop does it, and may run code of the
/// application's: the drop of an owner, and wakers that wait for an element.
#[must_use = "its drop may run code of the application's"]
#[expect(dead_code, reason = "what is in it is there to be dropped")]
pub(crate) enum Last {
    /// The last count of an element.
    Element(LastCount),
    /// A count of a chain, which may be the last.
    Chain(Keep),
    /// The last count of a piece of an import.
    Remote(LastPiece),
}

/// Brings its element home when it is dropped.
pub(crate) struct LastCount(pub(super) Count);

impl Drop for LastCount {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.bring_home();
    }
}

impl Reading {
    /// Gives it back, and leaves to the caller what may run code of the application's.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<Last> {
        match self {
            Reading::Buf(lease) => lease.end(),
            Reading::Chain(lease) => lease.end(),
            Reading::Remote(lease) => lease.end(),
        }
    }
}

impl Writing {
    /// Gives it back, and leaves to the caller what may run code of the application's.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<Last> {
        match self {
            Writing::Buf(lease) => lease.end(),
            Writing::Chain(lease) => lease.end(),
            Writing::Remote(lease) => lease.end(),
        }
    }
}
