//! The counts of a table of receives.

use super::RecvTable;
use crate::sync::atomic::Ordering;
use crate::sync::lock;

impl RecvTable {
    /// Returns the number of receives that were ever posted, and the number of entries in use.
    pub(crate) fn posted_and_in_use(&self) -> (u64, u64) {
        let table = lock(&self.table);
        let in_use = self.size() - table.free.len();
        (table.posted - self.first, in_use as u64)
    }

    /// Returns the number of receives that were dropped and wait to be adopted.
    pub(crate) fn dropped(&self) -> u64 {
        self.orphans.load(Ordering::SeqCst) as u64
    }
}
