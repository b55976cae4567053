//! The C side: the types and values of the ABIs of libibverbs and librdmacm that the provider uses,
//! and the libraries' functions, found when the process runs.
//!
//! `abi` has the types, and `values` the constants: written down here, so that nothing is needed to
//! build them. `headers` has a C compiler compare all of them with the headers of rdma-core.

mod abi;
#[cfg(test)]
mod headers;
mod table;
mod values;

pub use abi::*;
pub(super) use table::ops;
pub use table::{CmTable, Table};
pub use values::*;
