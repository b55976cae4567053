//! Connects clients that only know TCP to a server over RDMA.
//!
//! A client must send something within 10 s, and before 64 newer clients arrive. Then it gets a
//! stream to the server, which it loses if neither side sends anything for a minute.
//!
//! There are fewer streams than there may be clients. If all are in use, a new client takes the
//! place of the slowest client: the one that has moved the fewest bytes lately, in both directions
//! together, and fewer than 16. The count of bytes halves with each second that passes and never
//! exceeds 512, so that a client that has fetched much keeps its place for 5 s. Clients that have
//! had a place for less than a second are spared.
//!
//! So a client that sends nothing, or a byte once in a while, keeps no other out, and a slow client
//! is served as long as all clients have a place. If no client is that slow, the new client waits
//! for at most 10 s. Protocols in which the server speaks first need another proxy.
//!
//! ```text
//! $ cargo run --bin http_over_rdma serve 127.0.0.1:8000
//! $ cargo run --bin tcp_proxy 127.0.0.1:8080 127.0.0.1:8000
//! $ curl http://127.0.0.1:8080/
//! hello
//! ```

#[path = "../../../arrivals/mod.rs"]
mod arrivals;

use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrivals::{Arrival, Arrivals};
use services::{Result, open, options};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_doca::ErrorKind;
use tokio_doca::stream::{RdmaConnector, RdmaStream};
use tokio_util::io::InspectReader;

/// The size of a buffer in bytes: one frame of a stream.
const BUFFER: usize = 32 << 10;
/// The time in which a client must get a stream, and how long both sides may then be silent.
const FIRST: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);
/// The maximum number of clients with a stream. It is smaller than the number for which `options`
/// has memory, because the memory of an ended stream returns a moment later.
const PLACES: usize = 120;
/// The number of concurrent connects. If there were more, the server might drop the oldest as
/// silent.
const CONNECTS: usize = 16;
/// A client that has moved fewer bytes than this lately may lose its place, once it has had the
/// place for `SPARED`.
const SLOW: f64 = 16.0;
const SPARED: Duration = Duration::from_secs(1);
/// The maximum count of bytes. It falls below `SLOW` after 5 s, while a new client still waits.
const COUNTED: f64 = 32.0 * SLOW;
/// Pause before another attempt: to connect while all stream memory is in use, and to accept while
/// no descriptor is free.
const PAUSE: Duration = Duration::from_millis(10);
const NO_CLIENT: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    services::run(program).await
}

