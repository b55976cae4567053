//! The connector: the side of a stream that connects to a listener.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::exchange::{Connecting, Fail};
use super::options::{SURE, StreamAddr, StreamOptions};
use super::side::{CONNECT, Exchange, Net, Side, each_address, fell_back, not_passed};
use super::stream::{Link, RdmaStream};
use super::wire::{CM_HELLO_MAX, DATA_MAX, Offer};
use crate::channel::{Socket, runtime};
use crate::device::{Device, Path};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::WorkQ;
use crate::sync::log;

mod cm;

/// How long a connector waits for large packets to pass before it falls back to 1,024 bytes.
const TEST: Duration = Duration::from_secs(1);

const NEW: &str = "RdmaConnector::new";

/// Connects streams to listeners. Clones of a connector share the memory for their streams.
///
/// ```
/// use tokio_doca::stream::{RdmaConnector, RdmaListener};
/// # use std::net::SocketAddr;
/// # use tokio_doca::{Device, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let addr: SocketAddr = "127.0.0.1:0".parse()?;
/// # let listener = RdmaListener::bind(&device, &workq, addr).await?;
/// # let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// let connector = RdmaConnector::new(&device, &workq)?;       // up to 64 streams at once
/// let accept = async { listener.accept().await?.accept(b"welcome").await };
/// let connect = connector.connect_with(addr, b"version 2");
/// let ((stream, answer), accepted) = tokio::try_join!(connect, accept)?;
/// assert_eq!(answer, b"welcome");
/// # drop((stream, accepted));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RdmaConnector(Arc<Net>);

impl RdmaConnector {
    /// Returns a connector with the default [`StreamOptions`], for streams on this device and
    /// WorkQ.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for an option that is out of its range; `NotSupported` for one that the
    /// device does not have, and for a device without RDMA, unless TCP is allowed
    /// ([`StreamOptions::or_tcp`]).
    pub fn new(device: &Device, workq: &WorkQ) -> Result<RdmaConnector> {
        StreamOptions::new().connector(device, workq)
    }

    /// Connects to the listener at `addr`.
    ///
    /// # Errors
    ///
    /// As [`RdmaConnector::connect_with`].
    ///
    /// # Cancel safety
    ///
    /// As [`RdmaConnector::connect_with`].
    pub async fn connect(&self, addr: impl Into<StreamAddr>) -> Result<RdmaStream> {
        let (stream, _) = self.connect_with(addr, &[]).await?;
        Ok(stream)
    }

    /// Connects to the listener at `addr`, and sends it `data`, of at most 16 KiB: a version,
    /// credentials, or the blob of [`Mmap::export_rdma`](crate::Mmap::export_rdma). Returns the
    /// stream, and the data that the listener passed to
    /// [`Incoming::accept`](super::Incoming::accept).
    ///
    /// # Errors
    ///
    /// - `ConnectionAborted` if nothing listens there (as an [`io::Error`](std::io::Error) it is
    ///   `ConnectionRefused`), or if the connection cannot be made.
    /// - `NotPermitted` if the listener's application refuses; the text has the application's
    ///   reason.
    /// - `Full` if all memory for streams is in use, on this side or the other; `Shutdown` if the
    ///   listener [drains](super::RdmaListener::drain). In both cases you may try again.
    /// - `NotSupported` if there is no RDMA between the sides, and one of them does not allow TCP
    ///   ([`StreamOptions::or_tcp`]).
    /// - `NoMemory` if this side cannot allocate more memory.
    /// - `NotFound` for a host without an address, or a string without a port.
    /// - `UnsupportedVersion` if the listener speaks another version of the protocol.
    /// - `TimedOut` if the listener does not answer within the [`timeout`](StreamOptions::timeout),
    ///   or if the connection then takes that long again, as between adapters that cannot reach one
    ///   another.
    /// - `InvalidValue` for more than 16 KiB of `data`, or 24 bytes by rdma_cm
    ///   ([`StreamAddr::Cm`]).
    /// - `BadState` without a Tokio runtime.
    /// - The errors of [`Rdma::connect`](crate::Rdma::connect), or by rdma_cm those of
    ///   [`Rdma::connect_to`](crate::Rdma::connect_to).
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the attempt.
    pub async fn connect_with(
        &self,
        addr: impl Into<StreamAddr>,
        data: &[u8],
    ) -> Result<(RdmaStream, Vec<u8>)> {
        let addr = addr.into();
        let connected = self.connect_to(&addr, data).await;
        log(|| match &connected {
            Ok((stream, _)) => {
                let (peer, path, transport) = (stream.peer(), stream.path(), stream.transport());
                debug!(target: "tokio_doca::stream", %addr, %peer, ?transport, path, "connected");
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                warn!(target: "tokio_doca::stream", %addr, %error, "timed out");
            }
            Err(error) => warn!(target: "tokio_doca::stream", %addr, %error, "not connected"),
        });
        connected
    }

