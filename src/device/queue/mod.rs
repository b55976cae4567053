//! Where jobs go in and completions come out: the queue, and the endpoints and sync events on it.
//!
//! Of the other rooms of `device` it imports `job` and `memory`.

mod endpoint;
mod event;
mod queue;
mod signal;
mod submit;
mod transport;

pub use endpoint::{Endpoint, EndpointConfig, EndpointState, Mtu, Receive};
pub use event::{EventBacking, EventConfig, EventCounter, EventPort, EventWait, Processor};
pub use queue::{Armed, Queue, QueueConfig};
pub use signal::Signal;
pub use submit::{KeepAlive, Submit, Submitted};
pub use transport::{Path, Transport};
