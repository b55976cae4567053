//! A service: it accepts and greets clients, and knows those that are connected.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Poll;
use std::time::Duration;

use tracing::warn;

use super::arrivals::Arrivals;
use super::builder::ChannelBuilder;
use super::channel::Channel;
use super::connection::{At, Connection};
use super::greeting::{self, Answer, Hello};
use super::inbox::Inbox;
use super::listener::Listener;
use super::socket::Socket;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::{Polled, lock, log};

const ACCEPT: &str = "Service::accept";
/// The maximum number of clients that have connected but not sent a greeting.
const SILENT: usize = 64;
/// How long a client may be silent while others wait for its slot. Most clients are on this host.
const SILENCE: Duration = Duration::from_millis(10);

/// A named service on a representor, or at a TCP address: it accepts clients, each of which is a
/// [`Channel`].
///
/// Clients that connect wait until a task awaits [`accept`](Service::accept). Several tasks may
/// await `accept`: one that is polled gets the next client. Once the service is dropped, another
/// service, even of another process, can take its name; accepted Channels continue. The death of
/// the process frees the name as well.
///
/// ```
/// use tokio_doca::channel::{Channel, Service};
/// # use std::net::SocketAddr;
/// # use tokio_doca::Device;
///
/// /// Sends every message of every client back.
/// async fn echo(service: Service) -> tokio_doca::Result<()> {
///     loop {
///         let client = service.accept().await?;
///         tokio::spawn(async move {
///             while let Ok(message) = client.recv().await {
///                 client.send(&message).await?;
///             }
///             Ok::<(), tokio_doca::Error>(())
///         });
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let addr: SocketAddr = "127.0.0.1:0".parse().expect("an address");
/// # let service = Channel::builder().listen_tcp(&device, addr, "echo").await?;
/// # let addr = service.local_addr().expect("it listens at a TCP address");
/// # tokio::spawn(echo(service));
/// # let channel = Channel::builder().connect_tcp(&device, addr, "echo").await?;
/// # channel.send(b"hello").await?;
/// # assert_eq!(channel.recv().await?, "hello");
/// # Ok(())
/// # }
/// ```
#[doc(alias = "doca_comm_channel_ep_t")]
pub struct Service {
    local_addr: Option<SocketAddr>,
    arrivals: Polled<Arrivals<Channel>>,
    host: Host,
}

/// The values that are needed to greet a client.
#[derive(Clone)]
struct Host {
    config: ChannelBuilder,
    name: Arc<str>,
    peers: Arc<Peers>,
    at: At,
}

/// The connected clients.
struct Peers {
    max: usize,
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl Peers {
    /// Locks the list of connections, without those that are gone.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Connection>>> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections
    }
}

impl Service {
    pub(super) fn new(config: ChannelBuilder, name: &str, listener: Listener, at: At) -> Service {
        let runtime = at.runtime.clone();
        Service {
            local_addr: listener.local_addr(),
            arrivals: Polled::new(Arrivals::new(
                ACCEPT,
                Some(listener),
                runtime,
                (SILENT, SILENCE),
            )),
            host: Host {
                config,
                name: name.into(),
                peers: Arc::new(Peers {
                    max: config.max_peers,
                    connections: Mutex::default(),
                }),
                at,
            },
        }
    }

    /// Waits for the next client, and returns its channel.
    ///
    /// A client's failure causes no error of this call, so a server can end its loop when the call
    /// fails. While this process has no descriptor or memory for a client, the call waits, tries
    /// again every 100 ms, and logs to `tracing`.
    ///
    /// # Errors
    ///
    /// The system's error if the listening socket has failed. Later calls fail as well.
    ///
    /// # Cancel safety
    ///
    /// No client is lost: the next call returns it.
    pub async fn accept(&self) -> Result<Channel> {
        self.arrivals.wait(|| self.poll_accept()).await
    }

    fn poll_accept(&self) -> Poll<Result<Channel>> {
        let (came, unlogged) = self.arrivals.poll(|arrivals, cx| {
            let came = arrivals.poll(cx, |socket| Box::pin(greet(socket, self.host.clone())));
            let came = came.map_err(|error| Error::os(ACCEPT, "the listening socket", error));
            arrivals.lost.clear();
            (came, arrivals.unlogged.take())
        });
        if let Some(error) = unlogged {
            let service = self.name();
            log(|| warn!(target: "tokio_doca::channel", service, %error, "clients wait"));
        }
        if let Poll::Ready(Ok(Channel(connection))) = &came {
            connection.log("accepted", None);
        }
        came
    }

    /// Returns handles of the connected Channels: those that were accepted, and that still have a
    /// handle or unsent messages.
    #[doc(alias = "doca_comm_channel_ep_get_peer_addr_list")]
    pub fn peers(&self) -> Vec<Channel> {
        let connections = self.host.peers.lock();
        connections
            .iter()
            .filter_map(Weak::upgrade)
            .map(Channel)
            .collect()
    }

    /// Returns the service's name.
    pub fn name(&self) -> &str {
        &self.host.name
    }

    /// Returns the device of the service: the one given to `listen_tcp`, or the device of the
    /// service's representor.
    pub fn device(&self) -> &Device {
        &self.host.at.device
    }

    /// Returns the service's TCP address, if it has one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.host.name)
            .field("peers", &self.host.peers.lock().len())
            .finish()
    }
}

/// Greets a client, which may be hostile.
async fn greet(socket: Socket, host: Host) -> Result<Channel, Option<Error>> {
    let mut inbox = Inbox::new(greeting::LEN_MAX, 1);
    let hello = socket.read_frame(&mut inbox).await.map_err(|_| None)?;
    let answer = |answer: Answer| answer.bytes(host.config.max_message as u16);
    let theirs = match Hello::parse(&hello) {
        Ok(hello) if hello.service != &*host.name => Err(Answer::NoSuchService),
        Ok(_) if host.peers.lock().len() >= host.peers.max => Err(Answer::Full),
        Ok(hello) => Ok(hello.max_message),
        Err(wrong) => Err(wrong),
    };
    let refusal = theirs.err().unwrap_or(Answer::Welcome);
    // An answer is shorter than what any socket takes at once.
    let answered = socket.write_frame(&answer(refusal)).await;
    let theirs = answered.map_err(|_| None).and(theirs.map_err(|_| None))?;
    let connection = Arc::new(host.config.connection(socket, inbox, theirs, host.at));
    host.peers.lock().push(Arc::downgrade(&connection));
    Ok(Channel(connection))
}