    async fn connect_to(&self, addr: &StreamAddr, data: &[u8]) -> Result<(RdmaStream, Vec<u8>)> {
        let most = match addr {
            StreamAddr::Cm(_) => CM_HELLO_MAX,
            _ => DATA_MAX,
        };
        check_data(CONNECT, data, most)?;
        let runtime = runtime(CONNECT)?;
        let options = self.0.options;
        let mut limit = options.timeout;
        if let StreamAddr::Cm(addr) = addr {
            let connected = cm::connect(&self.0, *addr, data, &runtime).await?;
            if let Some(connected) = connected {
                return Ok(connected);
            }
            // TCP gets the half of the time that rdma_cm has left.
            limit /= 2;
        }
        let greet = async {
            let socket = match addr {
                StreamAddr::Tcp(addr) | StreamAddr::Cm(addr) => {
                    Socket::connect_tcp(CONNECT, *addr).await?
                }
                StreamAddr::Unix(path) => Socket::connect_path(CONNECT, path).await?,
                StreamAddr::Host(name) => {
                    let connect = async |addr| Socket::connect_tcp(CONNECT, addr).await;
                    each_address(CONNECT, name, options.timeout, connect).await?
                }
            };
            let mut exchange = Exchange::new(CONNECT, socket, runtime, &self.0);
            let (side, blob) = match self.begin(&exchange).await? {
                Ok((side, blob)) => (Ok(side), blob),
                Err(why) => (Err(why), Vec::new()),
            };
            let answer = self.0.ask(&mut exchange, &blob, data).await?;
            Ok((side, exchange, answer))
        };
        let (side, exchange, answer) = in_time(CONNECT, limit, greet).await?;
        let connect = self.dial(side, exchange, answer, data);
        in_time(CONNECT, options.timeout, connect).await
    }

    /// Begins this side of a connection. Returns the side and its blob, or, if there is no RDMA
    /// here and the stream may do without it, the reason.
    async fn begin(&self, exchange: &Exchange) -> Result<Result<(Side, Vec<u8>)>> {
        match with_blob(self.0.side(CONNECT, Some(exchange)).await) {
            Err(error) if exchange.may_tcp && self.0.is_of_rdma(&error) => Ok(Err(error)),
            side => side
                .map(Ok)
                .map_err(|error| self.0.without_tcp(CONNECT, error)),
        }
    }

    /// Connects to the listener that has answered. An attempt that fails may be followed by others,
    /// with smaller packets or by TCP, if both sides agree.
    async fn dial(
        &self,
        side: Result<Side>,
        mut exchange: Exchange,
        mut answer: Bytes,
        data: &[u8],
    ) -> Result<(RdmaStream, Vec<u8>)> {
        let net = &*self.0;
        let mut state = Connecting::new(exchange.may_tcp, side.is_ok());
        let begun = Instant::now();
        let (mut side, mut why) =
            side.map_or_else(|why| (None, Some(why)), |side| (Some(side), None));
        let mut pools = None;
        let (link, wakers, theirs) = loop {
            let offer = state
                .receive(&answer)
                .map_err(|fail| exchange.failure(fail))?;
            let Some(mut it) = side.take_if(|_| !offer.is_tcp()) else {
                let pools = match pools.or(side.map(Side::into_pools)) {
                    Some(pools) => Ok(pools),
                    None => net.tcp_pools(CONNECT).await,
                };
                let pools = exchange.say_dialled(&mut state, pools).await?;
                let frame = net.options.frame_size.min(offer.frame as usize);
                let link = Link::over_tcp(&mut exchange, pools, frame);
                fell_back(&exchange.socket.peer(), why);
                break (link, Arc::default(), offer.data.to_vec());
            };
            let reached = self.reach(&mut it, &mut exchange, &mut state, offer, begun);
            let blob = match reached.await? {
                Reached::Connected => {
                    let link = Link::over_rdma(it.core, &it.wakers, &exchange.runtime);
                    break (link, it.wakers, offer.data.to_vec());
                }
                Reached::SmallPackets => match with_blob(net.side_again(&exchange, it).await) {
                    Ok((it, blob)) => {
                        side = Some(it);
                        blob
                    }
                    Err(error) if self.0.is_of_rdma(&error) && state.falls_back() => {
                        why = Some(error);
                        Vec::new()
                    }
                    Err(error) => return Err(error),
                },
                Reached::Tcp(error) => {
                    (pools, why) = (Some(it.into_pools()), Some(error));
                    Vec::new()
                }
            };
            answer = net.ask(&mut exchange, &blob, data).await?;
        };
        let linger = net.options.linger;
        let stream = RdmaStream::new(link, wakers, exchange.met(), linger, None);
        Ok((stream, theirs))
    }

