//! What a job keeps of a chain: the right to read or to write all of its pieces.
//!
//! The chain holds the leases of its pieces, which the first job takes and the last one gives back,
//! under the chain's lock. The chain also holds the pieces themselves, so giving back a lease there
//! returns no Buf to its pool. But it may have to notify futures that wait for the end of the
//! leases: their wakers are called once the chain is unlocked ([`AfterChain`]).
#![allow(unreachable_pub, reason = "named by the sealed traits of operand")]

use std::sync::Arc;

use super::chain::{BufChain, ChainInner, State, Users};
use crate::mem::element::{ReadLease, WriteLease};
use crate::sync::lock;

/// Work left to do after a job gave back its leases on a chain. Dropping the value notifies the
/// futures that wait for this, and may drop the last reference to the chain. Both may run the
/// application's code.
pub struct AfterChain {
    chain: Arc<ChainInner>,
    /// True if futures are to be notified.
    notifies: bool,
}

impl Drop for AfterChain {
    fn drop(&mut self) {
        if self.notifies {
            self.chain.run_after();
        }
    }
}

impl ChainInner {
    /// Notifies the futures that wait for leases that were given back. The caller must not hold the
    /// chain's lock.
    pub(super) fn run_after(&self) {
        loop {
            let next = lock(&self.state).after.pop();
            if next.is_none() {
                return;
            }
        }
    }
}

impl State {
    /// Gives the leases of all pieces back. The caller calls `run_after` once the chain is
    /// unlocked.
    pub(super) fn end_leases(&mut self) {
        let after = self.reads.drain(..).filter_map(ReadLease::end);
        self.after.extend(after);
        let after = self.writes.drain(..).flatten().filter_map(WriteLease::end);
        self.after.extend(after);
    }
}

/// A job's right to read or to write a chain. `None` once it was given back.
pub struct ChainLease<const WRITES: bool>(Option<Arc<ChainInner>>);

pub type ChainRead = ChainLease<false>;
pub type ChainWrite = ChainLease<true>;

impl<const WRITES: bool> ChainLease<WRITES> {
    pub(super) fn new(chain: &Arc<ChainInner>) -> ChainLease<WRITES> {
        ChainLease(Some(Arc::clone(chain)))
    }

    /// Gives the leases back. The caller drops the result where the application's code may run.
    pub(in crate::mem) fn end(mut self) -> Option<AfterChain> {
        self.give_back()
    }

    fn give_back(&mut self) -> Option<AfterChain> {
        let chain = self.0.take()?;
        let mut state = lock(&chain.state);
        match &mut state.users {
            Users::Read { jobs, .. } if *jobs > 1 => *jobs -= 1,
            users => {
                *users = Users::Free;
                state.end_leases();
            }
        }
        let notifies = !state.after.is_empty();
        drop(state);
        Some(AfterChain { chain, notifies })
    }
}

impl<const WRITES: bool> Drop for ChainLease<WRITES> {
    fn drop(&mut self) {
        drop(self.give_back());
    }
}

impl ChainRead {
    /// Returns true if a peer or another process may write a piece of the chain meanwhile.
    pub(in crate::mem) fn is_shared(&self) -> bool {
        let Some(chain) = &self.0 else { return false };
        let state = lock(&chain.state);
        // A piece that takes no lease is memory that another process may write.
        state.unleased > 0 || state.reads.iter().any(|lease| lease.is_shared())
    }
}

impl ChainWrite {
    pub(in crate::mem) fn is_of(&self, chain: &BufChain) -> bool {
        self.0.as_ref().is_some_and(|of| Arc::ptr_eq(of, &chain.0))
    }

    /// Appends `by` bytes to the data of the pieces, filling one piece after the other. Imported
    /// pieces take their share, but have no data that grows.
    pub(in crate::mem) fn grow(&self, mut by: usize) {
        let Some(chain) = &self.0 else { return };
        let state = lock(&chain.state);
        for (piece, lease) in state.pieces.iter().zip(&state.writes) {
            let part = by.min(piece.free());
            if let Some(lease) = lease {
                lease.grow(part);
            }
            by -= part;
        }
    }
}
