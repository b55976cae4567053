//! An exporter from which this process imports: its control page, and whether it still runs.
//!
//! There is one `Peer` for each process and control page, however many imports it has.

use std::sync::{Arc, Mutex, Weak};

use super::control::{Word, Words};
use super::ended::ProcessState;
use crate::error::Result;
use crate::sync::lock;

pub(super) struct Peer {
    watched: Arc<ProcessState>,
    words: Words,
    /// The owner's word of the control page.
    owner: Word,
    /// Keeps the other process's `Process` alive, or this process's fabric.
    _keep: Arc<dyn Send + Sync>,
}

/// Device and inode of a control page. An exporter is identified by its process and its page
/// together, because every importer has the page as well, and could send it on as its own.
pub(super) type Page = (u64, u64);

/// The exporters in one process, each with its control page. An honest process has only one.
#[derive(Default)]
pub(super) struct Pages(Mutex<Vec<(Page, Weak<Peer>)>>);

impl Pages {
    /// Returns the exporter with this page. Maps the page by `map` unless it is mapped already.
    pub(super) fn peer(
        &self,
        page: Page,
        map: impl FnOnce() -> Result<Words>,
        watched: &Arc<ProcessState>,
        process: Arc<dyn Send + Sync>,
    ) -> Result<Arc<Peer>> {
        let mut known = lock(&self.0);
        let of = known.iter().find(|(its, _)| *its == page);
        if let Some(peer) = of.and_then(|(_, peer)| peer.upgrade()) {
            return Ok(peer);
        }
        let peer = Peer::new(Arc::clone(watched), map()?, process);
        known.retain(|(_, peer)| peer.strong_count() > 0);
        known.push((page, Arc::downgrade(&peer)));
        Ok(peer)
    }
}

impl Peer {
    /// Returns this process as the exporter of memory that it imports itself.
    pub(super) fn own(fabric: Arc<dyn Send + Sync>, words: Words) -> Arc<Peer> {
        Peer::new(Arc::default(), words, fabric)
    }

    fn new(watched: Arc<ProcessState>, words: Words, keep: Arc<dyn Send + Sync>) -> Arc<Peer> {
        Arc::new(Peer {
            watched,
            owner: words.owner(),
            words,
            _keep: keep,
        })
    }

    /// Returns true if the exporter has ended, or has replaced its program. This takes two loads.
    ///
    /// The kernel marks the owner's word in both cases. An exporter that changes that word cannot
    /// hide its end, since its process is watched as well.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.watched.is_dead() || self.owner.is_marked()
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }
}
