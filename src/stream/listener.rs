//! The side that listens: it accepts the peers that connect to its socket, and reads their hellos.

use std::fmt;
use std::future::Future;
use std::mem::take;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Once};
use std::task::Poll;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::runtime::Handle;
use tracing::{debug, warn};

use super::drain::ListenerStats;
use super::incoming::{Incoming, read_hello};
use super::options::{StreamAddr, StreamOptions};
use super::side::{Net, each_address};
use crate::channel::{Arrivals, Listener, Peer, runtime};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::CmListener;
use crate::reactor::WorkQ;
use crate::sync::{Polled, log};

mod cm;

const BIND: &str = "RdmaListener::bind";
const FROM_STD: &str = "RdmaListener::from_std";
const ACCEPT: &str = "RdmaListener::accept";
/// How long a peer may be silent while others wait for its slot.
const SILENCE: Duration = Duration::from_millis(100);

/// Listens for streams at a TCP address, a Unix socket, or an address of rdma_cm.
///
/// ```no_run
/// # use tokio_doca::{Device, WorkQ, stream::{RdmaConnector, RdmaListener}};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # async fn greet(device: &Device, workq: &WorkQ) -> Result<(), Box<dyn std::error::Error>> {
/// let addr: std::net::SocketAddr = "127.0.0.1:4791".parse()?;
/// let listener = RdmaListener::bind(device, workq, addr).await?;
/// tokio::spawn(async move {
///     let incoming = listener.accept().await?;
///     println!("{} says {:?}", incoming.peer(), incoming.data());
///     incoming.accept(b"").await?.write_all(b"hello").await?;
///     Ok::<(), std::io::Error>(())
/// });
/// let mut stream = RdmaConnector::new(device, workq)?.connect(addr).await?;
/// let mut hello = String::new();
/// stream.read_to_string(&mut hello).await?;
/// # Ok(())
/// # }
/// ```
///
/// While no task awaits [`accept`](RdmaListener::accept), peers that connect wait. Several tasks
/// may await `accept`: one of those that are polled gets the next peer. Streams that were accepted
/// outlive their listener. Dropping the listener leaves the path of a Unix socket in place: remove
/// it before you bind it again.
pub struct RdmaListener {
    net: Arc<Net>,
    addr: StreamAddr,
    tcp: Option<SocketAddr>,
    cm: Option<CmListener>,
    /// True if `accept` takes a peer of rdma_cm first, because the last peer came by the socket.
    cm_first: AtomicBool,
    /// Logs once that no more peers will come by rdma_cm.
    cm_over: Once,
    arrivals: Polled<Arrivals<Incoming>>,
}

impl RdmaListener {
    /// Listens at `addr` with the default [`StreamOptions`], for streams on this device and WorkQ.
    ///
    /// # Errors
    ///
    /// - `InvalidValue` for an option that is out of its range.
    /// - `NotSupported` for an option that the device does not have. Also for a device without
    ///   RDMA, and for an iWARP adapter at an address that is no [`StreamAddr::Cm`], unless TCP is
    ///   allowed ([`StreamOptions::or_tcp`]).
    /// - `NotFound` for a host without an address, or a string without a port.
    /// - `AlreadyExist` if the address is in use.
    /// - `NoMemory` if the memory of the first streams cannot be allocated.
    /// - `BadState` without a Tokio runtime.
    /// - By rdma_cm, the errors of [`CmListener::bind`](crate::rdma::CmListener::bind); if TCP is
    ///   allowed, `NotSupported` makes the listener listen by TCP alone.
    /// - Errors of the system.
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    pub async fn bind(
        device: &Device,
        workq: &WorkQ,
        addr: impl Into<StreamAddr>,
    ) -> Result<RdmaListener> {
        StreamOptions::new().bind(device, workq, addr).await
    }

    /// Listens on a TCP socket that is already listening, with the default [`StreamOptions`]. Use
    /// it for a socket that a service manager has opened, or that an earlier process of the service
    /// has passed on.
    ///
    /// ```
    /// # use tokio_doca::{Device, WorkQ, stream::RdmaListener};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (device, workq) = (Device::open_default()?, WorkQ::builder().build()?);
    /// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let listener = RdmaListener::from_std(&device, &workq, socket)?;
    /// assert!(listener.tcp_addr().is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`bind`](RdmaListener::bind), but not `NoMemory`: the memory is allocated with the first
    /// stream.
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    pub fn from_std(
        device: &Device,
        workq: &WorkQ,
        socket: std::net::TcpListener,
    ) -> Result<RdmaListener> {
        StreamOptions::new().from_std(device, workq, socket)
    }

