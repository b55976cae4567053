//! What a table of receives says of itself in numbers.

use super::RecvTable;
use crate::sync::atomic::Ordering;
use crate::sync::lock;

impl RecvTable {
    /// Returns how many receives were posted, ever, and how many places are taken.
    pub(crate) fn posted_and_in_use(&self) -> (u64, u64) {
        let table = lock(&self.table);
        let in_use = self.size() - table.free.len();
        (table.posted - self.first, in_use as u64)
    }

    /// Returns how many receives were dropped, and wait for another that takes them over.
    pub(crate) fn dropped(&self) -> u64 {
        self.orphans.load(Ordering::SeqCst) as u64
    }
}