async fn program(args: &[&str]) -> Result {
    let &[listen, server] = args else {
        return Err("usage: tcp_proxy LISTEN_ADDR RDMA_ADDR".into());
    };
    let server: SocketAddr = server.parse()?;
    let (device, workq) = open()?;
    let proxy = Arc::new(Proxy {
        connector: options().connector(&device, &workq)?,
        server,
        free: Semaphore::new(PLACES),
        connects: Semaphore::new(CONNECTS),
        served: Mutex::default(),
    });
    let listener = TcpListener::bind(listen).await?;
    println!("Listening on {}", listener.local_addr()?);
    // Arrivals get unlimited places, because the proxy assigns its own places.
    let mut arrivals = Arrivals::new(Semaphore::MAX_PERMITS, FIRST);
    loop {
        let (client, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The process may be out of descriptors, and may have one later.
                eprintln!("no client is accepted: {error}");
                arrivals.oldest_leaves().await;
                sleep(NO_CLIENT).await;
                continue;
            }
        };
        let (proxy, arrival) = (Arc::clone(&proxy), arrivals.next().await);
        tokio::spawn(async move {
            if let Err(error) = proxy.carry(client, arrival).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

struct Proxy {
    connector: RdmaConnector,
    server: SocketAddr,
    free: Semaphore,
    connects: Semaphore,
    /// The clients that have a place.
    served: Mutex<Vec<Arc<Client>>>,
}

/// A client that has a place.
struct Client {
    since: Instant,
    moved: Mutex<Moved>,
    /// Signaled when another client needs this client's place.
    leaves: Notify,
}

/// The recent traffic between a client and the server.
struct Moved {
    last: Instant,
    /// The count of bytes at the time `last`.
    bytes: f64,
}

/// The place of a client. Dropping it frees the place.
struct Place<'a> {
    proxy: &'a Proxy,
    client: Arc<Client>,
    _permit: SemaphorePermit<'a>,
}

impl Client {
    fn moved(&self) -> MutexGuard<'_, Moved> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moves(&self, bytes: &[u8]) {
        let mut moved = self.moved();
        let counted = (moved.lately() + bytes.len() as f64).min(COUNTED);
        *moved = Moved {
            last: Instant::now(),
            bytes: counted,
        };
    }

    /// Waits until neither side has sent anything for `IDLE`.
    async fn idle(&self) {
        loop {
            let until = self.moved().last + IDLE;
            if until <= Instant::now() {
                break;
            }
            sleep_until(until).await;
        }
    }
}

impl Moved {
    /// Returns the current count of bytes, which halves with each second.
    fn lately(&self) -> f64 {
        self.bytes * (-self.last.elapsed().as_secs_f64()).exp2()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut served = self
            .proxy
            .served
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        served.retain(|client| !Arc::ptr_eq(client, &self.client));
    }
}

impl Proxy {
    /// Waits for a free place. While there is none, makes the slowest client leave from time to
    /// time.
    async fn permit(&self) -> SemaphorePermit<'_> {
        let mut permit = pin!(self.free.acquire());
        loop {
            // Takes a free place at once.
            if let Ok(permit) = timeout(Duration::ZERO, &mut permit).await {
                break permit.expect("it is never closed");
            }
            self.slowest_leaves();
            if let Ok(permit) = timeout(SPARED, &mut permit).await {
                break permit.expect("it is never closed");
            }
        }
    }

    /// Gives a connected client its place. Before it is connected, a client moves no bytes.
    fn place<'a>(&'a self, permit: SemaphorePermit<'a>) -> Place<'a> {
        let now = Instant::now();
        let client = Arc::new(Client {
            since: now,
            moved: Mutex::new(Moved {
                last: now,
                bytes: 0.0,
            }),
            leaves: Notify::new(),
        });
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.push(Arc::clone(&client));
        Place {
            proxy: self,
            client,
            _permit: permit,
        }
    }

    fn slowest_leaves(&self) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let slowest = served
            .iter()
            .filter(|client| client.since.elapsed() > SPARED)
            .map(|client| (client.moved().lately(), client))
            .filter(|(lately, _)| *lately < SLOW)
            .min_by(|(one, _), (other, _)| one.total_cmp(other));
        if let Some((_, slowest)) = slowest {
            let slowest = Arc::clone(slowest);
            slowest.leaves.notify_one();
            // Removed here so that the next client that needs a place picks another victim.
            served.retain(|client| !Arc::ptr_eq(client, &slowest));
        }
    }

    /// Connects to the server, as soon as there is memory for a stream.
    async fn connect(&self) -> Result<RdmaStream> {
        let _turn = self.connects.acquire().await?;
        loop {
            match self.connector.connect(self.server).await {
                Err(error) if error.kind() == ErrorKind::Full => sleep(PAUSE).await,
                connected => return Ok(connected?),
            }
        }
    }

    /// Copies in both directions until both sides have ended or are idle, or another client takes
    /// the place.
    async fn carry(&self, client: TcpStream, arrival: Arrival) -> Result {
        client.set_nodelay(true)?;
        let meet = async {
            if client.peek(&mut [0]).await? == 0 {
                return Ok(None);
            }
            let permit = self.permit().await;
            Ok(Some((permit, self.connect().await?)))
        };
        let (Some((permit, stream)), _) = arrival.place(meet).await? else {
            return Ok(());
        };
        let place = self.place(permit);
        let it = &*place.client;
        let copy = async {
            let mut client = InspectReader::new(client, |bytes: &[u8]| it.moves(bytes));
            let mut stream = InspectReader::new(stream, |bytes: &[u8]| it.moves(bytes));
            copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER, BUFFER).await?;
            Ok(())
        };
        tokio::select! {
            copied = copy => copied,
            () = it.idle() => Err("nothing was said for a minute".into()),
            () = it.leaves.notified() => Err("a faster client needs its place".into()),
        }
    }
}
