//! The links of a queue.

use std::sync::Arc;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::super::fabric::{Id, Process};
use super::link::{Bell, Link};
use super::ports::Ports;
use crate::error::{Error, Result};

/// A link that a queue looks at.
pub(super) struct Entry {
    /// The peer's fabric, and its queue.
    peer: (Id, u64),
    number: u64,
    pub(super) link: Arc<Link>,
    /// The other end, if it is of this process and this one gives the channels their numbers.
    twin: Option<Arc<Link>>,
}

impl Ports {
    /// The link with this number to this queue of the peer, which is this process and none that says so.
    pub(super) fn link(
        &self,
        peer: (Id, u64),
        number: u64,
        process: &Arc<Process>,
    ) -> Option<Arc<Link>> {
        let reaper = self.reaper();
        let of = |entry: &&Entry| {
            entry.peer == peer && entry.number == number && entry.link.is_of(process)
        };
        let entry = reaper.links.iter().find(of)?;
        Some(Arc::clone(&entry.link))
    }

    /// The latest link to this queue of the peer, and its number.
    pub(super) fn latest_link(&self, peer: (Id, u64)) -> Option<(u64, Arc<Link>)> {
        let reaper = self.reaper();
        let of = |entry: &&Entry| entry.peer == peer;
        let entry = reaper.links.iter().rfind(of)?;
        Some((entry.number, Arc::clone(&entry.link)))
    }

    /// Both ends of a link to a queue of this process, of which this queue has the first, and its number.
    pub(super) fn pair(&self, peer: (Id, u64)) -> Option<(u64, Arc<Link>, Arc<Link>)> {
        let reaper = self.reaper();
        reaper.links.iter().find_map(|entry| {
            let twin = entry.twin.as_ref().filter(|_| entry.peer == peer)?;
            Some((entry.number, Arc::clone(&entry.link), Arc::clone(twin)))
        })
    }

    /// This link is looked at, if it was not before, or is not any more. It has a channel by now, so that it stays. Others that have none go:
    /// a peer that comes again and again leaves no more than one.
    pub(super) fn keep_link(
        &self,
        peer: (Id, u64),
        number: u64,
        link: &Arc<Link>,
        twin: Option<&Arc<Link>>,
    ) {
        let mut reaper = self.reaper();
        if reaper
            .links
            .iter()
            .all(|entry| !Arc::ptr_eq(&entry.link, link))
        {
            reaper.links.retain(|entry| !entry.link.is_idle());
            reaper.links.push(Entry {
                peer,
                number,
                link: Arc::clone(link),
                twin: twin.cloned(),
            });
        }
    }

    /// The peer's bell has come: it wakes who sleeps, and its end ends the connections of the link.
    pub(super) fn add_bell(&self, link: &Arc<Link>) -> Result<()> {
        let Bell::Socket(socket) = link.bell() else {
            return Ok(());
        };
        let Some(socket) = socket.get() else {
            return Ok(());
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, link.key);
        let added = self.sources.add(socket, event);
        added
            .and_then(|()| link.watch_bell())
            .map_err(|errno| Error::os(None, "epoll_ctl", errno.into()))
    }
}
