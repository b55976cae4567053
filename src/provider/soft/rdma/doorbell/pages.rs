//! The doorbell pages of a queue.
//!
//! A queue looks at those that may have hints for which nobody rings, and at a few of the others in
//! turn. So a queue with a thousand idle peers costs what one with a few does. A page that is armed
//! and has no hint is left to its bell, since the peer's next hint rings; the bell says which page
//! it is of. A queue that polls hears no bells, and finds hints by its turns.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::super::fabric::{Id, Process};
use super::super::messages::Side;
use super::page::{DoorbellPage, Signalled};

/// So many pages are looked at each time, and so many others in turn.
const FEW: usize = 16;

/// The doorbell pages that a queue looks at.
#[derive(Default)]
pub(in super::super) struct DoorbellPages {
    all: Vec<PageEntry>,
    by_key: HashMap<u64, Arc<DoorbellPage>>,
    /// Those that are looked at each time.
    awake: Vec<Arc<DoorbellPage>>,
    /// There may be some that are neither awake nor armed.
    cold: bool,
    /// Where the next turn begins.
    next: usize,
    signalled: Arc<Signalled>,
    /// Keys that were taken out of it: no look allocates.
    keys: Vec<u64>,
}

struct PageEntry {
    /// The peer's fabric, and its queue.
    peer: (Id, u64),
    number: u64,
    doorbell: Arc<DoorbellPage>,
    /// The other end, if it is of this process and this one gives the message rings their numbers.
    twin: Option<Arc<DoorbellPage>>,
}

/// Has a page looked at each time.
fn wake(awake: &mut Vec<Arc<DoorbellPage>>, page: &Arc<DoorbellPage>) {
    if !page.set_awake(true) {
        awake.push(Arc::clone(page));
    }
}

impl DoorbellPages {
    /// Returns where peers of this process say which page they rang for.
    pub(in super::super) fn signalled(&self) -> Arc<Signalled> {
        Arc::clone(&self.signalled)
    }

    /// Returns true if a page has hints: one that is awake, or one of those whose turn it is. After
    /// `arm` that is each page for whose hints nobody rings.
    #[inline]
    pub(in super::super) fn look(&mut self) -> bool {
        self.hear();
        if self.awake.len() < self.all.len() {
            self.take_turn();
        }
        if self.awake.len() > FEW {
            self.thin_out();
        }
        self.awake.iter().any(|page| page.is_hinted())
    }

    /// Takes note of the pages that peers of this process rang for.
    #[inline]
    fn hear(&mut self) {
        self.signalled.take(&mut self.keys);
        while let Some(key) = self.keys.pop() {
            self.rang(key);
        }
    }

    /// Looks at a few pages that are not looked at each time.
    fn take_turn(&mut self) {
        for _ in 0..FEW.min(self.all.len()) {
            self.next = (self.next + 1) % self.all.len();
            let page = &self.all[self.next].doorbell;
            if page.is_hinted() {
                wake(&mut self.awake, page);
            }
        }
    }

    /// Looks at all that are awake, and keeps those that have hints, or a few of the others.
    #[cold]
    fn thin_out(&mut self) {
        let (mut others, cold) = (0, &mut self.cold);
        self.awake.retain(|page| {
            if page.is_hinted() {
                return true;
            }
            others += 1;
            if others <= FEW / 2 {
                return true;
            }
            *cold |= !page.is_armed();
            page.set_awake(false);
            false
        });
    }

    /// Calls `each` with the pages that have hints.
    #[inline]
    pub(in super::super) fn hinted(&mut self, mut each: impl FnMut(&DoorbellPage)) {
        if self.look() {
            let hinted = self.awake.iter().filter(|page| page.is_hinted());
            hinted.for_each(|page| each(page));
        }
    }

    /// Has the peers of all ring for their next hint. The caller looks afterwards.
    pub(in super::super) fn arm(&mut self) {
        // One that rang is not armed, though what it rang for may be done already.
        self.hear();
        if std::mem::take(&mut self.cold) {
            for entry in &self.all {
                if !entry.doorbell.is_armed() {
                    wake(&mut self.awake, &entry.doorbell);
                }
            }
        }
        self.awake.retain(|page| {
            let rings = page.is_armed() && !page.is_hinted();
            match rings {
                true => _ = page.set_awake(false),
                false => page.arm(),
            }
            !rings
        });
    }

    /// Returns the peer of a page rang: returns the page.
    pub(in super::super) fn rang(&mut self, key: u64) -> Option<Arc<DoorbellPage>> {
        let page = self.by_key.get(&key)?;
        wake(&mut self.awake, page);
        Some(Arc::clone(page))
    }

    /// Returns the doorbell page with this number to this queue of the peer, which is this process
    /// and none that says so. The side that has made a page has numbered it: of two queues that
    /// each have made one both may have the same number.
    pub(in super::super) fn find(
        &self,
        peer: (Id, u64),
        number: u64,
        process: &Arc<Process>,
        side: Side,
    ) -> Option<Arc<DoorbellPage>> {
        let of = |entry: &&PageEntry| {
            entry.peer == peer
                && entry.number == number
                && entry.doorbell.side() == side
                && entry.doorbell.is_of(process)
        };
        let entry = self.all.iter().find(of)?;
        Some(Arc::clone(&entry.doorbell))
    }

    /// Returns the latest doorbell page that this queue of the peer has made, and its number.
    pub(in super::super) fn latest_joined(
        &self,
        peer: (Id, u64),
    ) -> Option<(u64, Arc<DoorbellPage>)> {
        let joined =
            |entry: &&PageEntry| entry.peer == peer && entry.doorbell.side() == Side::Guest;
        let entry = self.all.iter().rfind(joined)?;
        Some((entry.number, Arc::clone(&entry.doorbell)))
    }

    /// Both ends of a doorbell page to a queue of this process, of which this queue has the first,
    /// and its number.
    pub(in super::super) fn pair(
        &self,
        peer: (Id, u64),
    ) -> Option<(u64, Arc<DoorbellPage>, Arc<DoorbellPage>)> {
        self.all.iter().find_map(|entry| {
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
        if !self.by_key.contains_key(&doorbell.key) {
            self.let_go_of_idle();
            self.by_key.insert(doorbell.key, Arc::clone(doorbell));
            wake(&mut self.awake, doorbell);
            self.all.push(PageEntry {
                peer,
                number,
                doorbell: Arc::clone(doorbell),
                twin: twin.cloned(),
            });
        }
    }

    /// Those that have no message ring any more go.
    pub(in super::super) fn let_go_of_idle(&mut self) {
        self.all.retain(|entry| {
            let is_idle = entry.doorbell.is_idle();
            if is_idle {
                self.by_key.remove(&entry.doorbell.key);
            }
            !is_idle
        });
        let by_key = &self.by_key;
        self.awake.retain(|page| {
            let stays = by_key.contains_key(&page.key);
            // The other end may connect by it again.
            page.set_awake(stays);
            stays
        });
    }
}
