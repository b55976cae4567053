//! What endpoints send to each other to connect: in a ticket, in a request, and in a reply.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::super::fabric::{self, Id, Payload, fields_of};
use super::doorbell::RINGS;
use super::messages::MAX_RECEIVES;
use crate::device::Access;

/// The identity of an endpoint, as its ticket states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) instance: Id,
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// A hash of the ticket's key.
    pub(super) proof: Id,
    /// The access that the endpoint grants its peer.
    pub(super) permissions: Access,
}

/// The peer of a connection in tests.
#[cfg(test)]
pub(super) const NOBODY: Identity = Identity {
    instance: [0; 16],
    slot: 0,
    generation: 0,
    proof: [0; 16],
    permissions: Access::empty(),
};

/// The description that an endpoint sends of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct EndpointInfo {
    /// The number of the endpoint's queue; never 0.
    pub(super) queue: U64,
    /// The size of the endpoint's receive queue: a power of two.
    pub(super) receives: U32,
    /// The access that the endpoint grants its peer, as the bits of an [`Access`].
    pub(super) permissions: U32,
}

/// A client's request: its description, its identity by its own ticket, and the doorbell page that
/// it has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ConnectRequest {
    pub(super) info: EndpointInfo,
    pub(super) slot: U32,
    pub(super) generation: U32,
    pub(super) proof: Id,
    /// The number of the latest doorbell page between the two queues; 0 if there is none.
    pub(super) doorbell: U32,
    /// The number of a message ring of that page that the client has kept and would reuse; 0 if
    /// there is none.
    pub(super) ring: U32,
}

/// The server's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ConnectReply {
    /// The number of the doorbell page; never 0. If it differs from the request's `doorbell`, the
    /// page is new.
    pub(super) doorbell: U64,
    /// The index of the message ring in the page.
    pub(super) index: U32,
    /// The number of the message ring. If it is the same as in the request, no descriptors are
    /// sent; otherwise the ring is new.
    pub(super) ring: U32,
}

/// Returns a proof that an endpoint knows the key of a ticket. It does not reveal the key.
pub(super) fn proof(key: &Id) -> Id {
    fabric::proof_of(key, b"tokio-doca endpoint")
}

impl EndpointInfo {
    /// Returns the access that the endpoint grants its peer, and `None` for flags that no endpoint
    /// has.
    fn permissions(&self) -> Option<Access> {
        let rdma = Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC;
        Access::from_bits(self.permissions.get()).filter(|access| rdma.contains(*access))
    }

    fn is_right(&self) -> bool {
        let receives = self.receives.get();
        self.queue != 0
            && receives.is_power_of_two()
            && receives <= MAX_RECEIVES
            && self.permissions().is_some()
    }

    /// Returns `None` if the payload is no valid description of an endpoint.
    pub(super) fn parse(payload: &Payload) -> Option<EndpointInfo> {
        fields_of(payload).filter(EndpointInfo::is_right)
    }

    /// Returns the identity of the endpoint that has this slot, generation and proof.
    pub(super) fn identity(&self, instance: Id, slot: (u32, u32), proof: Id) -> Identity {
        Identity {
            instance,
            slot: slot.0,
            generation: slot.1,
            proof,
            permissions: self.permissions().unwrap_or(Access::empty()),
        }
    }
}

impl ConnectRequest {
    /// Returns `None` if the payload is no valid request.
    pub(super) fn parse(payload: &Payload) -> Option<ConnectRequest> {
        fields_of(payload).filter(|request: &ConnectRequest| request.info.is_right())
    }

    /// Returns the identity of the client.
    pub(super) fn identity(&self, instance: Id) -> Identity {
        let slot = (self.slot.get(), self.generation.get());
        self.info.identity(instance, slot, self.proof)
    }
}

impl ConnectReply {
    /// Returns `None` if the payload is no valid reply.
    pub(super) fn parse(payload: &Payload) -> Option<ConnectReply> {
        fields_of(payload).filter(|it: &ConnectReply| it.doorbell != 0 && it.index.get() < RINGS)
    }
}
