//! The C side: the types and values of the ABIs of libibverbs and librdmacm that the provider uses,
//! and the libraries' functions, which are found when the process runs.
//!
//! `abi` declares the types, and `values` the constants, so that a build needs no headers. In a
//! test, `headers` has a C compiler compare both with the headers of rdma-core.

mod abi;
#[cfg(test)]
mod headers;
mod table;
mod values;

pub use abi::*;
pub(super) use table::ops;
pub use table::{CmTable, Table};
pub use values::*;
