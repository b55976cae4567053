//! Queues, which accept jobs and report completions; the endpoints and sync events on a queue; and
//! connections of endpoints by IP address.
//!
//! This module imports `job` and `memory` of `device`.

mod endpoint;
mod event;
mod manager;
mod queue;
mod signal;
mod submit;
mod transport;

pub use endpoint::{Dialling, Endpoint, EndpointConfig, EndpointState, Mtu, Receive};
pub use event::{EventBacking, EventConfig, EventCounter, EventPort, EventWait, Processor};
pub(crate) use manager::CmRefused;
pub(super) use manager::no_manager;
pub use manager::{CmAnswer, CmArrivals, CmListening, CmOffer, CmOptions};
pub use queue::{Armed, Queue, QueueConfig};
pub use signal::Signal;
pub use submit::{KeepAlive, Submit, Submitted};
pub use transport::{Path, Transport};
