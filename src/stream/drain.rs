//! How a server ends in order: it accepts nobody any more, tells its streams, and waits until they
//! have ended.
//!
//! Each accepted stream has a [`Guest`] until its end was sent, also while it lingers.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;

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
