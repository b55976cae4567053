//! Random programs against models, and random loads whose every byte is accounted for.
//!
//! `PROPTEST_CASES` and `TOKIO_DOCA_STRESS_SECONDS` make them long; a failure prints the seed.

mod exports;
mod graphs;
mod leases;
mod programs;
mod rdma;
mod refusals;
mod stress;
mod sync_events;
