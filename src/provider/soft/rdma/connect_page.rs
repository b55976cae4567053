//! The doorbell page and the message ring of a connection to another process. The two queues may
//! share them already; otherwise the server makes new ones.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;

use super::super::fabric::{Arena, Granted, Id, Mapping, Process, Refusal, Ticket};
use super::connect::{memory, new_doorbell};
use super::doorbell::{Bell, DoorbellPage, PAGE};
use super::messages::{MessageRing, Shape, Side};
use super::state::Shared;
use crate::error::Result;
use crate::process::{Guarded, hang_up};
use crate::sync::log;

/// The doorbell page that the server offers a client.
pub(super) struct Offer {
    pub(super) number: u64,
    pub(super) doorbell: Arc<DoorbellPage>,
    /// The descriptor of the page, if the client does not have it yet.
    pub(super) fresh: Option<Arc<OwnedFd>>,
}

/// The message ring that the server offers a client.
pub(super) struct OfferedRing {
    pub(super) index: u32,
    pub(super) number: u32,
    pub(super) ring: MessageRing,
    /// The descriptor of the ring, if the client does not have it yet.
    pub(super) fresh: Option<Arc<OwnedFd>>,
}

impl Shared {
    /// Returns the doorbell page with this number, if this queue shares it already with the peer's
    /// queue. `side` tells whether this side has made the page (`Host`) or joined it (`Guest`).
    pub(super) fn find_page(
        &self,
        queue: (Id, u64),
        number: u64,
        process: &Arc<Process>,
        side: Side,
    ) -> Option<Arc<DoorbellPage>> {
        let reaper = self.ports.reaper();
        reaper.doorbells.find(queue, number, process, side)
    }

    /// Joins, as the client, a doorbell page that the server has made.
    pub(super) fn join_page(&self, ticket: &Ticket, granted: Granted) -> Result<Arc<DoorbellPage>> {
        let [page, _] = granted.both(ticket)?;
        let mapping = Arena::received(page, PAGE)?;
        let socket = granted.line.into_socket();
        let bell = Bell::Socket(OnceLock::from(Arc::new(socket)));
        let doorbell = self.new_page(mapping, Side::Guest, bell, granted.process);
        self.ports.add_bell(&doorbell)?;
        doorbell.watch_process();
        Ok(doorbell)
    }

    /// Offers, as the server, a page to a client: the page that the client has already (`known`),
    /// or a new one.
    pub(super) fn offer_page(
        &self,
        process: Arc<Process>,
        queue: (Id, u64),
        known: Option<u32>,
    ) -> Result<Offer, Refusal> {
        // A client may pretend to be another client: `find_page` compares the process, so that it
        // does not get the other client's bell.
        if let Some(known @ 1..) = known
            && let Some(doorbell) = self.find_page(queue, known.into(), &process, Side::Host)
        {
            return Ok(Offer {
                number: known.into(),
                doorbell,
                fresh: None,
            });
        }
        let (fd, mapping) = Arena::create(PAGE)?;
        let bell = Bell::Socket(OnceLock::new());
        let doorbell = self.new_page(mapping, Side::Host, bell, process);
        Ok(Offer {
            number: new_doorbell(),
            doorbell,
            fresh: Some(fd),
        })
    }

    /// Offers, as the server, a message ring to a client: the ring that the client has kept
    /// (`kept`), if this side has kept it as well, or a new one.
    pub(super) fn offer_ring(
        &self,
        doorbell: &DoorbellPage,
        kept: u32,
        shape: Shape,
    ) -> Result<OfferedRing, Refusal> {
        if kept != 0
            && let Some((index, ring)) = doorbell.admit_again(self.number, kept, shape)
        {
            ring.renew();
            return Ok(OfferedRing {
                index,
                number: kept,
                ring,
                fresh: None,
            });
        }
        let len = shape.len().ok_or(Refusal::UNEXPECTED)?;
        let (fd, mapping) = Arena::create(len)?;
        let ring = MessageRing::new(memory(mapping, len), shape, Side::Host);
        let (index, number) = doorbell.admit(self.number).ok_or(Errno::EUSERS)?;
        Ok(OfferedRing {
            index,
            number,
            ring,
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
        let key = DoorbellPage::new_key();
        Arc::new(DoorbellPage::new(
            key,
            page,
            side,
            bell,
            Some(process),
            owner,
        ))
    }

    /// Returns a function that stores the client's connection as the bell of a new page.
    pub(super) fn keep_bell(
        &self,
        doorbell: &Arc<DoorbellPage>,
    ) -> Box<dyn FnOnce(Guarded) + Send> {
        doorbell.watch_process();
        // A client that never reads the reply must keep neither the queue nor the page alive.
        let (ports, doorbell) = (Arc::downgrade(&self.ports), Arc::downgrade(doorbell));
        Box::new(move |socket| {
            let (Some(ports), Some(doorbell)) = (ports.upgrade(), doorbell.upgrade()) else {
                return hang_up(&socket);
            };
            doorbell.hang_bell(socket);
            if let Err(error) = ports.add_bell(&doorbell) {
                log(|| tracing::error!(%error, "a peer of an Rdma cannot wake this process"));
            }
        })
    }
}
