//! Admission of new clients to a service that has a limited number of places.
//!
//! A client gets a place only after it has shown that it is a client, so that silent connections
//! keep no client out. At most [`ARRIVING`] clients arrive at once. If one more connects, the
//! oldest of them is dropped, once it has had [`SPARED`]. Newer clients wait in the kernel's
//! backlog meanwhile, so that a flood of connections leaves each client this time for its exchange.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::Result;

/// The maximum number of clients that have connected and have no place yet.
const ARRIVING: usize = 64;
/// The time that each arriving client has for its exchange, however many clients connect.
const SPARED: Duration = Duration::from_millis(100);

/// The places of a service, and the clients that have no place yet, the oldest first.
pub(crate) struct Arrivals {
    places: Arc<Semaphore>,
    limit: Duration,
    /// When each arriving client connected, and the sender whose drop makes the client leave.
    arriving: VecDeque<(Instant, oneshot::Sender<()>)>,
}

/// One client that has no place yet.
pub(crate) struct Arrival {
    places: Arc<Semaphore>,
    limit: Duration,
    /// Completes once this client must make way for a newer one.
    leaves: oneshot::Receiver<()>,
}

impl Arrivals {
    /// Makes an empty set. `limit` is the time in which a client must show that it is a client.
    pub(crate) fn new(places: usize, limit: Duration) -> Arrivals {
        Arrivals {
            places: Arc::new(Semaphore::new(places)),
            limit,
            arriving: VecDeque::new(),
        }
    }

    /// Lets one more client arrive. If [`ARRIVING`] clients are arriving already, waits until the
    /// oldest one has left or has had [`SPARED`], and then drops it.
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

    /// Drops the oldest arriving client, once it has had its time: its descriptor is needed for
    /// another client.
    pub(crate) async fn oldest_leaves(&mut self) {
        self.oldest_had_its_time().await;
        self.arriving.pop_front();
    }

    /// Waits until the oldest client has left or has had [`SPARED`]. Newer clients wait in the
    /// kernel's backlog.
    async fn oldest_had_its_time(&mut self) {
        if let Some((since, oldest)) = self.arriving.front_mut() {
            _ = timeout_at(*since + SPARED, oldest.closed()).await;
        }
    }
}

impl Arrival {
    /// Runs `meet`, the exchange with the client, and then waits for a place. The client has the
    /// place until the permit is dropped.
    ///
    /// # Errors
    ///
    /// Fails if `meet` fails or takes longer than the limit, or if too many newer clients arrive.
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
