//! How two endpoints come to share a message ring.
//!
//! Each side has the other's blob, and connects when it likes. Between processes the one with the
//! smaller instance is the *host*: it makes a doorbell page and a message ring when the *guest* asks
//! for them, which may be before it has connected itself (the guest is a *visitor* then) or after.
//! Within a process ([`super::connect_local`]) whoever connects first makes both, and is the
//! other's visitor.
//!
//! ```text
//!   guest                                            host
//!   connect: asks ---- info, own name, proof ------> is it the one that I was connected to, if I was?
//!            <-------- doorbell page, ring, number --- message ring is made, and joined if I was
//!   joins                                            connect: is my visitor the one of the blob? joins
//! ```
//!
//! A host whose guest has not come yet knocks at the guest's, and is refused. The refusal says
//! whether the blob is stale: slot, generation and key are compared by both sides.
#![expect(unsafe_code, reason = "promises who reaches shared memory")]

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::super::fabric::{
    self, Arena, Guest, Hello, Host, Id, Invitation, Invited, Mapping, Process, Refused, Welcome,
};
use super::connection::Connection;
use super::doorbell::{Bell, DoorbellPage, PAGE};
use super::hello::{ConnectReply, ConnectRequest, EndpointInfo, Identity, proof};
use super::messages::{Memory, MessageRing, Presence, Shape, Side};
use super::state::{EndpointInner, Shared};
use crate::device::EndpointState;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{Guarded, hang_up};

pub(super) fn fail<T>(kind: ErrorKind, text: impl Into<String>) -> Result<T> {
    Err(Error::new(kind, None, text.into()))
}

/// The Rdma was dropped while this went on.
pub(super) fn gone<T>() -> Result<T> {
    fail(ErrorKind::BadState, "it was dropped")
}

/// A number of a doorbell page that this process has not had.
pub(super) fn new_doorbell() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn memory(mapping: Mapping, len: usize) -> Arc<Memory> {
    // SAFETY: doorbell pages and message rings alone reach such mappings.
    Arc::new(unsafe { Memory::new(mapping, len) })
}

/// The doorbell page that a guest gets.
struct Offer {
    number: u64,
    doorbell: Arc<DoorbellPage>,
    /// The descriptor of a page that the guest does not have yet.
    fresh: Option<Arc<OwnedFd>>,
}

impl Shared {
    fn info(&self) -> EndpointInfo {
        EndpointInfo {
            queue: self.ports.number,
            receives: self.config.recv_queue_size,
            permissions: self.config.permissions,
            mtu: self.config.mtu,
        }
    }

    /// A blob for the peer.
    pub(super) fn invite(self: &Arc<Self>) -> Result<Invited> {
        let this: Weak<Shared> = Arc::downgrade(self);
        fabric::invite(
            &fabric::ENDPOINT,
            &self.info().format(),
            this as Weak<dyn Host>,
        )
    }

    /// Connects to who made the blob.
    pub(super) fn connect(self: &Arc<Self>, blob: &[u8], deadline: Instant) -> Result<()> {
        let invitation = Invitation::parse(&fabric::ENDPOINT, blob)?;
        let Some(info) = EndpointInfo::parse(&invitation.hello) else {
            return fail(
                ErrorKind::InvalidValue,
                "the blob is no endpoint's: it was forged",
            );
        };
        let peer = Identity {
            instance: invitation.instance,
            slot: invitation.slot,
            generation: invitation.generation,
            proof: proof(&invitation.key),
            permissions: info.permissions,
        };
        // Without a blob of its own it could not say who it is.
        let own = self.own_identity()?;
        if own.instance == peer.instance && own.slot == peer.slot {
            return fail(
                ErrorKind::InvalidValue,
                "the blob is this Rdma's own: an Rdma is connected to another one",
            );
        }
        match invitation.own() {
            Some(host) => {
                let host = host?.as_any().downcast::<Shared>();
                let Ok(other) = host else {
                    return fail(
                        ErrorKind::InvalidValue,
                        "the blob is no software endpoint's",
                    );
                };
                self.pair(&other, own, peer, info)
            }
            None if invitation.we_host()? => {
                let known =
                    |inner: &EndpointInner| inner.visitor.as_ref().is_some_and(|v| v.0 == peer);
                if !known(&self.inner()) {
                    invitation.find_guest(deadline)?;
                }
                self.expect(own, peer)
            }
            None => self.visit(&invitation, own, peer, info, deadline),
        }
    }

    fn own_identity(self: &Arc<Self>) -> Result<Identity> {
        let mut inner = self.inner();
        if inner.retired {
            return gone();
        }
        let invited = self.invited(&mut inner)?;
        Ok(Identity {
            instance: fabric::instance()?,
            slot: invited.slot,
            generation: invited.generation,
            proof: proof(&invited.key),
            permissions: self.config.permissions,
        })
    }

