//! A graph and its builder.
//!
//! A plan never changes, and all instances share it. This folder imports `node`, and no other
//! folder of `graph`.

mod builder;
mod dot;
mod plan;

pub use builder::GraphBuilder;
pub use plan::Graph;
pub(super) use plan::{NodeWork, Plan, PlanNode};
