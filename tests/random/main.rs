//! Tests random programs against models, and random loads for which every byte is accounted.
//!
//! `PROPTEST_CASES` and `TOKIO_DOCA_STRESS_SECONDS` make the tests longer. A failure prints the
//! seed.

mod exports;
mod graphs;
mod leases;
mod programs;
mod rdma;
mod refusals;
mod stress;
mod sync_events;
