//! The connection manager of the kernel, by librdmacm: it resolves addresses and routes, carries
//! the requests and answers by which two sides connect, and tells either side of the other's end.
//!
//! A process has one event channel, which the watcher reads ([channel]); an [id] is one connection
//! or one listener on it. Every event is acknowledged as soon as it was read, since
//! `rdma_destroy_id` waits for that. What may block, destroying above all, is done by
//! threads of its own ([`step`]), and never by a thread of the application's (ADR 0047).
//!
//! These files import `ffi` and `adapter`, and `id` imports `channel`.

mod channel;
mod event;
mod id;

pub(super) use channel::{
    Cm, Handler, channel_fd, deliver_overdue, read_events, step, wait_for_peer,
};
pub(super) use event::{CmEvent, What};
pub(super) use id::{CmId, Offer, is_of, peer_gid};
