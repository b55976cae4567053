//! How two endpoints connect to each other, and come to share a message ring.
//!
//! Each side has the other's ticket, and may connect at any time. Between processes one side is the
//! *server*: the side that listens, if one does ([`Role`]), or else the side with the smaller
//! instance. The server makes a doorbell page and a message ring when the *client* asks for them.
//! The client may ask before or after the server has connected itself; if it asks before, the
//! client is a *visitor*. Within a process ([`super::connect_local`]) the side that connects first
//! makes both, and is the visitor of the other side.
//!
//! ```text
//!   client                                        server
//!   connect: asks -- info, identity, proof ------> is it the expected client, if there is one?
//!            <------ doorbell page, ring, number - makes the message ring; joins if connected
//!   joins                                         connect: is the visitor the ticket's? joins
//! ```
//!
//! If the client has not come yet when the server connects, the server probes the client's own
//! service, which refuses the probe. The reason of the refusal shows whether the ticket is stale:
//! both sides compare slot, generation and key.
#![expect(unsafe_code, reason = "promises who reaches shared memory")]

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::super::fabric::{
    self, Client, Grant, Mapping, Process, Published, Refusal, Service, Ticket,
};
use super::connect_page::Offer;
use super::connection::Connection;
use super::dial::Parties;
use super::doorbell::DoorbellPage;
use super::messages::{Memory, Presence, Shape};
use super::payload::{ConnectReply, ConnectRequest, EndpointInfo, Identity, proof};
use super::state::{EndpointInner, Shared};
use crate::device::EndpointState;
use crate::error::{Error, ErrorKind, Result};

/// Decides which of the two sides contacts the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Between processes, the side with the larger instance contacts the other. This side connects
    /// to whatever process the blob names, since the application got the blob from a peer that it
    /// trusts.
    ByInstance,
    /// This side contacts the peer. It connects only to the process that made the blob.
    Dials,
    /// The peer contacts this side, which trusts nothing in the blob before the peer has come.
    Listens,
}

pub(super) fn fail<T>(kind: ErrorKind, text: impl Into<String>) -> Result<T> {
    Err(Error::new(kind, None, text.into()))
}

/// Returns the error of a call during which the Rdma was dropped.
pub(super) fn gone<T>() -> Result<T> {
    fail(ErrorKind::BadState, "it was dropped")
}

/// Returns a number for a doorbell page that this process has not used before.
pub(super) fn new_doorbell() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn memory(mapping: Mapping, len: usize) -> Arc<Memory> {
    // SAFETY: only doorbell pages and message rings access such mappings.
    Arc::new(unsafe { Memory::new(mapping, len) })
}

impl Shared {
    pub(super) fn info(&self) -> EndpointInfo {
        EndpointInfo {
            queue: self.ports.number.into(),
            receives: self.config.recv_queue_size.into(),
            permissions: self.config.permissions.bits().into(),
        }
    }

    /// Publishes the endpoint, and returns the ticket for the peer.
    pub(super) fn publish(self: &Arc<Self>) -> Result<Published> {
        let this: Weak<Shared> = Arc::downgrade(self);
        let info = fabric::payload(&self.info());
        fabric::publish(&fabric::ENDPOINT, info, this as Weak<dyn Service>)
    }

    /// Connects to the endpoint that `blob` names, or makes this endpoint expect it. Does not wait
    /// for the peer to connect.
    pub(super) fn meet(self: &Arc<Self>, blob: &[u8], role: Role, deadline: Instant) -> Result<()> {
        let met = self.connect(blob, role, deadline);
        self.notify();
        met
    }

    fn connect(self: &Arc<Self>, blob: &[u8], role: Role, deadline: Instant) -> Result<()> {
        let mut parties = self.parties(blob)?;
        let Parties {
            ticket, own, peer, ..
        } = &mut parties;
        let (own, peer) = (*own, *peer);
        if role == Role::Listens {
            ticket.is_of_this_host()?;
            return self.expect(own, peer, role, None);
        }
        match ticket.local() {
            Some(service) => {
                let service = service?.as_any().downcast::<Shared>();
                let Ok(other) = service else {
                    return fail(
                        ErrorKind::InvalidValue,
                        "the blob is no software endpoint's",
                    );
                };
                self.pair(&other, own, peer, parties.info)
            }
            None if role == Role::ByInstance && ticket.is_ours_to_serve()? => {
                let known =
                    |inner: &EndpointInner| inner.visitor.as_ref().is_some_and(|v| v.0 == peer);
                let process = match known(&self.inner()) {
                    true => None,
                    false => ticket.probe(deadline)?,
                };
                self.expect(own, peer, role, process)
            }
            None => {
                if role == Role::Dials {
                    ticket.lead_to_its_process()?;
                }
                let asks = self.asks(&parties)?;
                let granted = parties.ticket.connect(&asks.request, deadline)?;
                self.join_server(&parties, asks, granted)
            }
        }
    }

