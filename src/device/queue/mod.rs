//! Where jobs go in and completions come out: the queue, and the endpoints and sync events on it.
//!
//! Of the other rooms of `device` it imports `job` and `memory`.

mod endpoint;
mod event;
mod queue;
mod signal;
mod submitted;

pub use endpoint::{Endpoint, EndpointConfig, EndpointState, Mtu, RdmaJob, Verb};
pub use event::{EventBacking, EventConfig, EventCounter, EventJob, EventPort, EventWait, Unit};
pub use queue::{Armed, Queue, QueueConfig};
pub use signal::Signal;
pub use submitted::{Keep, Submitted};
