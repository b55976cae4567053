//! The ports of a queue: its endpoints and its sync events, and which of them have something to do.
//!
//! A port that has something to do is *ready*: its number is in a [set](ready_set), in [flags] that
//! any thread sets. The reaper of the queue polls the ready ports. It also polls ports that may
//! have work without being ready: the endpoints that most recently got messages, and the sync
//! events that are [watched]. One epoll descriptor collects the wake-ups from outside: the sockets
//! of peers, and the [timer].
//!
//! These files import one another downwards,
//! `ports > {pollable, rests, timer, watched > ready_set > flags}`; the trait `Pollable` hides what
//! a port does. From `rdma` they import its reaper, which has the doorbell pages and the endpoints
//! that are polled. Idle ports return memory ([rests]).

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
