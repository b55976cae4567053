//! An endpoint's reliable connection:
//!
//! - [rc] is a queue pair, from INIT to RTS.
//! - [claims] is the claim of the caller that connects the queue pair.
//! - [posting] posts Jobs, receives and probes to the adapter.
//! - [outcome] applies completions to the connection.
//! - [pooled] holds messages that wait until they are taken.
//! - [sinks] registers the memory that peers write when they answer reads.
//! - [events] and [timeouts] handle events and time limits.
//! - [ending] ends the connection.
//!
//! [watched] lists the connections of a device for the watcher, which receives the device's events;
//! [local_endpoints] lists the endpoints of this process. These files import `ffi`, `adapter`, `cm`
//! and `transport`; all but `local_endpoints`, `timeouts` and `sinks` import `rc`.

mod claims;
mod ending;
mod events;
mod local_endpoints;
mod outcome;
mod pooled;
mod posting;
mod rc;
mod route;
mod sinks;
mod timeouts;
mod watched;

pub(super) use rc::{Dying, FailedConnections, RcConnection, RcInner};
pub(super) use watched::EventTargets;