    /// Parses a blob, and returns the identities of the peer and of this side.
    pub(super) fn parties(self: &Arc<Self>, blob: &[u8]) -> Result<Parties> {
        let ticket = Ticket::parse(&fabric::ENDPOINT, blob)?;
        let info = ticket.info(EndpointInfo::parse)?;
        let slot = (ticket.slot, ticket.generation);
        let peer = info.identity(ticket.instance, slot, proof(&ticket.key));
        // Without its own ticket, this side could not prove its identity.
        let own = self.own_identity()?;
        // The generations may differ: an endpoint that has gone may have used the same slot.
        let [mine, theirs] = [&own, &peer].map(|side| (side.instance, side.slot, side.generation));
        if mine == theirs {
            return fail(
                ErrorKind::InvalidValue,
                "the blob is this Rdma's own: an Rdma is connected to another one",
            );
        }
        Ok(Parties {
            ticket,
            info,
            own,
            peer,
        })
    }

    fn own_identity(self: &Arc<Self>) -> Result<Identity> {
        let mut inner = self.inner();
        if inner.retired {
            return gone();
        }
        let ticket = &self.published(&mut inner)?.ticket;
        Ok(Identity {
            instance: fabric::instance()?,
            slot: ticket.slot,
            generation: ticket.generation,
            proof: proof(&ticket.key),
            permissions: self.config.permissions,
        })
    }

    /// Checks that the endpoint can be connected, and was not reset since `own` was read.
    pub(super) fn check_init(inner: &EndpointInner, own: &Identity) -> Result<()> {
        let text = match inner.state {
            _ if inner.retired => return gone(),
            EndpointState::Init if !inner.is(own) => "it was reset meanwhile".to_owned(),
            EndpointState::Init if inner.expected.is_some() => {
                "it waits for a peer already: reset it first".to_owned()
            }
            EndpointState::Init => return Ok(()),
            EndpointState::Connected => "it is connected already: reset it first".to_owned(),
            EndpointState::Error(cause) => format!("it has failed ({cause}): reset it first"),
        };
        fail(ErrorKind::BadState, text)
    }

    /// Makes this endpoint, the server, expect the client, which may have come already. A side that
    /// listens is connected once the client has come. If the client's process is known and ends
    /// first, the endpoint fails.
    fn expect(
        &self,
        own: Identity,
        peer: Identity,
        role: Role,
        process: Option<Arc<Process>>,
    ) -> Result<()> {
        let mut inner = self.inner();
        Self::check_init(&inner, &own)?;
        inner.awaited = process.clone();
        inner.listens = role == Role::Listens;
        match inner.visitor.take() {
            Some((visitor, connection)) if visitor == peer => {
                self.connected(&mut inner, peer);
                self.join(&mut inner, connection);
            }
            other => {
                // This visitor is another process that has the ticket. The expected peer replaces
                // it.
                if let Some((_, connection)) = other {
                    connection.leave(Presence::Closed, self.number);
                }
                match role {
                    Role::Listens => inner.expected = Some(peer),
                    _ => self.connected(&mut inner, peer),
                }
            }
        }
        drop(inner);
        if let Some(process) = process {
            process.on_end(Weak::clone(&self.me) as _);
        }
        Ok(())
    }

