//! Connections by rdma_cm, between addresses: a listener, its requests, and the side that connects.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tracing::{debug, warn};

use super::super::Rdma;
use crate::device::{CmAnswer, CmListening, CmOffer, CmOptions, Device};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::RdmaState;
use crate::sync::{Blocking, Polled, deadline, log};

const TO: &str = "Rdma::connect_to";
const ACCEPT: &str = "CmRequest::accept";

/// The maximum number of requests that wait at a listener. Further requests are refused.
const BACKLOG: usize = 128;

impl Rdma {
    /// Connects by rdma_cm, the kernel's connection manager for RDMA, to a [`CmListener`] at
    /// `addr`, or to the listener of a program without this library ([`ConnectTo::foreign`]). The
    /// kernel finds the adapter, the route and the addresses. Each side is notified at once when
    /// the other side ends. This needs an adapter, and the library librdmacm.
    ///
    /// `addr` must be reachable by the Rdma's own device;
    /// [`source`](crate::rdma::Transport::source) sets the address of this host to connect from.
    /// Packets are as large as the route allows:
    /// [`RdmaBuilder::mtu`](super::super::RdmaBuilder::mtu) and `gid_index` have no effect.
    ///
    /// Nothing begins before the first poll. The time limit is the builder's, unless
    /// [`ConnectTo::timeout`] sets another one.
    ///
    /// # Errors
    ///
    /// - `NotSupported` on the software device, on a system without rdma_cm, and if `addr` is
    ///   reached by another device or by none.
    /// - `ConnectionAborted` if there is no route to the host now, no program listens at `addr`, or
    ///   the peer refuses. If the peer refuses, the error contains what its application has sent.
    /// - `TimedOut` after the time limit.
    /// - `InvalidValue` for too much [private data](ConnectTo::private_data), or if
    ///   [`ConnectTo::foreign`] does not match the peer.
    /// - `BadState` unless the Rdma is in the state Init, or if the WorkQ is shut down, which ends
    ///   the attempt.
    ///
    /// After an error the state is Init, or Error if the adapter had begun to connect the queue
    /// pair (over iWARP, if it had sent the request to the peer). In the state Error,
    /// [`reset`](Rdma::reset) the Rdma.
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::connect`].
    #[doc(alias = "doca_rdma_connect_to_addr")]
    #[doc(alias = "rdma_connect")]
    #[doc(alias = "rdma_resolve_addr")]
    pub fn connect_to(&self, addr: SocketAddr) -> ConnectTo {
        ConnectTo(Call::new(self, TO, How::Dial(addr), addr))
    }
}

/// The future of [`Rdma::connect_to`]. Its output is the private data that the peer's application
/// sent.
///
/// ```no_run
/// # use tokio_doca::{Device, Rdma, WorkQ};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open("mlx5_0")?;
/// let rdma = Rdma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let said = rdma.connect_to("10.0.0.2:7471".parse()?).private_data(b"volume 7").await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct ConnectTo(Call);

/// The future of [`CmRequest::accept`].
#[must_use = "futures do nothing unless polled"]
pub struct CmAccept(Call);

macro_rules! options {
    ($name:ident, $most:literal, $foreign:literal, $output:ty, $said:expr) => {
        impl $name {
            #[doc = concat!("Sends `data` to the peer's application: up to ", $most, " bytes, or ", $foreign)]
            /// to a [`foreign`](Self::foreign) one. Defaults to no data.
            pub fn private_data(mut self, data: &[u8]) -> $name {
                self.0.private_data = data.to_vec();
                self
            }

            /// Sets whether the peer is a program without this library. Such a peer gets the
            /// private data and nothing else. The peer's own private data arrives padded with
            /// zeros, to a length that depends on the transport. Such a peer does not say what it
            /// permits: this side assumes that it permits writes. If the peer's queue pair answers
            /// reads, this side assumes that the peer permits reads too, and atomics except over
            /// iWARP. This side does not probe such a peer while the connection is idle. Defaults
            /// to `false`.
            pub fn foreign(mut self, foreign: bool) -> $name {
                self.0.foreign = foreign;
                self
            }

            /// Sets how long the attempt may take, from the first poll on. Defaults to the
            /// builder's [`connect_timeout`](crate::rdma::RdmaBuilder::connect_timeout).
            pub fn timeout(mut self, timeout: Duration) -> $name {
                self.0.timeout = timeout;
                self
            }
        }

        impl Future for $name {
            type Output = Result<$output>;

            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                self.0.poll(cx).map_ok($said)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("rdma", &self.0.rdma)
                    .field("peer", &self.0.peer)
                    .field("timeout", &self.0.timeout)
                    .finish()
            }
        }
    };
}

options!(ConnectTo, "30", "56", Bytes, Bytes::from);
options!(CmAccept, "170", "196", (), drop);

/// The side of the connection: the one that connects, or the one that accepts.
enum How {
    Dial(SocketAddr),
    Accept(Box<dyn CmOffer>),
    Begun,
}

