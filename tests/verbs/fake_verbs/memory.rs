//! Access checks for registered memory, and the copies between its pieces.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_doca::verbs::ffi::IBV_WR_ATOMIC_FETCH_AND_ADD;

use super::fabric::Fabric;
use super::pair::{Send, Sge};

/// Pieces of memory that were checked: they are registered, and stay so while the fabric's lock is
/// held.
pub(super) struct Pieces(Vec<(usize, usize)>);

impl Pieces {
    pub(super) fn one(addr: u64, len: u64) -> Pieces {
        Pieces(vec![(addr as usize, len as usize)])
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Pieces {
        Pieces(vec![(bytes.as_ptr().expose_provenance(), bytes.len())])
    }
}

impl Fabric {
    /// Returns the local pieces of a request; `None` if a piece is not registered in this
    /// protection domain, or does not permit this access.
    pub(super) fn gathered(&self, pd: usize, sges: &[Sge], flag: u32) -> Option<Pieces> {
        let piece = |sge: &Sge| {
            let mr = self.mrs.get(self.by_lkey.get(&sge.lkey)?)?;
            let inside = mr.pd == pd && mr.covers(sge.addr, sge.len, flag);
            inside.then_some((sge.addr as usize, sge.len as usize))
        };
        let pieces = sges.iter().filter(|sge| sge.len > 0).map(piece);
        pieces.collect::<Option<Vec<_>>>().map(Pieces)
    }

    /// Returns true if a peer may access memory in this way by an rkey.
    pub(super) fn is_granted(&self, pd: usize, rkey: u32, addr: u64, len: u64, flag: u32) -> bool {
        let mr = self.by_rkey.get(&rkey).and_then(|mr| self.mrs.get(mr));
        mr.is_some_and(|mr| mr.pd == pd && mr.covers(addr, len, flag))
    }
}

impl super::fabric::Mr {
    fn covers(&self, addr: u64, len: u64, flag: u32) -> bool {
        let start = addr.checked_sub(self.addr);
        let end = start.and_then(|start| start.checked_add(len));
        end.is_some_and(|end| end <= self.len) && self.access & flag == flag
    }
}

/// Copies all bytes of `from` to `to`.
pub(super) fn copy(from: &Pieces, to: &Pieces) {
    let (mut sources, mut targets) = (from.0.iter().copied(), to.0.iter().copied());
    let (mut source, mut target) = (sources.next(), targets.next());
    while let (Some((from, have)), Some((to, room))) = (source, target) {
        let part = have.min(room);
        if part > 0 {
            let from: *const u8 = ptr::with_exposed_provenance(from);
            let to: *mut u8 = ptr::with_exposed_provenance_mut(to);
            // SAFETY: both lie in registered memory, or in a copy of what was posted inline:
            // `Pieces` are checked.
            unsafe { ptr::copy(from, to, part) };
        }
        source = if part == have {
            sources.next()
        } else {
            Some((from + part, have - part))
        };
        target = if part == room {
            targets.next()
        } else {
            Some((to + part, room - part))
        };
    }
}

/// Changes eight bytes of the peer's memory, and returns their old value.
pub(super) fn atomic(send: &Send) -> u64 {
    let place: *const AtomicU64 = ptr::with_exposed_provenance(send.remote as usize);
    // SAFETY: eight aligned bytes of registered memory, which was checked before.
    let word = unsafe { &*place };
    if send.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
        return word.fetch_add(send.compare_add, Ordering::SeqCst);
    }
    let swapped = word.compare_exchange(
        send.compare_add,
        send.swap,
        Ordering::SeqCst,
        Ordering::SeqCst,
    );
    swapped.unwrap_or_else(|was| was)
}
