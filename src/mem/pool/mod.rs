//! Where Bufs come from: pools, arrays and inventories.
//!
//! Pools and arrays claim a range of their Mmap and cut it into elements of one size (`cut`).
//! Inventories make a Buf on any range. Of the other modules of `mem`, this one imports `buf` and
//! those that `buf` imports.

mod array;
mod cut;
mod inventory;
mod pool;

pub use array::{ArrayTarget, BufArray, BufArrayBuilder};
pub use inventory::BufInventory;
pub(crate) use pool::BufWait;
pub use pool::{Alloc, BufPool, BufPoolBuilder, PoolStats};
