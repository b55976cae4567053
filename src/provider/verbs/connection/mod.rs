//! An endpoint's reliable connection: a queue pair ([rc]) from INIT to RTS, who connects it
//! ([claims]), what is posted to it ([posting]), what its completions say ([outcome]), messages
//! that wait to be taken ([pooled]), memory that peers write when they answer reads ([sinks]), what
//! it does about events and the time ([events], [timeouts]), and how it ends ([ending]).
//!
//! [watched] lists the connections of a device for the thread that hears of its events,
//! [local_endpoints] the endpoints of this process. These files import `ffi`, `adapter`, `cm` and
//! `transport`; all but `local_endpoints`, `timeouts` and `sinks` import `rc`.

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
