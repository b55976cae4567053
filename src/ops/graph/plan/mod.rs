//! A graph: how it is built, and what it is once it was.
//!
//! A plan never changes, and all instances share it. Of the other rooms of `graph` this one imports
//! `node`.

mod builder;
mod dot;
mod plan;

pub use builder::GraphBuilder;
pub use plan::Graph;
pub(super) use plan::{NodeWork, Plan, PlanNode};
