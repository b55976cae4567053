//! The ports of a queue: its endpoints and its sync events, and which of them have something to do.
//!
//! A port that has something to do is *ready*: it stands in a [set](ready_set) of numbers, in
//! [flags] that any thread sets. The reaper of the queue polls those, besides what tells nobody:
//! the endpoints that it polls anyway, and the sync events that are [watched]. What rings from
//! outside (sockets of peers, and the [timer]) stands in one epoll descriptor.
//!
//! These files import one another downwards, `ports > {pollable, rests, timer, watched >
//! ready_set > flags}`; what a port does is behind the trait `Pollable`. Of `rdma` they import its
//! reaper, which has the doorbell pages and the endpoints that are polled. An idle port gives
//! memory back ([rests]).

mod flags;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod pollable;
mod ports;
mod ready_set;
mod rests;
mod timer;
mod watched;

pub(super) use pollable::{Pollable, Progress};
pub(super) use ports::{POLLS, Ports};
pub(super) use ready_set::ReadySet;
