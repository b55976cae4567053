//! The doorbell pages of a queue.

use std::sync::Arc;

use super::super::super::fabric::{Id, Process};
use super::super::messages::Side;
use super::page::DoorbellPage;

/// The doorbell pages that a queue looks at.
#[derive(Default)]
pub(in super::super) struct DoorbellPages(Vec<Entry>);

struct Entry {
    /// The peer's fabric, and its queue.
    peer: (Id, u64),
    number: u64,
    doorbell: Arc<DoorbellPage>,
    /// The other end, if it is of this process and this one gives the message rings their numbers.
    twin: Option<Arc<DoorbellPage>>,
}

impl DoorbellPages {
    #[inline]
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = &Arc<DoorbellPage>> {
        self.0.iter().map(|entry| &entry.doorbell)
    }

    /// The doorbell page with this number to this queue of the peer, which is this process and none
    /// that says so. The side that has made a page has numbered it: of two queues that each have
    /// made one both may have the same number.
    pub(in super::super) fn find(
        &self,
        peer: (Id, u64),
        number: u64,
        process: &Arc<Process>,
        side: Side,
    ) -> Option<Arc<DoorbellPage>> {
        let of = |entry: &&Entry| {
            entry.peer == peer
                && entry.number == number
                && entry.doorbell.side() == side
                && entry.doorbell.is_of(process)
        };
        let entry = self.0.iter().find(of)?;
        Some(Arc::clone(&entry.doorbell))
    }

    /// The latest doorbell page that this queue of the peer has made, and its number.
    pub(in super::super) fn latest_joined(
        &self,
        peer: (Id, u64),
    ) -> Option<(u64, Arc<DoorbellPage>)> {
        let joined = |entry: &&Entry| entry.peer == peer && entry.doorbell.side() == Side::Guest;
        let entry = self.0.iter().rfind(joined)?;
        Some((entry.number, Arc::clone(&entry.doorbell)))
    }

    /// Both ends of a doorbell page to a queue of this process, of which this queue has the first,
    /// and its number.
    pub(in super::super) fn pair(
        &self,
        peer: (Id, u64),
    ) -> Option<(u64, Arc<DoorbellPage>, Arc<DoorbellPage>)> {
        self.0.iter().find_map(|entry| {
            let twin = entry.twin.as_ref().filter(|_| entry.peer == peer)?;
            Some((entry.number, Arc::clone(&entry.doorbell), Arc::clone(twin)))
        })
    }

    /// This doorbell page is looked at, if it was not before, or is not any more. It has a message
    /// ring by now, so that it stays. Others that have none go: a peer that comes again and again
    /// leaves no more than one.
    pub(in super::super) fn keep(
        &mut self,
        peer: (Id, u64),
        number: u64,
        doorbell: &Arc<DoorbellPage>,
        twin: Option<&Arc<DoorbellPage>>,
    ) {
        if self.iter().all(|known| !Arc::ptr_eq(known, doorbell)) {
            self.let_go_of_idle();
            self.0.push(Entry {
                peer,
                number,
                doorbell: Arc::clone(doorbell),
                twin: twin.cloned(),
            });
        }
    }

    /// Those that have no message ring any more go.
    pub(in super::super) fn let_go_of_idle(&mut self) {
        self.0.retain(|entry| !entry.doorbell.is_idle());
    }
}