    /// Whether it can be connected, as who it was when that began.
    pub(super) fn check_init(inner: &EndpointInner, own: &Identity) -> Result<()> {
        let text = match inner.state {
            _ if inner.retired => return gone(),
            EndpointState::Init if !inner.is(own) => "it was reset meanwhile".to_owned(),
            EndpointState::Init => return Ok(()),
            EndpointState::Connected => "it is connected already: reset it first".to_owned(),
            EndpointState::Error(cause) => format!("it has failed ({cause}): reset it first"),
        };
        fail(ErrorKind::BadState, text)
    }

    /// The host's side: the guest comes, or has come.
    fn expect(&self, own: Identity, peer: Identity) -> Result<()> {
        let mut inner = self.inner();
        Self::check_init(&inner, &own)?;
        match inner.visitor.take() {
            Some((visitor, connection)) if visitor == peer => {
                self.connected(&mut inner, peer);
                self.join(&mut inner, connection);
            }
            other => {
                // A stranger, who has our blob: its place is the peer's.
                if let Some((_, connection)) = other {
                    connection.leave(Presence::Closed, self.number);
                }
                self.connected(&mut inner, peer);
            }
        }
        Ok(())
    }

    /// The guest's side: asks the host.
    fn visit(
        &self,
        invitation: &Invitation,
        own: Identity,
        peer: Identity,
        info: EndpointInfo,
        deadline: Instant,
    ) -> Result<()> {
        Self::check_init(&self.inner(), &own)?;
        let queue = (peer.instance, info.queue);
        // It stays until the answer is here, whoever leaves it meanwhile.
        let known = self.ports.reaper().doorbells.latest(queue);
        let request = ConnectRequest {
            info: self.info(),
            slot: own.slot,
            generation: own.generation,
            proof: own.proof,
            doorbell: known.as_ref().map_or(0, |(number, _)| *number),
        };
        let visit = invitation.visit(&request.format(), deadline)?;
        let Some(reply) = ConnectReply::parse(&visit.hello) else {
            return fail(
                ErrorKind::ConnectionAborted,
                "the peer answers what no endpoint does",
            );
        };
        let shape = Shape {
            host: info.receives,
            guest: self.config.recv_queue_size,
        };
        let Some(len) = shape.len() else {
            return fail(
                ErrorKind::InvalidValue,
                "the peer has more receives than can be",
            );
        };
        let [page, messages] = &visit.memfds;
        let messages = memory(Arena::received(messages, len)?, len);
        let is_its = |doorbell: &Arc<DoorbellPage>| doorbell.is_of(&visit.process);
        let known = known
            .filter(|(number, doorbell)| *number == reply.doorbell && is_its(doorbell))
            .map(|(_, doorbell)| doorbell)
            .or_else(|| self.find_page(queue, reply.doorbell, &visit.process));
        let (doorbell, stays) = match known {
            Some(doorbell) => (doorbell, Some(visit.socket).filter(|_| visit.stays)),
            None => (self.join_page(page, visit.socket, visit.process)?, None),
        };
        let messages = MessageRing::new(messages, shape, Side::Guest);
        doorbell.join(reply.index, self.number);
        self.ports
            .reaper()
            .doorbells
            .keep(queue, reply.doorbell, &doorbell, None);
        let mut connection = Connection::new(messages, doorbell, reply.index, peer);
        connection.stays = stays;
        let mut inner = self.inner();
        if let Err(error) = Self::check_init(&inner, &own) {
            connection.leave(Presence::Closed, self.number);
            return Err(error);
        }
        self.connected(&mut inner, peer);
        self.join(&mut inner, connection);
        Ok(())
    }

    /// The doorbell page of this number that is shared with the queue already.
    fn find_page(
        &self,
        queue: (Id, u64),
        number: u64,
        process: &Arc<Process>,
    ) -> Option<Arc<DoorbellPage>> {
        self.ports.reaper().doorbells.find(queue, number, process)
    }

    /// The guest's side of a doorbell page that the host has made.
    fn join_page(
        &self,
        page: &OwnedFd,
        socket: Guarded,
        process: Arc<Process>,
    ) -> Result<Arc<DoorbellPage>> {
        let mapping = Arena::received(page, PAGE)?;
        let bell = Bell::Socket(OnceLock::from(Arc::new(socket)));
        let doorbell = self.new_page(mapping, Side::Guest, bell, process);
        self.ports.add_bell(&doorbell)?;
        doorbell.watch_process();
        Ok(doorbell)
    }

    /// The host's side: the page that the guest has already (`known`), or a new one.
    fn offer_page(&self, guest: &Guest, queue: (Id, u64), known: u64) -> Result<Offer, Refused> {
        // A guest can say that it is another one. It gets no bell of that one's.
        if known != 0
            && let Some(doorbell) = self.find_page(queue, known, &guest.process)
        {
            return Ok(Offer {
                number: known,
                doorbell,
                fresh: None,
            });
        }
        let (fd, mapping) = Arena::create(PAGE).map_err(|_| Refused::Failed(libc::ENOMEM))?;
        let bell = Bell::Socket(OnceLock::new());
        let doorbell = self.new_page(mapping, Side::Host, bell, Arc::clone(&guest.process));
        Ok(Offer {
            number: new_doorbell(),
            doorbell,
            fresh: Some(fd),
        })
    }

