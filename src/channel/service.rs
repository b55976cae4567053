//! A service: the clients that come, those that are greeted, and those that are connected.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};

use tracing::warn;

use super::builder::ChannelBuilder;
use super::channel::Channel;
use super::connection::{At, Connection};
use super::greeting::{self, Answer, Hello};
use super::inbox::Inbox;
use super::listener::Listener;
use super::patient::{PatientListener, is_full};
use super::socket::Socket;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::{Polled, lock, log};

const ACCEPT: &str = "Service::accept";
/// The maximum number of clients that have connected and not greeted. The next one takes the slot
/// of the oldest.
const SILENT: usize = 64;
/// How many come in one turn.
const TURN: usize = 64;

/// A named service on a representor, or at a TCP address: it accepts clients, each of which is a
/// [`Channel`].
///
/// Clients are greeted while a task awaits [`accept`](Service::accept), and wait until then.
/// Several tasks may await it: one that is polled gets the next client. Once the service is
/// dropped, another one, which may be of another process, can take its name; the Channels that it
/// has accepted continue. `kill -9` frees the name as well.
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
    name: Arc<str>,
    device: Device,
    local_addr: Option<SocketAddr>,
    arrivals: Polled<Arrivals>,
    peers: Arc<Peers>,
}

/// Whom to greet, and how.
struct Arrivals {
    listener: PatientListener,
    /// The clients that have not sent their greeting; the oldest comes first.
    greetings: VecDeque<Greeting>,
    config: ChannelBuilder,
    name: Arc<str>,
    at: At,
}

type Greeting = Pin<Box<dyn Future<Output = Option<Channel>> + Send>>;

/// Who is connected.
struct Peers {
    max: usize,
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl Peers {
    /// Without those that are gone.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Connection>>> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections
    }
}

impl Service {
    pub(super) fn new(config: ChannelBuilder, name: &str, listener: Listener, at: At) -> Service {
        let name: Arc<str> = name.into();
        Service {
            device: at.device.clone(),
            local_addr: listener.local_addr(),
            peers: Arc::new(Peers {
                max: config.max_peers,
                connections: Mutex::default(),
            }),
            arrivals: Polled::new(Arrivals {
                listener: PatientListener::new(listener, at.runtime.clone()),
                greetings: VecDeque::new(),
                config,
                name: Arc::clone(&name),
                at,
            }),
            name,
        }
    }

    /// Waits for the next client, and returns its channel.
    ///
    /// A client that goes wrong causes no error of this call, so that a server may end its loop at
    /// an error. While this process has no descriptor or memory for a client, the call waits, tries
    /// again every 100 ms, and logs to `tracing`.
    ///
    /// # Errors
    ///
    /// What the system says if the listening socket has failed: the next call fails as well.
    ///
    /// # Panics
    ///
    /// In a runtime without time, if this process has no descriptor or memory for a client.
    ///
    /// # Cancel safety
    ///
    /// No client is lost: the next call returns it.
    pub async fn accept(&self) -> Result<Channel> {
        self.arrivals.wait(|| self.poll_accept()).await
    }

    fn poll_accept(&self) -> Poll<Result<Channel>> {
        let (came, unlogged) = self.arrivals.poll(|arrivals, cx| {
            let came = arrivals.poll(cx, &self.peers);
            (came, arrivals.listener.unlogged.take())
        });
        if let Some(error) = unlogged {
            let service = &*self.name;
            log(|| warn!(target: "tokio_doca::channel", service, %error, "clients wait"));
        }
        if let Poll::Ready(Ok(Channel(connection))) = &came {
            connection.log("accepted", None);
        }
        came
    }

    /// Returns handles of the connected Channels: those that were accepted and still have a handle,
    /// or messages to send.
    #[doc(alias = "doca_comm_channel_ep_get_peer_addr_list")]
    pub fn peers(&self) -> Vec<Channel> {
        let connections = self.peers.lock();
        connections
            .iter()
            .filter_map(Weak::upgrade)
            .map(Channel)
            .collect()
    }

    /// Returns the service's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the device of the service, or the device whose representor it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the service's TCP address, if it has one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.name)
            .field("peers", &self.peers.lock().len())
            .finish()
    }
}

impl Arrivals {
    fn poll(&mut self, cx: &mut Context<'_>, peers: &Arc<Peers>) -> Poll<Result<Channel>> {
        for _ in 0..TURN {
            if let Some(channel) = self.greeted(cx) {
                return Poll::Ready(Ok(channel));
            }
            match self.listener.poll_accept(cx, self.greetings.is_empty()) {
                Poll::Pending => return Poll::Pending,
                // A stranger takes a part of the turn too.
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Ok(Some(socket))) => {
                    if self.greetings.len() == SILENT {
                        self.greetings.pop_front();
                    }
                    let greeting = greet(
                        socket,
                        self.config,
                        Arc::clone(&self.name),
                        Arc::clone(peers),
                        self.at.clone(),
                    );
                    self.greetings.push_back(Box::pin(greeting));
                }
                // A silent client has a descriptor that another one needs.
                Poll::Ready(Err(error)) if is_full(&error) => {
                    self.greetings.pop_front();
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Error::os(ACCEPT, "the listening socket", error)));
                }
            }
        }
        // Many came, and none is done: the others of this thread first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks at all who are being greeted: one who is done.
    fn greeted(&mut self, cx: &mut Context<'_>) -> Option<Channel> {
        let mut at = 0;
        while let Some(greeting) = self.greetings.get_mut(at) {
            match greeting.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(channel) => {
                    self.greetings.remove(at);
                    if channel.is_some() {
                        return channel;
                    }
                }
            }
        }
        None
    }
}

/// Returns the service's half of the greeting; `None` if there is nothing more to be said to that
/// one.
async fn greet(
    socket: Socket,
    config: ChannelBuilder,
    name: Arc<str>,
    peers: Arc<Peers>,
    at: At,
) -> Option<Channel> {
    let mut inbox = Inbox::new(greeting::LEN_MAX, 1);
    let hello = socket.read_frame(&mut inbox).await.ok()?;
    let answer = |answer: Answer| answer.bytes(config.max_message as u16);
    let theirs = match Hello::parse(&hello) {
        Ok(hello) if hello.service != &*name => Err(Answer::NoSuchService),
        Ok(_) if peers.lock().len() >= peers.max => Err(Answer::Full),
        Ok(hello) => Ok(hello.max_message),
        Err(wrong) => Err(wrong),
    };
    let refusal = theirs.err().unwrap_or(Answer::Welcome);
    // An answer is shorter than what any socket takes at once.
    socket.write_frame(&answer(refusal)).await.ok()?;
    let connection = Arc::new(config.connection(socket, inbox, theirs.ok()?, at));
    peers.lock().push(Arc::downgrade(&connection));
    Some(Channel(connection))
}
