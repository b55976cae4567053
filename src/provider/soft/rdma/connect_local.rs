//! How two endpoints of one process connect to each other: the side that connects first makes both
//! ends of the message ring.

use std::sync::Arc;

use super::super::fabric::{Arena, Id};
use super::connect::{fail, memory, new_doorbell};
use super::connection::Connection;
use super::doorbell::{Bell, DoorbellPage, PAGE};
use super::messages::{MessageRing, Presence, Shape, Side};
use super::payload::{EndpointInfo, Identity};
use super::state::Shared;
use crate::device::EndpointState;
use crate::error::{ErrorKind, Result};

impl Shared {
    /// Connects to another endpoint of this process.
    pub(super) fn pair(
        self: &Arc<Self>,
        other: &Arc<Shared>,
        own: Identity,
        peer: Identity,
        info: EndpointInfo,
    ) -> Result<()> {
        // Both ends are made before any lock is taken. They are discarded only after a race.
        let shape = Shape {
            host: self.config.recv_queue_size,
            guest: info.receives.get(),
        };
        let is_peer = |visitor: &(Identity, Connection)| visitor.0 == peer;
        let visited = self.inner().visitor.as_ref().is_some_and(is_peer);
        let made = match visited {
            true => None,
            false => Some(self.make_pair(other, own, peer, shape)?),
        };
        // The locks are taken in the order of the endpoints' addresses.
        let (mut mine, mut theirs);
        if Arc::as_ptr(self) < Arc::as_ptr(other) {
            mine = self.inner();
            theirs = other.inner();
        } else {
            theirs = other.inner();
            mine = self.inner();
        }
        let checked = Self::check_init(&mine, &own);
        if checked.is_ok()
            && let Some((visitor, connection)) = mine.visitor.take()
        {
            if visitor == peer {
                self.connected(&mut mine, peer);
                self.join(&mut mine, connection);
                drop((mine, theirs));
                leave_both(made, self.number, other.number);
                return Ok(());
            }
            connection.leave(Presence::Closed, self.number);
        }
        let taken = theirs.expected.is_some_and(|expected| expected != own)
            || theirs.connection.is_some()
            || !theirs.is(&peer)
            || matches!(theirs.state, EndpointState::Error(_));
        let made = match (checked, made) {
            (Ok(()), Some(made)) if !taken => made,
            (checked, made) => {
                drop((mine, theirs));
                leave_both(made, self.number, other.number);
                checked?;
                return fail(
                    ErrorKind::ConnectionAborted,
                    "the peer is connected to another Rdma, has failed, or was reset",
                );
            }
        };
        let (here, there) = made;
        let before = other.receive_visitor(&mut theirs, own, there);
        self.connected(&mut mine, peer);
        self.join(&mut mine, here);
        drop((mine, theirs));
        other.notify();
        if let Some(before) = before {
            before.leave(Presence::Closed, other.number);
        }
        Ok(())
    }

    /// Makes the doorbell page and the message ring of two endpoints of this process.
    fn make_pair(
        &self,
        other: &Shared,
        own: Identity,
        peer: Identity,
        shape: Shape,
    ) -> Result<(Connection, Connection)> {
        let Some(len) = shape.len() else {
            return fail(ErrorKind::InvalidValue, "more receives than can be");
        };
        let (_memfd, mapping) = Arena::create(len)?;
        let memory = memory(mapping, len);
        let (number, here, there) = self.own_doorbells(other, peer.instance)?;
        let Some(place) = here.admit(self.number) else {
            return fail(
                ErrorKind::Full,
                "as many Rdmas of the two WorkQs are connected as can be",
            );
        };
        there.join(place, other.number);
        let to = (peer.instance, other.ports.number);
        let from = (peer.instance, self.ports.number);
        self.ports
            .reaper()
            .doorbells
            .keep(to, number, &here, Some(&there));
        other
            .ports
            .reaper()
            .doorbells
            .keep(from, number, &there, None);
        let end = |side, doorbell, peer| {
            let messages = MessageRing::new(Arc::clone(&memory), shape, side);
            Connection::new(messages, doorbell, place, peer)
        };
        let first = end(Side::Host, here, peer);
        Ok((first, end(Side::Guest, there, own)))
    }

    /// Returns the number and the two ends of a doorbell page from this queue to another queue of
    /// this process.
    fn own_doorbells(
        &self,
        other: &Shared,
        instance: Id,
    ) -> Result<(u64, Arc<DoorbellPage>, Arc<DoorbellPage>)> {
        let known = (instance, other.ports.number);
        if let Some(pair) = self.ports.reaper().doorbells.pair(known) {
            return Ok(pair);
        }
        let (_memfd, mapping) = Arena::create(PAGE)?;
        let page = memory(mapping, PAGE);
        let keys = [(); 2].map(|()| DoorbellPage::new_key());
        let end = |side, to: &Shared, of: &Shared| {
            let (own, peers) = match side {
                Side::Host => (keys[0], keys[1]),
                Side::Guest => (keys[1], keys[0]),
            };
            let signalled = to.ports.reaper().doorbells.signalled();
            let bell = Bell::Signal(Arc::clone(&to.ports.signal), signalled, peers);
            Arc::new(DoorbellPage::new(
                own,
                Arc::clone(&page),
                side,
                bell,
                None,
                Arc::downgrade(&of.ports) as _,
            ))
        };
        let here = end(Side::Host, other, self);
        Ok((new_doorbell(), here, end(Side::Guest, self, other)))
    }
}

/// Closes two ends that nothing uses.
fn leave_both(made: Option<(Connection, Connection)>, mine: u32, theirs: u32) {
    if let Some((here, there)) = made {
        here.leave(Presence::Closed, mine);
        there.leave(Presence::Closed, theirs);
    }
}