/// An attempt to connect, or to accept a request, with its options.
struct Call {
    rdma: Rdma,
    op: &'static str,
    how: How,
    peer: SocketAddr,
    private_data: Vec<u8>,
    foreign: bool,
    timeout: Duration,
    call: Blocking<Vec<u8>>,
    /// Completes when the WorkQ is shut down.
    closed: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl Call {
    fn new(rdma: &Rdma, op: &'static str, how: How, peer: SocketAddr) -> Call {
        Call {
            rdma: rdma.clone(),
            op,
            how,
            peer,
            private_data: Vec::new(),
            foreign: false,
            timeout: rdma.connect_timeout(),
            call: Blocking::new(),
            closed: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        if !self.call.is_begun() {
            self.rdma.check_open(self.op)?;
            self.begin();
        }
        let polled = self.call.poll(self.op, cx);
        if polled.is_pending() && !self.is_closed(cx) {
            return Poll::Pending;
        }
        let open = self.rdma.check_open(self.op);
        // The shutdown ends the attempt, and the reset notifies the peer.
        open.inspect_err(|_| self.rdma.port().reset())?;
        if let Poll::Ready(Ok(_)) = polled {
            self.rdma.port().set_peer(self.peer.to_string());
        }
        polled.map_err(|error| error.with_call(self.op))
    }

    /// Returns true if the WorkQ was shut down. If not, the shutdown will wake the task.
    fn is_closed(&mut self, cx: &mut Context<'_>) -> bool {
        let closed = self.closed.get_or_insert_with(|| {
            let mut watch = self.rdma.port().watch();
            Box::pin(async move { _ = watch.wait_for(|it| it == RdmaState::Reset).await })
        });
        closed.as_mut().poll(cx).is_ready()
    }

    fn begin(&mut self) {
        let port = self.rdma.port();
        let (rdma, peer, endpoint) = (port.id(), self.peer, Arc::clone(port.endpoint()));
        let options = CmOptions {
            private_data: std::mem::take(&mut self.private_data),
            foreign: self.foreign,
            deadline: deadline(self.timeout),
        };
        log(|| debug!(target: "tokio_doca::rdma", rdma, %peer, "connect"));
        let how = std::mem::replace(&mut self.how, How::Begun);
        self.call.begin_answered(|answer| {
            let answer: CmAnswer = Box::new(move |result| {
                log(|| match &result {
                    Ok(_) => debug!(target: "tokio_doca::rdma", rdma, %peer, "connected"),
                    Err(error) => {
                        warn!(target: "tokio_doca::rdma", rdma, %peer, %error, "connect refused");
                    }
                });
                answer(result);
            });
            match how {
                How::Dial(addr) => endpoint.connect_to(addr, options, answer),
                How::Accept(offer) => endpoint.accept(offer, options, answer),
                How::Begun => {}
            }
        });
    }
}

/// Listens at an address for connections by rdma_cm (`rdma_listen`), also from programs without
/// this library.
///
/// A request has the peer's address, and private data from the peer's application. Accept the
/// request with an [`Rdma`] on the listener's device, or refuse it. Up to 128 requests wait;
/// further ones are refused. If the listener is dropped, the requests that wait are refused, and
/// accepted connections continue.
///
/// ```no_run
/// # use tokio_doca::{Device, Rdma, WorkQ, rdma::CmListener};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (device, workq) = (Device::open("mlx5_0")?, WorkQ::builder().build()?);
/// let listener = CmListener::bind(&device, "0.0.0.0:7471".parse()?)?;
/// loop {
///     let request = listener.accept().await?;
///     if request.private_data() != b"volume 7" {
///         request.reject(b"no such volume")?;
///         continue;
///     }
///     // If one peer fails, the loop accepts the next.
///     let rdma = match Rdma::builder(&device).attach(&workq) {
///         Ok(rdma) => rdma,
///         Err(error) => {
///             eprintln!("{error}");               // the peer is refused
///             continue;
///         }
///     };
///     // Post receives first: the peer may send at once.
///     tokio::spawn(async move {
///         match request.accept(&rdma).await {
///             Ok(()) => serve(rdma).await,        // the connection ends with the Rdma
///             Err(error) => eprintln!("{error}"),
///         }
///     });
/// }
/// # }
/// # async fn serve(_: Rdma) {}
/// ```
#[doc(alias = "doca_rdma_start_listen_to_port")]
#[doc(alias = "rdma_listen")]
pub struct CmListener {
    device: Device,
    // Declared before `line`, and so dropped first: no request arrives after that.
    listening: Box<dyn CmListening>,
    line: Arc<Polled<Requests>>,
}

/// The requests of a listener that wait to be accepted.
#[derive(Default)]
struct Requests {
    offers: VecDeque<Box<dyn CmOffer>>,
    /// The reason why no more requests will come, if that is so.
    failure: Option<(ErrorKind, String)>,
}

impl Requests {
    fn arrived(line: &Polled<Requests>, offer: Result<Box<dyn CmOffer>>) {
        let refused = line.poll(|requests, cx| {
            match offer {
                Ok(offer) if requests.offers.len() >= BACKLOG => return Some(offer),
                Ok(offer) => requests.offers.push_back(offer),
                Err(error) => requests.failure = Some((error.kind(), error.to_string())),
            }
            cx.waker().wake_by_ref();
            None
        });
        if let Some(offer) = refused {
            let peer = offer.peer_addr();
            let text = "too many requests wait at a CmListener: one is refused";
            log(|| debug!(target: "tokio_doca::rdma", %peer, "{text}"));
        }
    }

    fn take(&mut self) -> Poll<Result<Box<dyn CmOffer>>> {
        if let Some(offer) = self.offers.pop_front() {
            return Poll::Ready(Ok(offer));
        }
        match &self.failure {
            Some((kind, text)) => Poll::Ready(Err(Error::new(*kind, None, text.clone()))),
            None => Poll::Pending,
        }
    }
}

impl CmListener {
    /// Listens at an address of `device`, or at all its addresses (`0.0.0.0`, `::`): requests that
    /// come to another adapter are refused. Port 0 is replaced by a free port. Port numbers are
    /// separate from those of TCP, except on iWARP.
    ///
    /// # Errors
    ///
    /// `NotSupported` on the software device, on a system without rdma_cm, and for an address that
    /// no adapter has; `InvalidValue` for an address of another adapter; `AlreadyExist` if the
    /// address is in use; the system's error if `addr` is not an address of this host.
    pub fn bind(device: &Device, addr: SocketAddr) -> Result<CmListener> {
        const OP: &str = "CmListener::bind";
        let line = Arc::new(Polled::new(Requests::default()));
        let arrived = Arc::clone(&line);
        let arrivals = Arc::new(move |offer| Requests::arrived(&arrived, offer));
        let adapter = device.adapter();
        let listening = adapter.listen_at(addr, BACKLOG as u32, arrivals);
        let listening = listening.map_err(|error| error.with_call(OP))?;
        Ok(CmListener {
            device: device.clone(),
            listening,
            line,
        })
    }

    /// Returns the address at which the listener listens, with the actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.local_addr()
    }

    /// Returns the device whose requests are accepted.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits for the next request of a peer.
    ///
    /// # Errors
    ///
    /// `Driver` once the adapter was removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no request.
    pub async fn accept(&self) -> Result<CmRequest> {
        let poll = || self.line.poll(|requests, _| requests.take());
        let taken = self.line.wait(poll).await;
        let taken = taken.map_err(|error| error.with_call("CmListener::accept"));
        taken.map(CmRequest)
    }
}

impl fmt::Debug for CmListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmListener")
            .field("device", &self.device)
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

/// A peer's request to a [`CmListener`] for a connection. Dropping it refuses the peer.
pub struct CmRequest(Box<dyn CmOffer>);

impl CmRequest {
    /// Returns the peer's address. The peer's kernel reports the address, so in an untrusted
    /// network it proves nothing.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr()
    }

