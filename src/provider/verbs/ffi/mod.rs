//! The C side: the types and values of libibverbs's ABI that the provider uses, and the library's
//! functions, found when the process runs.
//!
//! `abi` has the types, and `values` the constants: written down here, so that nothing is needed to
//! build them. `headers` has a C compiler compare all of them with the headers of rdma-core.

mod abi;
#[cfg(test)]
mod headers;
mod table;
mod values;

pub use abi::*;
pub use table::Table;
pub(super) use table::ops;
pub use values::*;
