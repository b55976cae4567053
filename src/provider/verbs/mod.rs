//! Real adapters, through rdma-core's libibverbs (feature `verbs`).

#[doc(hidden)]
pub mod ffi;
