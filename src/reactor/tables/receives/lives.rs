//! The lives of an endpoint (one end of an Rdma's connection). Each reset begins a new life, and
//! drops the messages of earlier lives that no operation has taken.
//!
//! A receive belongs to the life in which the device takes it. While another thread resets the
//! endpoint, the thread that posts does not know which life that is. So a message that is collected
//! before the reset has finished belongs to the previous life, whenever its receive was posted.

use super::{Phase, Receipt, RecvTable};
use crate::error::{JobError, Reason};
use crate::sync::atomic::Ordering;
use crate::sync::lock;

/// The `life` of a receive whose message belongs to a life that has ended. No life has this number.
pub(super) const OVER: u32 = 0;
pub(super) const FIRST: u32 = 1;

/// A reset of the endpoint in progress. Dropping this value finishes the reset.
pub(in crate::reactor) struct Resetting<'a>(&'a RecvTable);

impl Drop for Resetting<'_> {
    fn drop(&mut self) {
        lock(&self.0.table).resetting -= 1;
        self.0.forget_messages();
    }
}

impl RecvTable {
    /// Returns the number of the life that the endpoint is in, or is about to begin.
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::SeqCst)
    }

    /// Updates the life of a receive that the device has taken, if the endpoint was reset
    /// meanwhile. The operation calls this. If the device took the receive after the reset, the
    /// receive belongs to the new life. If the device took it before, the reset has flushed the
    /// receive, unless a message had come already.
    #[cold]
    pub(in crate::reactor) fn posted_anew(&self, receipt: Receipt) {
        let mut table = lock(&self.table);
        let life = self.life();
        let slot = &mut table.slots[receipt.index as usize];
        if slot.life != OVER {
            slot.life = life;
        }
    }

    /// Begins a new life of the endpoint. Drops the messages that no operation has taken, and those
    /// that come until the result is dropped. The caller resets the endpoint afterwards.
    pub(in crate::reactor) fn reset(&self) -> Resetting<'_> {
        let mut table = lock(&self.table);
        table.resetting += 1;
        // When the number wraps around it skips `OVER`.
        let next = self.life().checked_add(1).unwrap_or(FIRST);
        self.life.store(next, Ordering::SeqCst);
        for slot in &mut table.slots {
            if slot.phase == Phase::Done {
                slot.life = OVER;
            }
        }
        drop(table);
        self.forget_messages();
        Resetting(self)
    }

    /// Drops the messages of earlier lives.
    ///
    /// A message in the memory of a dropped receive is dropped even if another operation has
    /// adopted that receive and was not polled since: such an operation would keep the memory until
    /// it is polled. The adopting operation fails with `Reset`.
    fn forget_messages(&self) {
        let mut from = 0;
        loop {
            let mut table = lock(&self.table);
            let life = self.life();
            let stale = table.slots[from..].iter().position(|slot| {
                slot.phase == Phase::Done && slot.life != life && (slot.adopted || !slot.owned)
            });
            let Some(stale) = stale else { return };
            let index = from + stale;
            from = index + 1;
            let slot = &mut table.slots[index];
            let lease = if slot.owned {
                slot.outcome = Err(JobError::flushed(JobError::of(Reason::Reset)));
                slot.buf.lease.take()
            } else {
                self.unorphan(&mut table, index as u32);
                self.free(&mut table, index as u32).lease
            };
            drop(table);
            drop(lease);
        }
    }
}