    /// Connects by RDMA, and tells the listener the result. If the path carries no large packets,
    /// or none at all, the caller may send another hello, which asks for a transport that works.
    async fn reach(
        &self,
        side: &mut Side,
        exchange: &mut Exchange,
        state: &mut Connecting,
        offer: Offer<'_>,
        begun: Instant,
    ) -> Result<Reached> {
        let timeout = self.0.options.timeout;
        // The attempt gets a share of the time: it ends before the exchange times out, so that the
        // error names the path, or time is left for TCP.
        let share = match state.both_may() {
            true => timeout / 2,
            false => timeout * 15 / 16,
        };
        let left = || share.saturating_sub(begun.elapsed());
        let dialled = side.dial(exchange, offer, left()).await;
        let large = side.path();
        let large = large.filter(|path| dialled.is_ok() && path.mtu > SURE);
        let limit = large.map_or_else(left, |_| TEST.min(timeout / 4));
        let connected = match dialled {
            Ok(()) => pass(side, exchange, state, limit).await?,
            failed => failed,
        };
        let connected = match (connected, large) {
            (Err(error), Some(path)) if self.0.is_of_rdma(&error) && state.asks_again() => {
                let text = "no packets of this size have passed: 1,024 bytes from now on";
                let (peer, mtu) = (exchange.socket.peer(), path.mtu.bytes());
                log(|| warn!(target: "tokio_doca::stream", %peer, mtu, %error, "{text}"));
                return Ok(Reached::SmallPackets);
            }
            (Err(error), _) if self.0.is_of_rdma(&error) && state.falls_back() => {
                return Ok(Reached::Tcp(error));
            }
            (connected, _) => connected,
        };
        let said = exchange.say_dialled(state, connected).await;
        said.map(|()| Reached::Connected)
    }
}

impl Exchange {
    /// Tells the listener whether the connection succeeded, and returns `dialled`.
    async fn say_dialled<T>(&self, state: &mut Connecting, dialled: Result<T>) -> Result<T> {
        let said = match state.dialled(dialled.is_ok()) {
            Some(message) => self.say(message).await,
            None => Ok(()),
        };
        dialled.and_then(|dialled| said.map(|()| dialled))
    }
}

/// Adds the blob with which the other side connects to this one.
fn with_blob(side: Result<Side>) -> Result<(Side, Vec<u8>)> {
    let side = side?;
    let blob = side.blob(CONNECT)?;
    Ok((side, blob))
}

/// The result of connecting to a listener by RDMA.
enum Reached {
    Connected,
    /// Large packets do not pass, so the connector asks for smaller ones.
    SmallPackets,
    Tcp(Error),
}

/// Sends and receives the first frames, within `limit` if there is a network. Returns the result.
///
/// # Errors
///
/// Fails if the listener gives up meanwhile, or sends an unexpected message.
async fn pass(
    side: &mut Side,
    exchange: &mut Exchange,
    state: &mut Connecting,
    limit: Duration,
) -> Result<Result<()>> {
    let path = side.path();
    let passes = async {
        let Some(path) = path else {
            return side.pass(CONNECT).await;
        };
        pass_within(side, path, limit).await
    };
    let said = match select(pin!(passes), pin!(exchange.read_message())).await {
        Either::Left((passed, _)) => return Ok(passed),
        Either::Right((said, _)) => said?,
    };
    let fail = state.receive(&said).err().unwrap_or(Fail::Unexpected);
    Err(exchange.failure(fail))
}

/// Sends and receives the first frames over a network, within `limit`.
async fn pass_within(side: &mut Side, path: Path, limit: Duration) -> Result<()> {
    let passed = tokio::time::timeout(limit, side.pass(CONNECT)).await;
    passed.unwrap_or_else(|_| {
        let why = format!("no frame has passed both ways within {limit:?}");
        let nothing = || not_passed(CONNECT, ErrorKind::TimedOut, &why, path);
        Err(side.held_up(CONNECT).unwrap_or_else(nothing))
    })
}

impl StreamOptions {
    /// Returns a connector for streams on this device and WorkQ.
    ///
    /// # Errors
    ///
    /// As [`RdmaConnector::new`].
    pub fn connector(self, device: &Device, workq: &WorkQ) -> Result<RdmaConnector> {
        let net = Net::new(NEW, self, device, workq, true)?;
        Ok(RdmaConnector(Arc::new(net)))
    }
}

/// Refuses data that does not fit into the exchange.
pub(super) fn check_data(op: &'static str, data: &[u8], most: usize) -> Result<()> {
    match data.len() {
        len if len > most => {
            let text = format!(
                "{len} bytes of data, and at most {most} fit into the exchange: send the rest on \
                 the stream"
            );
            Err(Error::new(ErrorKind::InvalidValue, op, text))
        }
        _ => Ok(()),
    }
}

/// How long an exchange may take before the log says that it waits.
const LATE: Duration = Duration::from_secs(1);

/// Awaits `exchange` for at most `limit`, and fails with `TimedOut` after that.
pub(super) async fn in_time<T>(
    op: &'static str,
    limit: Duration,
    exchange: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut exchange = pin!(exchange);
    let first = limit.min(LATE);
    if let Ok(outcome) = tokio::time::timeout(first, exchange.as_mut()).await {
        return outcome;
    }
    if limit > LATE {
        log(|| debug!(target: "tokio_doca::stream", call = op, "waits for its peer"));
    }
    match tokio::time::timeout(limit - first, exchange).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let text = format!("the exchange with the peer has not ended within {limit:?}");
            Err(Error::new(ErrorKind::TimedOut, op, text))
        }
    }
}

impl fmt::Debug for RdmaConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaConnector")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}
