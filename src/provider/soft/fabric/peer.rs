//! An exporter that this process imports from: its control page, and whether it still lives.
//!
//! There is one for each process and control page, however many imports there are.

use std::sync::{Arc, Mutex, Weak};

use super::control::Words;
use super::ended::Watched;
use crate::error::Result;
use crate::sync::lock;

pub(super) struct Peer {
    watched: Arc<Watched>,
    words: Words,
    /// The other process, or the fabric of this one.
    _keep: Arc<dyn Send + Sync>,
}

/// Device and inode of a control page. Only who has the same page and is the same process is the same exporter: whoever imports has the
/// page too, and can send it on as his own.
pub(super) type Page = (u64, u64);

/// The peers that one process is, by page. An honest one is one.
#[derive(Default)]
pub(super) struct Pages(Mutex<Vec<(Page, Weak<Peer>)>>);

impl Pages {
    /// The peer with this page, which is mapped if it is not already.
    pub(super) fn peer(
        &self,
        page: Page,
        map: impl FnOnce() -> Result<Words>,
        watched: &Arc<Watched>,
        process: Arc<dyn Send + Sync>,
    ) -> Result<Arc<Peer>> {
        let mut known = lock(&self.0);
        let of = known.iter().find(|(its, _)| *its == page);
        if let Some(peer) = of.and_then(|(_, peer)| peer.upgrade()) {
            return Ok(peer);
        }
        let peer = Arc::new(Peer {
            watched: Arc::clone(watched),
            words: map()?,
            _keep: process,
        });
        known.retain(|(_, peer)| peer.strong_count() > 0);
        known.push((page, Arc::downgrade(&peer)));
        Ok(peer)
    }
}

impl Peer {
    /// This process, which imports what it exports itself.
    pub(super) fn own(fabric: Arc<dyn Send + Sync>, words: Words) -> Arc<Peer> {
        Arc::new(Peer {
            watched: Arc::default(),
            words,
            _keep: fabric,
        })
    }

    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.watched.is_dead()
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }
}
