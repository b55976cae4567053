//! How a server ends in order: it accepts nobody any more, tells its streams, and waits until they
//! have ended.
//!
//! Each accepted stream has a [`Guest`] until its end was sent, also while it lingers. Peers that
//! have a place and have not come yet are expected: the oldest one gives way to a peer that finds
//! no place.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::sync::{Mutex, lock};

mod stats;

pub use stats::ListenerStats;

/// The streams of a listener.
pub(super) struct Guests {
    /// Whether it drains.
    drains: watch::Sender<bool>,
    /// Its receivers are those that count.
    present: watch::Sender<()>,
    /// All but `open`.
    stats: Mutex<ListenerStats>,
    /// Those that are expected, the oldest first, and since when. One that has come, or has failed,
    /// receives nothing more.
    expected: Mutex<VecDeque<(Instant, watch::Sender<()>)>>,
}

/// One of them.
pub(super) struct Guest {
    drains: watch::Receiver<bool>,
    _present: watch::Receiver<()>,
}

impl Guests {
    pub(super) fn new() -> Guests {
        Guests {
            drains: watch::Sender::new(false),
            present: watch::Sender::new(()),
            stats: Mutex::default(),
            expected: Mutex::default(),
        }
    }

    /// Counts one more; `None` if the listener drains.
    pub(super) fn admit(&self) -> Option<Guest> {
        let guest = Guest {
            drains: self.drains.subscribe(),
            _present: self.present.subscribe(),
        };
        // After it counts: `drain` has set this before it counts.
        let drains = *guest.drains.borrow();
        (!drains).then_some(guest)
    }

    /// Admits nobody any more, tells all, and waits until they have gone, but for `limit` at most.
    /// Returns how many are left.
    pub(super) async fn drain(&self, limit: Duration) -> usize {
        self.drains.send_replace(true);
        match tokio::time::timeout(limit, self.present.closed()).await {
            Ok(()) => 0,
            Err(_) => self.present.receiver_count(),
        }
    }

    /// Expects one more peer, which must give way once this changes, and then drop it.
    pub(super) fn expect(&self) -> watch::Receiver<()> {
        let (tell, told) = watch::channel(());
        let mut expected = lock(&self.expected);
        expected.retain(|(_, tell)| !tell.is_closed());
        expected.push_back((Instant::now(), tell));
        told
    }

    /// Has the oldest peer give way if it was expected for this long, and waits until it has.
    /// Returns false if there is no such peer.
    pub(super) async fn gives_way(&self, patience: Duration) -> bool {
        let oldest = {
            let mut expected = lock(&self.expected);
            let oldest = expected.front();
            let late = oldest.is_some_and(|(since, _)| since.elapsed() >= patience);
            late.then(|| expected.pop_front()).flatten()
        };
        let Some((_, tell)) = oldest else {
            return false;
        };
        tell.send_replace(());
        tell.closed().await;
        true
    }

    /// Counts what has become of a peer.
    pub(super) fn count(&self, count: impl FnOnce(&mut ListenerStats)) {
        count(&mut lock(&self.stats));
    }

    pub(super) fn stats(&self) -> ListenerStats {
        ListenerStats {
            open: self.present.receiver_count() as u64,
            ..*lock(&self.stats)
        }
    }
}

impl Guest {
    /// Waits until the listener drains. It counts for nobody.
    pub(super) fn told(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let mut drains = self.drains.clone();
        async move {
            if drains.wait_for(|drains| *drains).await.is_err() {
                std::future::pending().await
            }
        }
    }
}
