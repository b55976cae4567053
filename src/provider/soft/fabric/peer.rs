//! An exporter that this process imports from: its control page, and whether it still runs.
//!
//! There is one for each process and control page, however many imports there are.

use std::sync::{Arc, Mutex, Weak};

use super::control::{Word, Words};
use super::ended::ProcessState;
use crate::error::Result;
use crate::sync::lock;

pub(super) struct Peer {
    watched: Arc<ProcessState>,
    words: Words,
    /// The owner's of these words.
    owner: Word,
    /// The other process, or the fabric of this one.
    _keep: Arc<dyn Send + Sync>,
}

/// Device and inode of a control page. Only who has the same page and is the same process is the
/// same exporter: whoever imports has the page too, and can send it on as his own.
pub(super) type Page = (u64, u64);

/// The peers that one process is, by page. An honest one is one.
#[derive(Default)]
pub(super) struct Pages(Mutex<Vec<(Page, Weak<Peer>)>>);

impl Pages {
    /// Returns the peer with this page, which is mapped if it is not already.
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
    /// This process, which imports what it exports itself.
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

    /// Returns true if it has ended, or has replaced its program: two loads.
    ///
    /// The kernel says both in the owner's word. What an exporter does to that cannot hide that it
    /// has ended, as its process is watched as well.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.watched.is_dead() || self.owner.is_marked()
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }
}
