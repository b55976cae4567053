//! Instances and their runs.
//!
//! An instance is a level: a graph, and the progress of its run (`progress`), with a body for each
//! node. The body of a sub-graph is another level. `engine` advances a level, and a run (`running`)
//! is the future that calls the engine. This folder may import all other folders of `graph`, and
//! none of them imports it.

mod bits;
mod board;
mod body;
mod engine;
mod error;
mod instance;
mod level;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod progress;
mod running;
mod view;

pub use error::RunError;
pub use instance::Instance;
pub use running::{OwnedRun, Run};
