//! An event of the connection manager, copied out of librdmacm's memory.
#![expect(unsafe_code, reason = "reads what librdmacm has filled")]

use super::super::ffi::*;
use crate::error::Error;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum What {
    AddrResolved,
    RouteResolved,
    /// A peer requests a connection from a listener.
    Request,
    /// The peer has accepted. This side must make its queue pair ready, and then notify the peer.
    Response,
    Established,
    /// The last step has failed.
    Failed(rdma_cm_event_type),
    /// The request could not be sent to the peer, over iWARP. The status is the errno. This event
    /// does not come from the kernel.
    NotAsked,
    Disconnected,
    /// The adapter is being removed. The kernel waits until the id was destroyed.
    DeviceRemoved,
    /// The time limit of a connection that is being made has passed. This event does not come from
    /// the kernel.
    TimedOut,
    /// This side has ended the connection. This event does not come from the kernel.
    Ended,
    /// A message has come on a connection that is being made. This event comes from the adapter.
    CameFirst,
    Other(rdma_cm_event_type),
}

#[derive(Debug)]
pub(in super::super) struct CmEvent {
    pub(in super::super) what: What,
    /// The reason why a step has failed: a negative errno or, for a rejection, a reason code of the
    /// transport.
    pub(in super::super) status: i32,
    /// The data of the peer's application. The transport may have padded it with zeros.
    pub(in super::super) private_data: Vec<u8>,
    /// The number of concurrent reads and atomics that the peer requests, and that it answers.
    pub(in super::super) reads: [u8; 2],
}

impl CmEvent {
    pub(super) const TIMED_OUT: CmEvent = CmEvent::bare(What::TimedOut);
    pub(in super::super) const ENDED: CmEvent = CmEvent::bare(What::Ended);
    pub(in super::super) const DEVICE_REMOVED: CmEvent = CmEvent::bare(What::DeviceRemoved);
    pub(in super::super) const CAME_FIRST: CmEvent = CmEvent::bare(What::CameFirst);

    const fn bare(what: What) -> CmEvent {
        CmEvent {
            what,
            status: 0,
            private_data: Vec::new(),
            reads: [0; 2],
        }
    }

    pub(in super::super) fn not_asked(error: &Error) -> CmEvent {
        CmEvent {
            status: error.errno().unwrap_or(libc::EIO),
            ..CmEvent::bare(What::NotAsked)
        }
    }

    /// Returns true if the event ends a connection. `Failed` does so too: a peer that has not
    /// learned that this side is ready rejects the connection late.
    pub(in super::super) fn is_end(&self) -> bool {
        matches!(
            self.what,
            What::Disconnected | What::DeviceRemoved | What::Ended | What::Failed(_)
        )
    }

    /// Returns a copy of what the crate needs of an event.
    ///
    /// # Safety
    ///
    /// The event was read, and is not acknowledged yet.
    pub(super) unsafe fn of(event: &rdma_cm_event) -> CmEvent {
        let what = match event.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => What::AddrResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => What::RouteResolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => What::Request,
            RDMA_CM_EVENT_CONNECT_RESPONSE => What::Response,
            RDMA_CM_EVENT_ESTABLISHED => What::Established,
            failed @ (RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE
            | RDMA_CM_EVENT_REJECTED) => What::Failed(failed),
            RDMA_CM_EVENT_DISCONNECTED => What::Disconnected,
            RDMA_CM_EVENT_DEVICE_REMOVAL => What::DeviceRemoved,
            other => What::Other(other),
        };
        let conn = &event.conn;
        let says = matches!(
            what,
            What::Request
                | What::Response
                | What::Established
                | What::Failed(RDMA_CM_EVENT_REJECTED)
        );
        let len = usize::from(conn.private_data_len);
        let private_data = match says && len > 0 && !conn.private_data.is_null() {
            // SAFETY: events of these kinds have `len` bytes there, as long as they are not
            // acknowledged (rdma_get_cm_event(3)).
            true => unsafe { std::slice::from_raw_parts(conn.private_data.cast(), len) }.to_vec(),
            false => Vec::new(),
        };
        CmEvent {
            what,
            status: event.status,
            private_data,
            reads: [conn.responder_resources, conn.initiator_depth],
        }
    }
}
