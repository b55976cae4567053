//! The nodes of contexts that are polled, as futures are: receives, and the waits of sync events.
//! The nodes whose work is a job lie in the folders of their contexts.
//!
//! Of the other rooms of `graph` this one imports `node` and `plan`.

mod receive;
mod sync_event;

pub(super) use receive::Receive;
pub(super) use sync_event::Waiting;
pub use sync_event::{EventAddNode, EventGetNode, EventSetNode, EventWaitData, EventWaitNode};
