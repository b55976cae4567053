//! The entry points for the fuzzer in `.ci/fuzz`.

pub use super::fabric::fuzzing::*;
pub use super::rdma::fuzzing::*;
