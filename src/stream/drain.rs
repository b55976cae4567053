//! How a server ends in order: it accepts no more peers, notifies its streams, and waits until they
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
    /// True once the listener drains.
    drains: watch::Sender<bool>,
    /// Each stream holds a receiver, so that the number of receivers is the number of streams.
    present: watch::Sender<()>,
    /// All statistics except `open`.
    stats: Mutex<ListenerStats>,
}

/// The membership of one stream in its listener's [`Guests`].
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

    /// Adds a stream; `None` if the listener drains.
    pub(super) fn admit(&self) -> Option<Guest> {
        let guest = Guest {
            drains: self.drains.subscribe(),
            _present: self.present.subscribe(),
        };
        // The stream is counted before this is read, and `drain` sets the flag before it counts the
        // streams.
        let drains = *guest.drains.borrow();
        (!drains).then_some(guest)
    }

    /// Admits no more streams, notifies those that are open, and waits until they have ended, for
    /// `limit` at most. Returns how many are still open.
    pub(super) async fn drain(&self, limit: Duration) -> usize {
        self.drains.send_replace(true);
        match tokio::time::timeout(limit, self.present.closed()).await {
            Ok(()) => 0,
            Err(_) => self.present.receiver_count(),
        }
    }

    /// Updates the statistics.
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
    /// Waits until the listener drains. The future does not count as a stream.
    pub(super) fn draining(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let mut drains = self.drains.clone();
        async move {
            if drains.wait_for(|drains| *drains).await.is_err() {
                std::future::pending().await
            }
        }
    }
}
