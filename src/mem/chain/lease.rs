//! What a job keeps of a chain: the right to read or to write all of its pieces.
//!
//! The chain holds the leases of its pieces, which the first job takes and the last one gives back,
//! under the chain's lock. The chain also holds the pieces themselves, so giving back a lease there
//! brings no element home, and wakes no waker.
#![allow(unreachable_pub, reason = "named by the sealed traits of operand")]

use std::sync::Arc;

use super::chain::{BufChain, Inner, Users};
use crate::device::KeepAlive;
use crate::sync::lock;

/// A job's right to read a chain.
pub struct ChainRead(pub(super) Arc<Inner>);

impl ChainRead {
    /// Returns whether others may write one of its pieces meanwhile.
    pub(in crate::mem) fn is_shared(&self) -> bool {
        let state = lock(&self.0.state);
        // A piece that takes no lease is memory that others write.
        state.unleased > 0 || state.reads.iter().any(|lease| lease.is_shared())
    }

    /// Gives the leases back, and leaves the chain, which may be the last, to the caller.
    pub(in crate::mem) fn end(self) -> KeepAlive {
        Arc::clone(&self.0) as KeepAlive
    }
}

impl Drop for ChainRead {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        match state.users {
            Users::Read { jobs, holder } if jobs > 1 => {
                state.users = Users::Read {
                    jobs: jobs - 1,
                    holder,
                }
            }
            _ => {
                state.reads.clear();
                state.users = Users::Free;
            }
        }
    }
}

/// A job's right to write a chain.
pub struct ChainWrite(pub(super) Arc<Inner>);

impl ChainWrite {
    pub(in crate::mem) fn is_of(&self, chain: &BufChain) -> bool {
        Arc::ptr_eq(&self.0, &chain.0)
    }

    /// Appends `by` bytes, filling one piece after the other. Imported memory has no rooms.
    pub(in crate::mem) fn grow(&self, mut by: usize) {
        let state = lock(&self.0.state);
        for (piece, lease) in state.pieces.iter().zip(&state.writes) {
            let part = by.min(piece.room());
            if let Some(lease) = lease {
                lease.grow(part);
            }
            by -= part;
        }
    }

    /// Gives the leases back, and leaves the chain, which may be the last, to the caller.
    pub(in crate::mem) fn end(self) -> KeepAlive {
        Arc::clone(&self.0) as KeepAlive
    }
}

impl Drop for ChainWrite {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.writes.clear();
        state.users = Users::Free;
    }
}