    fn new_page(
        &self,
        mapping: Mapping,
        side: Side,
        bell: Bell,
        process: Arc<Process>,
    ) -> Arc<DoorbellPage> {
        let (page, owner) = (memory(mapping, PAGE), Arc::downgrade(&self.ports) as _);
        Arc::new(DoorbellPage::new(page, side, bell, Some(process), owner))
    }

    /// Takes the connection that a new page's guest hangs its bell on.
    fn keep_bell(&self, doorbell: &Arc<DoorbellPage>) -> Box<dyn FnOnce(Guarded) + Send> {
        doorbell.watch_process();
        // A guest that never reads the answer keeps neither of them.
        let (ports, doorbell) = (Arc::downgrade(&self.ports), Arc::downgrade(doorbell));
        Box::new(move |socket| {
            let (Some(ports), Some(doorbell)) = (ports.upgrade(), doorbell.upgrade()) else {
                return hang_up(&socket);
            };
            doorbell.hang_bell(socket);
            if let Err(error) = ports.add_bell(&doorbell) {
                tracing::error!(%error, "a peer of an Rdma cannot wake this process");
            }
        })
    }

    /// Lets a visitor in that may still come.
    fn admit(&self, visitor: Identity, connection: Connection) -> Result<(), Refused> {
        let mut inner = self.inner();
        let refused = match (&inner.state, inner.expected) {
            (EndpointState::Error(_), _) => Some(Refused::Gone),
            _ if inner.retired => Some(Refused::Gone),
            _ if inner.connection.is_some() => Some(Refused::Busy),
            (_, Some(expected)) if expected != visitor => Some(Refused::NotExpected),
            _ => None,
        };
        if let Some(refused) = refused {
            drop(inner);
            connection.leave(Presence::Closed, self.number);
            return Err(refused);
        }
        let before = self.receive_visitor(&mut inner, visitor, connection);
        drop(inner);
        if let Some(before) = before {
            before.leave(Presence::Closed, self.number);
        }
        Ok(())
    }

    /// Somebody has come: whom it was connected to, or a visitor. Who came before is no visitor any more: the latest is the one.
    pub(super) fn receive_visitor(
        &self,
        inner: &mut EndpointInner,
        visitor: Identity,
        connection: Connection,
    ) -> Option<Connection> {
        if inner.expected.is_some() {
            self.join(inner, connection);
            return None;
        }
        let before = inner.visitor.replace((visitor, connection));
        before.map(|(_, connection)| connection)
    }

    /// The guest of this channel has not heard that it was welcomed: it has not come.
    fn unwelcome(&self, doorbell: &Arc<DoorbellPage>, index: u32) {
        let mut inner = self.inner();
        let is_its = |its: &Connection| Arc::ptr_eq(&its.doorbell, doorbell) && its.index == index;
        let visitor = inner.visitor.take_if(|(_, visitor)| is_its(visitor));
        let connection = inner.connection.take_if(|connection| is_its(connection));
        drop(inner);
        let connection = connection.map(|connection| *connection);
        let visitor = visitor.map(|(_, connection)| connection);
        for connection in connection.into_iter().chain(visitor) {
            connection.leave(Presence::Closed, self.number);
        }
    }
}

impl Host for Shared {
    fn welcome(&self, guest: &Guest) -> Result<Welcome, Refused> {
        let request = ConnectRequest::parse(&guest.hello).ok_or(Refused::NotExpected)?;
        let visitor = request.identity(guest.instance);
        let shape = Shape {
            host: self.config.recv_queue_size,
            guest: request.info.receives,
        };
        let len = shape.len().ok_or(Refused::NotExpected)?;
        let expected = self.inner().expected;
        if expected.is_some_and(|expected| expected != visitor) {
            return Err(Refused::NotExpected);
        }
        let (messages_fd, mapping) =
            Arena::create(len).map_err(|_| Refused::Failed(libc::ENOMEM))?;
        let messages = MessageRing::new(memory(mapping, len), shape, Side::Host);
        let queue = (guest.instance, request.info.queue);
        let Offer {
            number,
            doorbell,
            fresh,
        } = self.offer_page(guest, queue, request.doorbell)?;
        let index = doorbell
            .admit(self.number)
            .ok_or(Refused::Failed(libc::EUSERS))?;
        self.ports
            .reaper()
            .doorbells
            .keep(queue, number, &doorbell, None);
        let connection = Connection::new(messages, Arc::clone(&doorbell), index, visitor);
        self.admit(visitor, connection)?;
        let hello: Hello = ConnectReply {
            doorbell: number,
            index,
        }
        .format();
        let page_fd = match &fresh {
            Some(fd) => Arc::clone(fd),
            // It has that one.
            None => Arc::clone(&messages_fd),
        };
        let keep = fresh.map(|_| self.keep_bell(&doorbell));
        let endpoint = Weak::clone(&self.me);
        let unheard = move || {
            if let Some(endpoint) = endpoint.upgrade() {
                endpoint.unwelcome(&doorbell, index);
            }
        };
        Ok(Welcome {
            hello,
            memfds: [page_fd, messages_fd],
            keep,
            unheard: Some(Box::new(unheard)),
        })
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