    /// Returns the private data of the peer's application. The private data of a
    /// [foreign](CmRequest::is_foreign) peer is padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        self.0.private_data()
    }

    /// Returns true if the peer's request comes from a program without this library. Accept it with
    /// [`CmAccept::foreign`], or refuse it.
    pub fn is_foreign(&self) -> bool {
        self.0.is_foreign()
    }

    /// Accepts the request. The Rdma is connected once the peer has confirmed the connection. The
    /// peer may send at once: post receives first. The time limit is that of the Rdma's builder
    /// ([`connect_timeout`](crate::rdma::RdmaBuilder::connect_timeout)), unless
    /// [`CmAccept::timeout`] sets another one. Nothing begins before the first poll.
    ///
    /// Over iWARP the Rdma is connected without a confirmation, and the peer sends first. Jobs of
    /// this side wait until the peer's first message has come, and fail if it does not come within
    /// their time limits.
    ///
    /// # Errors
    ///
    /// As [`Rdma::connect_to`]; `InvalidValue` if the Rdma is on another device than the listener.
    /// On an error the peer is refused.
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::connect`].
    #[doc(alias = "doca_rdma_connection_accept")]
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, rdma: &Rdma) -> CmAccept {
        let peer = self.peer_addr();
        CmAccept(Call::new(rdma, ACCEPT, How::Accept(self.0), peer))
    }

    /// Refuses the peer. Its application gets `private_data`, up to 148 bytes, as the reason. This
    /// call does not wait. A peer that has given up meanwhile gets nothing.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `private_data` is longer than 148 bytes. The peer is refused all the same.
    #[doc(alias = "doca_rdma_connection_reject")]
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        let rejected = self.0.reject(private_data);
        rejected.map_err(|error| error.with_call("CmRequest::reject"))
    }
}

impl fmt::Debug for CmRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmRequest")
            .field("peer_addr", &self.peer_addr())
            .field("is_foreign", &self.is_foreign())
            .finish_non_exhaustive()
    }
}
