//! Brings clients that know TCP alone to a server over RDMA.
//!
//! A client must say something within 10 s, and before 64 newer clients arrive: then it has a
//! stream to the server, which it loses when neither side says anything for a minute. There are
//! fewer streams than there may be clients. If all are in use, a new client takes the place of the
//! slowest one: the one that has moved the fewest bytes lately, both ways together, and fewer than
//! 16. Bytes count for half as much with each second that passes, and at most 512 count at all, so
//! that what a client has fetched keeps its place for 5 s. Clients of less than a second are
//! spared. So a client that says nothing or a byte once in a while keeps no other out, and a slow
//! one is served as long as all clients have a place. If none is that slow, the new client waits
//! for 10 s at most. Protocols in which the server speaks first need another proxy.
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

/// Bytes of a buffer: a frame of a stream.
const BUFFER: usize = 32 << 10;
/// How long a client may take until it has a stream, and how long both sides may say nothing then.
const FIRST: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);
/// How many clients have a stream at once: fewer than `options` has memory for, since the memory of
/// a stream that has ended comes back a moment later.
const PLACES: usize = 120;
/// How many connect at once: of more the server may hang up on the oldest, as if they were silent.
const CONNECTS: usize = 16;
/// A client that has moved fewer bytes lately may lose its place, once it has had it for so long.
const SLOW: f64 = 16.0;
const SPARED: Duration = Duration::from_secs(1);
/// The most bytes that count. They fall below `SLOW` after 5 s, while a new client still waits.
const COUNTED: f64 = 32.0 * SLOW;
/// Between tries to connect while the memory of all streams is in use, and to accept without a
/// descriptor.
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
    // The proxy has places of its own.
    let mut arrivals = Arrivals::new(Semaphore::MAX_PERMITS, FIRST);
    loop {
        let (client, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // No descriptor for instance: it may have one later.
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
    /// Another client needs its place.
    leaves: Notify,
}

/// What a client and the server have said to each other.
struct Moved {
    last: Instant,
    /// The bytes that counted then.
    bytes: f64,
}

/// A client's place, which ends with it.
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

    /// Waits until neither side has said anything for long.
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
    /// Returns the bytes that count now: half as many with each second.
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
    /// Waits until it may have a place. As long as there is none, has the slowest client leave now
    /// and then.
    async fn permit(&self) -> SemaphorePermit<'_> {
        let mut permit = pin!(self.free.acquire());
        loop {
            // At once if there is one.
            if let Ok(permit) = timeout(Duration::ZERO, &mut permit).await {
                break permit.expect("nobody closes it");
            }
            self.slowest_leaves();
            if let Ok(permit) = timeout(SPARED, &mut permit).await {
                break permit.expect("nobody closes it");
            }
        }
    }

    /// Gives a client its place, once it is connected: before that it moves nothing.
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
            // The next one that needs a place takes another one's.
            served.retain(|client| !Arc::ptr_eq(client, &slowest));
        }
    }

    /// Connects to the server, once there is memory for a stream.
    async fn connect(&self) -> Result<RdmaStream> {
        let _turn = self.connects.acquire().await?;
        loop {
            match self.connector.connect(self.server).await {
                Err(error) if error.kind() == ErrorKind::Full => sleep(PAUSE).await,
                connected => return Ok(connected?),
            }
        }
    }

    /// Copies both ways, until both sides have ended or are idle, or another client has the place.
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
