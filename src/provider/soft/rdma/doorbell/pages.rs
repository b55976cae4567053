//! The links of a queue.

use std::sync::Arc;

use super::super::super::fabric::{Id, Process};
use super::page::Link;

/// The links that a queue looks at.
#[derive(Default)]
pub(in super::super) struct Links(Vec<Entry>);

struct Entry {
    /// The peer's fabric, and its queue.
    peer: (Id, u64),
    number: u64,
    link: Arc<Link>,
    /// The other end, if it is of this process and this one gives the channels their numbers.
    twin: Option<Arc<Link>>,
}

impl Links {
    #[inline]
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.0.iter().map(|entry| &entry.link)
    }

    /// The link with this number to this queue of the peer, which is this process and none that says so.
    pub(in super::super) fn find(
        &self,
        peer: (Id, u64),
        number: u64,
        process: &Arc<Process>,
    ) -> Option<Arc<Link>> {
        let of = |entry: &&Entry| {
            entry.peer == peer && entry.number == number && entry.link.is_of(process)
        };
        let entry = self.0.iter().find(of)?;
        Some(Arc::clone(&entry.link))
    }

    /// The latest link to this queue of the peer, and its number.
    pub(in super::super) fn latest(&self, peer: (Id, u64)) -> Option<(u64, Arc<Link>)> {
        let entry = self.0.iter().rfind(|entry| entry.peer == peer)?;
        Some((entry.number, Arc::clone(&entry.link)))
    }

    /// Both ends of a link to a queue of this process, of which this queue has the first, and its number.
    pub(in super::super) fn pair(&self, peer: (Id, u64)) -> Option<(u64, Arc<Link>, Arc<Link>)> {
        self.0.iter().find_map(|entry| {
            let twin = entry.twin.as_ref().filter(|_| entry.peer == peer)?;
            Some((entry.number, Arc::clone(&entry.link), Arc::clone(twin)))
        })
    }

    /// This link is looked at, if it was not before, or is not any more. It has a channel by now, so that it stays. Others that have none go:
    /// a peer that comes again and again leaves no more than one.
    pub(in super::super) fn keep(
        &mut self,
        peer: (Id, u64),
        number: u64,
        link: &Arc<Link>,
        twin: Option<&Arc<Link>>,
    ) {
        if self.iter().all(|known| !Arc::ptr_eq(known, link)) {
            self.let_go_of_idle();
            self.0.push(Entry {
                peer,
                number,
                link: Arc::clone(link),
                twin: twin.cloned(),
            });
        }
    }

    /// Those that have no channel any more go.
    pub(in super::super) fn let_go_of_idle(&mut self) {
        self.0.retain(|entry| !entry.link.is_idle());
    }
}
