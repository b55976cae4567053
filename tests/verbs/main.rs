//! The verbs provider over a fake libibverbs, in which each call can fail and each event can come.

mod adapters;
mod addresses;
mod attempts;
mod batches;
mod cm;
mod contract;
mod duties;
mod errors;
mod fake;
mod fake_verbs;
mod memory;
mod ports;
mod program;
mod shared;
mod streams;
mod without_rdma;
mod workq;
