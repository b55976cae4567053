//! The connection manager of the kernel, by librdmacm. It resolves addresses and routes, carries
//! the requests and answers by which two sides connect, and notifies each side when the other side
//! ends the connection.
//!
//! A process has one event channel, which the watcher reads ([channel]); an [id] is a connection or
//! a listener on that channel. Every event is acknowledged as soon as it was read, since
//! `rdma_destroy_id` waits for that. Calls that may block, above all those that destroy ids, run on
//! threads of this module ([`step`]), and never on a thread of the application (ADR 0047).
//!
//! These files import `ffi` and `adapter`. `channel` imports `event`, and `channel` and `id` import
//! each other.

mod channel;
mod event;
mod id;

pub(super) use channel::{
    Cm, Handler, channel_fd, deliver_overdue, read_events, step, wait_for_peer,
};
pub(super) use event::{CmEvent, What};
pub(super) use id::{CmId, Offer, is_of, peer_gid};
