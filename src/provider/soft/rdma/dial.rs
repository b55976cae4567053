//! The client's side of a connection to another process: the request to the server, and joining the
//! page and the ring that the server offers.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::super::fabric::{self, Arena, Begun, Granted, Id, Payload, Ticket};
use super::connect::{fail, memory};
use super::connection::Connection;
use super::doorbell::DoorbellPage;
use super::messages::{MessageRing, Presence, Shape, Side};
use super::payload::{ConnectReply, ConnectRequest, EndpointInfo, Identity};
use super::state::Shared;
use crate::device::Dialling;
use crate::error::{ErrorKind, Result};

/// The identities and descriptions of both sides of a connection in the making.
pub(super) struct Parties {
    pub(super) ticket: Ticket,
    pub(super) info: EndpointInfo,
    pub(super) own: Identity,
    pub(super) peer: Identity,
}

/// What this side asks the server for, and what it keeps until the reply.
pub(super) struct Asks {
    queue: (Id, u64),
    shape: Shape,
    /// The latest doorbell page of the two queues. It is kept until the reply arrives, even if its
    /// last message ring is closed meanwhile.
    known: Option<(u64, Arc<DoorbellPage>)>,
    /// A message ring of that page that was kept, and its number.
    offered: Option<(u32, MessageRing)>,
    pub(super) request: Payload,
}

/// A request that was sent to the server, and awaits its reply.
pub(super) struct Asked {
    endpoint: Arc<Shared>,
    parties: Parties,
    asks: Asks,
    begun: Begun,
}

impl AsFd for Asked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.begun.as_fd()
    }
}

impl Dialling for Asked {
    fn complete(self: Box<Self>) -> Result<()> {
        let Asked {
            endpoint,
            parties,
            asks,
            begun,
        } = *self;
        let granted = parties.ticket.complete_connect(begun)?;
        let joined = endpoint.join_server(&parties, asks, granted);
        endpoint.notify();
        joined
    }
}

impl Shared {
    /// Begins to dial without blocking, on a connection to the peer's process that was kept.
    /// Returns `None` if there is no such connection, or if the blob is refused or of this process.
    pub(super) fn begin_dial(self: &Arc<Self>, blob: &[u8]) -> Option<Asked> {
        let mut parties = self.parties(blob).ok()?;
        if parties.ticket.local().is_some() {
            return None;
        }
        parties.ticket.lead_to_its_process().ok()?;
        let mut asks = None;
        let begun = parties.ticket.begin_connect(|| {
            let asks = asks.insert(self.asks(&parties)?);
            Ok((asks.request, asks.offered.is_none()))
        })?;
        Some(Asked {
            endpoint: Arc::clone(self),
            asks: asks?,
            parties,
            begun,
        })
    }

    /// Returns the request to the server.
    pub(super) fn asks(&self, parties: &Parties) -> Result<Asks> {
        let Parties {
            info, own, peer, ..
        } = parties;
        Self::check_init(&self.inner(), own)?;
        let queue = (peer.instance, info.queue.get());
        let known = self.ports.reaper().doorbells.latest_joined(queue);
        let shape = Shape {
            host: info.receives.get(),
            guest: self.config.recv_queue_size,
        };
        let offered = known.as_ref().and_then(|(_, page)| page.offer(shape));
        let kept = offered.as_ref().map_or(0, |(number, _)| *number);
        // A page whose number does not fit into the request is not found again: the server makes
        // another page.
        let page = known.as_ref().map_or(0, |(number, _)| *number);
        let request = ConnectRequest {
            info: self.info(),
            slot: own.slot.into(),
            generation: own.generation.into(),
            proof: own.proof,
            doorbell: u32::try_from(page).unwrap_or(0).into(),
            ring: kept.into(),
        };
        Ok(Asks {
            queue,
            shape,
            known,
            offered,
            request: fabric::payload(&request),
        })
    }

    /// Joins the page and the ring that the server has granted.
    pub(super) fn join_server(
        &self,
        parties: &Parties,
        asks: Asks,
        granted: Granted,
    ) -> Result<()> {
        let Parties {
            ticket, own, peer, ..
        } = parties;
        let Some(reply) = ConnectReply::parse(&granted.payload) else {
            return fail(
                ErrorKind::ConnectionAborted,
                "the peer answers what no endpoint does",
            );
        };
        let (number, index) = (reply.doorbell.get(), reply.index.get());
        let ring = reply.ring.get();
        let Asks {
            queue,
            shape,
            known,
            offered,
            ..
        } = asks;
        let is_its = |doorbell: &Arc<DoorbellPage>| doorbell.is_of(&granted.process);
        let known = known
            .filter(|(known, doorbell)| *known == number && is_its(doorbell))
            .map(|(_, doorbell)| doorbell);
        let messages = match offered {
            // The number alone is not enough: a ring of another page or process may have the same
            // one.
            Some((kept, messages)) if known.is_some() && kept == ring => messages,
            _ => self.map_ring(ticket, &granted, shape)?,
        };
        let known = known.or_else(|| self.find_page(queue, number, &granted.process, Side::Guest));
        let doorbell = match known {
            Some(doorbell) => {
                granted.process.keep_line(granted.line);
                doorbell
            }
            None => self.join_page(ticket, granted)?,
        };
        doorbell.join((index, ring), self.number);
        self.ports
            .reaper()
            .doorbells
            .keep(queue, number, &doorbell, None);
        let connection = Connection::new(messages, doorbell, (index, ring), *peer);
        let mut inner = self.inner();
        if let Err(error) = Self::check_init(&inner, own) {
            connection.leave(Presence::Closed, self.number);
            return Err(error);
        }
        self.connected(&mut inner, *peer);
        self.join(&mut inner, connection);
        Ok(())
    }

    /// Maps, as the client, the message ring that the server has made.
    fn map_ring(&self, ticket: &Ticket, granted: &Granted, shape: Shape) -> Result<MessageRing> {
        let Some(len) = shape.len() else {
            return fail(
                ErrorKind::InvalidValue,
                "the peer has more receives than can be",
            );
        };
        let [_, messages] = granted.both(ticket)?;
        let messages = memory(Arena::received(messages, len)?, len);
        Ok(MessageRing::new(messages, shape, Side::Guest))
    }
}