    /// Returns the address at which the listener listens, with the port that the system has chosen.
    pub fn local_addr(&self) -> &StreamAddr {
        &self.addr
    }

    /// Returns the TCP address at which the listener listens, if there is one.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Returns the counts of the listener's peers so far. They are always kept.
    pub fn stats(&self) -> ListenerStats {
        self.net.guests.stats()
    }

    /// Waits for the next peer that asks for a stream. The stream begins with [`Incoming::accept`];
    /// [`Incoming::refuse`] refuses the peer. Call one of the two in a task of its own, so that a
    /// slow peer delays no other.
    ///
    /// A failure of one peer is no error of this call. While this process has no descriptor or
    /// memory for a peer, the call waits, tries again every 100 ms, and writes an event to
    /// `tracing`.
    ///
    /// # Errors
    ///
    /// `IoFailed` if the listening socket has failed; `Driver` if the adapter of a listener by
    /// rdma_cm was removed, and the listener does not also listen by TCP. After these errors, later
    /// calls fail as well. `BadState` without a Tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    ///
    /// # Cancel safety
    ///
    /// No peer is lost: the next call returns it.
    pub async fn accept(&self) -> Result<Incoming> {
        let runtime = runtime(ACCEPT)?;
        let Some(cm) = &self.cm else {
            return self.arrivals.wait(|| self.poll_socket(&runtime)).await;
        };
        let by_cm = pin!(self.accept_by_cm(cm, &runtime));
        let by_socket = pin!(self.arrivals.wait(|| self.poll_socket(&runtime)));
        // The peers of the socket and those of rdma_cm take turns.
        let cm_first = self.cm_first.load(SeqCst);
        let each: [Pin<&mut (dyn Future<Output = _> + Send)>; 2] = match cm_first {
            true => [by_cm, by_socket],
            false => [by_socket, by_cm],
        };
        let [first, second] = each;
        let came = select(first, second).await;
        let was_first = matches!(came, Either::Left(_));
        self.cm_first.store(was_first != cm_first, SeqCst);
        came.factor_first().0
    }

    /// Polls for a peer that has connected to the socket and sent its hello.
    fn poll_socket(&self, runtime: &Handle) -> Poll<Result<Incoming>> {
        let greet = |socket| read_hello(socket, Arc::clone(&self.net), runtime.clone());
        let (came, unlogged, lost) = self.arrivals.poll(|arrivals, cx| {
            let came = arrivals.poll(cx, |socket| Box::pin(greet(socket)));
            let came = came.map_err(|error| {
                let text = format!("the listening socket: {error}");
                Error::new(ErrorKind::IoFailed, ACCEPT, text)
            });
            let silent = arrivals.silent() as u64;
            self.net.guests.count(|stats| stats.half_open = silent);
            (came, arrivals.unlogged.take(), take(&mut arrivals.lost))
        });
        for (peer, error) in lost {
            self.lost(&peer, &error);
        }
        if let Some(error) = unlogged {
            log(|| warn!(target: "tokio_doca::stream", %error, "peers wait"));
        }
        came
    }

    /// Counts and logs a peer that has not become an `Incoming`.
    fn lost(&self, peer: &Peer, error: &Error) {
        self.net.guests.count(|stats| match error.kind() {
            ErrorKind::TimedOut => stats.timed_out += 1,
            _ => stats.strangers += 1,
        });
        log(|| match error.kind() {
            ErrorKind::TimedOut => {
                debug!(target: "tokio_doca::stream", %peer, %error, "timed out");
            }
            _ => debug!(target: "tokio_doca::stream", %peer, %error, "no peer"),
        });
    }

