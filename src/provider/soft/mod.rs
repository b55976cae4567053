//! A complete device in software: it runs anywhere, and is the default.
//!
//! Copies up to 64 KiB, and hashes up to 8 KiB, run inside the submission, since nothing is faster
//! at these sizes. Larger ones go to an engine thread, so that the task's thread stays free. The
//! engine thread is the device, not the library: it is named and counted, spins for a short time
//! after its last job, and then sleeps without any wake-up.
//!
//! ```text
//!   submit ----> ring of jobs of the queue ----> engine: copies ----> ring of completions ----> reap
//! ```
//!
//! | folder | what lives there | what it imports of the others |
//! |---|---|---|
//! | this one | the provider, its devices and queues; faults, counters, copies | all |
//! | `topology` | which devices there are | nothing |
//! | `fabric` | how processes meet and map each other's memory | nothing |
//! | `engine` | threads that do what is not done inline | faults, copies, what queues share |
//! | `ports` | which endpoints and sync events have something to do | `rdma`, faults, counters |
//! | `rdma` | endpoints, and remote operations between them | `fabric`, `ports`, faults, copies |
//! | `event` | sync events | `fabric`, `ports`, faults |

mod bell;
mod copy;
mod counter;
mod device;
mod event;
mod fabric;
mod fault;
mod limits;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod options;
mod ports;
mod provider;
mod queue;
mod rdma;
mod script;
mod shared;
mod topology;

mod engine;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub use fabric::set_socket_path;
pub use fault::{Fault, Faults, Hold};
pub use limits::Limits;
pub use provider::{Soft, SoftBuilder};
pub use topology::{Function, Port, Topology, View};