    /// Admits a client, unless this endpoint expects another one or is connected.
    fn admit(&self, visitor: Identity, connection: Connection) -> Result<(), Refusal> {
        let mut inner = self.inner();
        let refusal = match (&inner.state, inner.expected) {
            (EndpointState::Error(_), _) => Some(Refusal::UNKNOWN),
            _ if inner.retired => Some(Refusal::UNKNOWN),
            _ if inner.connection.is_some() => Some(Refusal::BUSY),
            (_, Some(expected)) if expected != visitor => Some(Refusal::UNEXPECTED),
            _ => None,
        };
        if let Some(refusal) = refusal {
            drop(inner);
            connection.leave(Presence::Closed, self.number);
            return Err(refusal);
        }
        let before = self.receive_visitor(&mut inner, visitor, connection);
        drop(inner);
        if let Some(before) = before {
            before.leave(Presence::Closed, self.number);
        }
        Ok(())
    }

    /// Takes the connection of a client: the expected one, or a visitor. A new visitor replaces an
    /// earlier one, whose connection is returned.
    pub(super) fn receive_visitor(
        &self,
        inner: &mut EndpointInner,
        visitor: Identity,
        connection: Connection,
    ) -> Option<Connection> {
        if inner.expected.is_some() {
            if inner.state == EndpointState::Init {
                self.connected(inner, visitor);
            }
            self.join(inner, connection);
            return None;
        }
        let before = inner.visitor.replace((visitor, connection));
        before.map(|(_, connection)| connection)
    }

    /// Removes the client that uses this message ring, since the client did not get its reply.
    fn forget_client(&self, doorbell: &Arc<DoorbellPage>, index: u32) {
        let mut inner = self.inner();
        let is_its = |its: &Connection| Arc::ptr_eq(&its.doorbell, doorbell) && its.index == index;
        let visitor = inner.visitor.take_if(|(_, visitor)| is_its(visitor));
        let connection = inner.connection.take_if(|connection| is_its(connection));
        // If jobs were submitted meanwhile, the endpoint stays connected: the jobs wait for a peer
        // that may come again, as after `connect`.
        if connection.is_some() && inner.listens && inner.sends.is_empty() {
            self.set_state(&mut inner, EndpointState::Init);
            // A poll notifies the crate of the change, since this thread must not run the
            // application's code.
            self.ports.mark_ready(self.number);
        }
        drop(inner);
        let connection = connection.map(|connection| *connection);
        let visitor = visitor.map(|(_, connection)| connection);
        for connection in connection.into_iter().chain(visitor) {
            connection.leave(Presence::Closed, self.number);
        }
    }
}

impl Service for Shared {
    fn accept(&self, client: &Client<'_>) -> Result<Grant, Refusal> {
        let request = ConnectRequest::parse(&client.payload).ok_or(Refusal::UNEXPECTED)?;
        let visitor = request.identity(client.instance);
        let shape = Shape {
            host: self.config.recv_queue_size,
            guest: request.info.receives.get(),
        };
        let expected = self.inner().expected;
        if expected.is_some_and(|expected| expected != visitor) {
            return Err(Refusal::UNEXPECTED);
        }
        // If the client cannot watch this process in another way, it finds none of the pages of
        // this process again: the client takes each connection for one to another process.
        let known = Some(request.doorbell.get()).filter(|_| !client.stays.get());
        let process = client.process()?;
        let queue = (client.instance, request.info.queue.get());
        let Offer {
            number,
            doorbell,
            fresh,
        } = self.offer_page(process, queue, known)?;
        let offered = self.offer_ring(&doorbell, request.ring.get(), shape)?;
        let (index, ring) = (offered.index, offered.number);
        self.ports
            .reaper()
            .doorbells
            .keep(queue, number, &doorbell, None);
        let place = (index, ring);
        let connection = Connection::new(offered.ring, Arc::clone(&doorbell), place, visitor);
        self.admit(visitor, connection)?;
        // If the client has the page already, the message ring's descriptor is sent instead of the
        // page's.
        let descriptors =
            (offered.fresh).map(|ring| [fresh.as_ref().unwrap_or(&ring), &ring].map(Arc::clone));
        let reply = ConnectReply {
            doorbell: number.into(),
            index: index.into(),
            ring: ring.into(),
        };
        let keep = fresh.map(|_| self.keep_bell(&doorbell));
        let endpoint = Weak::clone(&self.me);
        let unsent = move || {
            if let Some(endpoint) = endpoint.upgrade() {
                endpoint.forget_client(&doorbell, index);
            }
        };
        Ok(Grant {
            payload: fabric::payload(&reply),
            descriptors,
            keep,
            unsent: Some(Box::new(unsent)),
        })
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