    /// Shuts the listener down in order: accepts no more peers, completes the
    /// [`draining`](super::RdmaStream::draining) futures of its streams, and waits until all
    /// streams that it has accepted are closed, for `limit` at most. Returns how many streams are
    /// still open.
    ///
    /// A stream is closed once it was dropped, and its end was sent or its
    /// [`linger`](super::StreamOptions::linger) time has passed. Streams that are still open stay
    /// usable: drop them, for example by aborting their tasks. Peers that have connected and were
    /// not accepted are refused; [`Incoming::accept`](super::Incoming::accept) fails with
    /// `Shutdown`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use tokio_doca::stream::{RdmaListener, RdmaStream};
    /// async fn serve(mut stream: RdmaStream) -> std::io::Result<()> {
    ///     let draining = stream.draining();
    ///     tokio::pin!(draining);
    ///     loop {
    ///         let mut request = [0; 64];
    ///         tokio::select! {
    ///             read = stream.read_exact(&mut request) => { read?; }
    ///             () = &mut draining => return stream.shutdown().await,
    ///         }
    ///         stream.write_all(&request).await?;
    ///     }
    /// }
    ///
    /// async fn server(listener: RdmaListener, stop: impl Future) -> tokio_doca::Result<()> {
    ///     tokio::pin!(stop);
    ///     loop {
    ///         tokio::select! {
    ///             incoming = listener.accept() => {
    ///                 let incoming = incoming?;
    ///                 // A peer that is slow or fails holds up its own task alone.
    ///                 tokio::spawn(async move { serve(incoming.accept(b"").await?).await });
    ///             }
    ///             _ = &mut stop => break,
    ///         }
    ///     }
    ///     let left = listener.drain(Duration::from_secs(10)).await;
    ///     println!("{left} streams did not end in time");
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the future is polled outside of a Tokio runtime, or in one whose time driver is
    /// not enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the listener, and waits for no stream. The first poll of the
    /// future notifies the streams.
    pub async fn drain(self, limit: Duration) -> usize {
        // This drops the sockets that listen, and the peers that have sent nothing.
        drop((self.arrivals, self.cm));
        let left = self.net.guests.drain(limit).await;
        log(|| debug!(target: "tokio_doca::stream", addr = %self.addr, left, "drained"));
        left
    }
}

impl StreamOptions {
    /// Listens at an address, for streams on this device and WorkQ.
    ///
    /// # Errors
    ///
    /// As [`RdmaListener::bind`].
    pub async fn bind(
        self,
        device: &Device,
        workq: &WorkQ,
        addr: impl Into<StreamAddr>,
    ) -> Result<RdmaListener> {
        let addr = addr.into();
        runtime(BIND)?;
        let by_cm = matches!(addr, StreamAddr::Cm(_));
        let net = Net::new(BIND, self, device, workq, by_cm)?;
        net.prepare(BIND).await?;
        let listener = match &addr {
            StreamAddr::Tcp(addr) => Listener::tcp(BIND, *addr).await?,
            StreamAddr::Unix(path) => Listener::path(BIND, path)?,
            StreamAddr::Cm(addr) => return RdmaListener::by_cm(net, *addr).await,
            StreamAddr::Host(name) => {
                each_address(BIND, name, self.timeout, async |addr| {
                    Listener::tcp(BIND, addr).await
                })
                .await?
            }
        };
        Ok(RdmaListener::new(net, Some(listener), None, addr))
    }

    /// Listens on a socket that is already listening: see [`RdmaListener::from_std`].
    pub fn from_std(
        self,
        device: &Device,
        workq: &WorkQ,
        socket: std::net::TcpListener,
    ) -> Result<RdmaListener> {
        runtime(FROM_STD)?;
        let net = Net::new(FROM_STD, self, device, workq, false)?;
        let os = |error| Error::os(FROM_STD, "the socket", error);
        let addr = socket.local_addr().map_err(os)?;
        let listener = Listener::from_std(socket).map_err(os)?;
        Ok(RdmaListener::new(net, Some(listener), None, addr.into()))
    }
}

impl RdmaListener {
    fn new(
        net: Net,
        listener: Option<Listener>,
        cm: Option<CmListener>,
        addr: StreamAddr,
    ) -> RdmaListener {
        let tcp = listener.as_ref().and_then(Listener::local_addr);
        let addr = match (addr, tcp) {
            (StreamAddr::Tcp(_) | StreamAddr::Host(_), Some(tcp)) => StreamAddr::Tcp(tcp),
            (addr, _) => addr,
        };
        log(|| debug!(target: "tokio_doca::stream", %addr, "bound"));
        let slots = (net.options.half_open, SILENCE);
        let arrivals = Arrivals::new(ACCEPT, listener, Handle::current(), slots);
        RdmaListener {
            net: Arc::new(net),
            addr,
            tcp,
            cm,
            cm_first: AtomicBool::new(true),
            cm_over: Once::new(),
            arrivals: Polled::new(arrivals),
        }
    }
}

impl fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaListener")
            .field("addr", &self.addr)
            .field("options", &self.net.options)
            .finish_non_exhaustive()
    }
}
