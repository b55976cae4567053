//! What `.ci/fuzz` calls.

pub use super::fabric::fuzzing::*;
pub use super::rdma::fuzzing::*;
