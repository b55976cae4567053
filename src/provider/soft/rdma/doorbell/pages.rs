//! The doorbell pages of a queue.
//!
//! At each poll a queue checks the *awake* pages, which may have hints without a wake-up, and a few
//! of the other pages in turn. So a queue with a thousand idle peers costs as much as a queue with
//! a few. A page that is armed and has no hint needs no check: the peer's next hint wakes this
//! queue, and the bell shows which page has the hint. A queue that busy-polls reads no bells, and
//! finds hints when their page has its turn.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::super::fabric::{Id, Process};
use super::super::messages::Side;
use super::page::{DoorbellPage, Signalled};

/// If more pages than this are in `awake`, a poll removes some that have no hints. Also the maximum
/// number of pages that a poll checks in turn besides `awake`, if not all pages are in it.
const FEW: usize = 16;

/// The doorbell pages of a queue.
#[derive(Default)]
pub(in super::super) struct DoorbellPages {
    all: Vec<PageEntry>,
    by_key: HashMap<u64, Arc<DoorbellPage>>,
    /// The pages that are checked at each poll.
    awake: Vec<Arc<DoorbellPage>>,
    /// True if there may be pages that are neither awake nor armed.
    cold: bool,
    /// The index at which the next turn begins.
    next: usize,
    signalled: Arc<Signalled>,
    /// The keys that were taken from `signalled`; kept here so that a poll allocates nothing.
    keys: Vec<u64>,
}

struct PageEntry {
    /// The peer's fabric, and the number of the peer's queue.
    peer: (Id, u64),
    number: u64,
    doorbell: Arc<DoorbellPage>,
    /// The other end of the page, if the peer is in this process and this end numbers the message
    /// rings.
    twin: Option<Arc<DoorbellPage>>,
}

/// Makes the queue check a page at each poll.
fn wake(awake: &mut Vec<Arc<DoorbellPage>>, page: &Arc<DoorbellPage>) {
    if !page.set_awake(true) {
        awake.push(Arc::clone(page));
    }
}

impl DoorbellPages {
    /// Returns the list to which peers in this process add each page for which they signal.
    pub(in super::super) fn signalled(&self) -> Arc<Signalled> {
        Arc::clone(&self.signalled)
    }

    /// Returns true if there are hints on an awake page (one that is checked at each poll), or on
    /// one of the few others that this call checks in turn. After `arm`, a page is awake if its
    /// hints would not wake the queue.
    #[inline]
    pub(in super::super) fn has_hints(&mut self) -> bool {
        self.wake_signalled();
        if self.awake.len() < self.all.len() {
            self.take_turn();
        }
        if self.awake.len() > FEW {
            self.thin_out();
        }
        self.awake.iter().any(|page| page.is_hinted())
    }

    /// Wakes the pages for which a peer in this process has signalled.
    #[inline]
    fn wake_signalled(&mut self) {
        self.signalled.take(&mut self.keys);
        while let Some(key) = self.keys.pop() {
            self.rang(key);
        }
    }

    /// Checks a few of the pages that are not checked at each poll.
    fn take_turn(&mut self) {
        for _ in 0..FEW.min(self.all.len()) {
            self.next = (self.next + 1) % self.all.len();
            let page = &self.all[self.next].doorbell;
            if page.is_hinted() {
                wake(&mut self.awake, page);
            }
        }
    }

    /// Checks all awake pages. Pages with hints stay awake, and a few of the other pages.
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
        if self.has_hints() {
            let hinted = self.awake.iter().filter(|page| page.is_hinted());
            hinted.for_each(|page| each(page));
        }
    }

    /// Makes all peers wake this queue for their next hint. The caller polls afterwards.
    pub(in super::super) fn arm(&mut self) {
        // A page whose peer has signalled is no longer armed, even if its hint was handled already.
        self.wake_signalled();
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

    /// Returns the page with this key, and wakes it: its peer has sent a wake-up.
    pub(in super::super) fn rang(&mut self, key: u64) -> Option<Arc<DoorbellPage>> {
        let page = self.by_key.get(&key)?;
        wake(&mut self.awake, page);
        Some(Arc::clone(page))
    }

    /// Returns the doorbell page with this number to this queue of the peer. The peer must be the
    /// process `process`: a claimed identity is not enough. The side that made a page has numbered
    /// it, so two queues that each made a page may have used the same number. `side` distinguishes
    /// these two pages.
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

    /// Returns the latest doorbell page that the peer's queue has made and this queue has joined,
    /// and its number.
    pub(in super::super) fn latest_joined(
        &self,
        peer: (Id, u64),
    ) -> Option<(u64, Arc<DoorbellPage>)> {
        let joined =
            |entry: &&PageEntry| entry.peer == peer && entry.doorbell.side() == Side::Guest;
        let entry = self.all.iter().rfind(joined)?;
        Some((entry.number, Arc::clone(&entry.doorbell)))
    }

    /// Returns both ends of a doorbell page to a queue of this process, with its number. This queue
    /// has the first end.
    pub(in super::super) fn pair(
        &self,
        peer: (Id, u64),
    ) -> Option<(u64, Arc<DoorbellPage>, Arc<DoorbellPage>)> {
        self.all.iter().find_map(|entry| {
            let twin = entry.twin.as_ref().filter(|_| entry.peer == peer)?;
            Some((entry.number, Arc::clone(&entry.doorbell), Arc::clone(twin)))
        })
    }

    /// Adds this doorbell page, unless it is listed already. Removes pages without a message ring,
    /// so that a peer that connects again and again leaves at most one page. The new page has a
    /// message ring by now, so it stays.
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

    /// Removes the pages that have no message ring any more.
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
            // The other end may use the page for a new connection, so the page may be listed again.
            page.set_awake(stays);
            stays
        });
    }
}
