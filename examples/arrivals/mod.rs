//! Clients on their way to a place of a service.
//!
//! A client has no place before it has shown that it is a client: one that connects and says
//! nothing keeps no other out. At most [`ARRIVING`] clients arrive at once: if one more comes, the
//! oldest leaves, once it has had [`SPARED`]. Newer clients wait in the kernel's backlog meanwhile,
//! so that a flood of connections throws no client out in the middle of its exchange.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::Result;

/// The most clients that have connected and have no place yet.
const ARRIVING: usize = 64;
/// How long each of them has for its exchange, however many come.
const SPARED: Duration = Duration::from_millis(100);

/// The places of a service, and the clients that have none yet, the oldest first.
pub(crate) struct Arrivals {
    places: Arc<Semaphore>,
    limit: Duration,
    /// When each of them came, and what it holds until it leaves.
    arriving: VecDeque<(Instant, oneshot::Sender<()>)>,
}

/// One client that has no place yet.
pub(crate) struct Arrival {
    places: Arc<Semaphore>,
    limit: Duration,
    /// Completes once another client needs what this one has.
    leaves: oneshot::Receiver<()>,
}

impl Arrivals {
    /// `limit` is how long a client may take to show that it is a client.
    pub(crate) fn new(places: usize, limit: Duration) -> Arrivals {
        Arrivals {
            places: Arc::new(Semaphore::new(places)),
            limit,
            arriving: VecDeque::new(),
        }
    }

    /// Lets one more client arrive. If too many do, the oldest leaves first.
    pub(crate) async fn next(&mut self) -> Arrival {
        self.arriving.retain(|(_, client)| !client.is_closed());
        if self.arriving.len() == ARRIVING {
            self.oldest_had_its_time().await;
            self.arriving.retain(|(_, client)| !client.is_closed());
        }
        if self.arriving.len() == ARRIVING {
            self.arriving.pop_front();
        }
        let (stays, leaves) = oneshot::channel();
        self.arriving.push_back((Instant::now(), stays));
        Arrival {
            places: Arc::clone(&self.places),
            limit: self.limit,
            leaves,
        }
    }

    /// Ends the client that has arrived for the longest time, once it has had its time: another
    /// one needs its descriptor.
    pub(crate) async fn oldest_leaves(&mut self) {
        self.oldest_had_its_time().await;
        self.arriving.pop_front();
    }

    /// Newer ones wait in the kernel's backlog meanwhile.
    async fn oldest_had_its_time(&mut self) {
        if let Some((since, oldest)) = self.arriving.front_mut() {
            _ = timeout_at(*since + SPARED, oldest.closed()).await;
        }
    }
}

impl Arrival {
    /// Meets the client by `meet`, and waits for a place, which the client has until the permit is
    /// dropped.
    ///
    /// # Errors
    ///
    /// If `meet` fails or takes longer than the limit, or if too many newer clients arrive.
    pub(crate) async fn place<T>(
        self,
        meet: impl Future<Output = Result<T>>,
    ) -> Result<(T, OwnedSemaphorePermit)> {
        let arrive = async {
            let met = timeout(self.limit, meet).await;
            let met = met.map_err(|_| "it did not come in time")??;
            Ok((met, self.places.acquire_owned().await?))
        };
        tokio::select! {
            biased;
            arrived = arrive => arrived,
            _ = self.leaves => Err("it is slow, and newer clients arrive".into()),
        }
    }
}
