//! Nodes that a run polls, as it polls futures: receives, and waits for sync events. The nodes
//! whose work is a job lie in the folders of their contexts.
//!
//! This folder imports `node` and `plan`, and no other folder of `graph`.

mod receive;
mod sync_event;

pub(super) use receive::Receive;
pub(super) use sync_event::Waiting;
pub use sync_event::{EventAddNode, EventGetNode, EventSetNode, EventWaitData, EventWaitNode};
