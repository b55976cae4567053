//! A peer that asks a listener for a stream: what it wants, and whether it gets one.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::runtime::Handle;

use tracing::{debug, warn};

use super::connector::{check_data, in_time};
use super::exchange::{Listening, Over};
use super::side::{Exchange, Net, Place, Side, fell_back, not_passed};
use super::stream::{Link, RdmaStream, StreamTransport};
use super::wire::{BUSY, CANNOT_CONNECT, DRAINS, Message, NO_RDMA, Offer, Wrong};
use crate::channel::{Peer, Socket};
use crate::device::Path;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::log;

const GRANT: &str = "Incoming::accept";
const REFUSE: &str = "Incoming::refuse";

/// Hears what a peer wants. Fails if it says nothing that can be answered: the caller has the log
/// say so, once it has no locks.
pub(super) async fn hear(
    socket: Socket,
    net: Arc<Net>,
    runtime: Handle,
) -> std::result::Result<Incoming, (Peer, Error)> {
    let limit = net.options.timeout;
    let mut exchange = Exchange::new(GRANT, socket, runtime, &net);
    let greeting = async {
        let (hello, mut state) = (exchange.hear().await?, Listening::new(exchange.may_tcp));
        let over = match state.asked(&hello) {
            Ok(_) => return Ok((hello, state)),
            Err(over) => over,
        };
        if let Over::Wrong(wrong @ Wrong::Version(_)) = over {
            // A peer of another version reads the version of this answer.
            exchange.say(Message::Refusal(&wrong.to_string())).await?;
        }
        Err(exchange.over(over))
    };
    let heard = tokio::time::timeout(limit, greeting).await;
    let peer = exchange.socket.peer();
    let silent = || {
        exchange.error(
            ErrorKind::TimedOut,
            format!("{peer} has said nothing for {limit:?}"),
        )
    };
    match heard.unwrap_or_else(|_| Err(silent())) {
        Ok((hello, state)) => Ok(Incoming {
            peer,
            hello,
            exchange,
            state,
            net,
            path: None,
        }),
        Err(error) => Err((peer, error)),
    }
}

/// A peer that asks for a stream. Dropping it refuses the peer without a reason.
///
/// ```
/// use tokio_doca::stream::{Incoming, RdmaStream};
/// # use std::net::SocketAddr;
/// # use tokio_doca::{Device, WorkQ, stream::StreamOptions};
///
/// /// Accepts peers of the same version only.
/// async fn admit(incoming: Incoming) -> tokio_doca::Result<Option<RdmaStream>> {
///     match incoming.data() {
///         b"version 2" => Ok(Some(incoming.accept(b"").await?)),
///         _ => incoming.refuse("this service speaks version 2").await.map(|()| None),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let options = StreamOptions::new().connections(1);
/// # let listener = options.bind(&device, &workq, "127.0.0.1:0".parse::<SocketAddr>()?).await?;
/// # let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// # let connector = options.connector(&device, &workq)?;
/// let accept = async { admit(listener.accept().await?).await };
/// let (connected, admitted) = tokio::join!(connector.connect_with(addr, b"version 1"), accept);
/// assert!(admitted?.is_none());
/// assert!(connected.unwrap_err().to_string().contains("speaks version 2"));
/// # Ok(())
/// # }
/// ```
#[must_use = "the peer waits for an answer"]
pub struct Incoming {
    exchange: Exchange,
    state: Listening,
    /// The peer's hello, which was parsed before.
    hello: bytes::Bytes,
    peer: Peer,
    net: Arc<Net>,
    /// The path over which its frames are waited for.
    path: Option<Path>,
}

impl Incoming {
    /// Returns who asks: its address, or its process and user.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns what the peer has told [`RdmaConnector::connect_with`](super::RdmaConnector).
    pub fn data(&self) -> &[u8] {
        hello_of(&self.hello).data
    }

    /// Returns how the bytes of its stream would travel, as far as it is known now: not by RDMA if
    /// the peer has none, or has a device of another kind. Then it is refused by
    /// [`accept`](Incoming::accept) if either side demands RDMA. RDMA may fail yet: the stream's
    /// [`transport`](RdmaStream::transport) says what became of it.
    pub fn transport(&self) -> StreamTransport {
        let theirs = hello_of(&self.hello);
        match theirs.is_tcp() || self.net.check_peer(GRANT, theirs.blob).is_err() {
            true => StreamTransport::Tcp,
            false => StreamTransport::Rdma,
        }
    }

    /// Connects, and tells the peer `data`, of at most 16 KiB.
    ///
    /// # Errors
    ///
    /// The peer is refused then. `NotSupported` if the peer has no RDMA, and this side demands it
    /// ([`StreamOptions::or_tcp`](super::StreamOptions::or_tcp)), or its device is of another host;
    /// `Shutdown` once the listener [drains](super::RdmaListener::drain); `Full` if all memory for
    /// streams is in use, and `NoMemory` if no more can be had; `ConnectionAborted` if the peer
    /// could not connect, or gave up: its connect was dropped or ran out of time, or its process
    /// has ended; `TimedOut` after the [`timeout`](super::StreamOptions::timeout); `InvalidValue`
    /// for more than 16 KiB of `data`; as [`Rdma::connect`](crate::Rdma::connect), but for its
    /// `ConnectionReset`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future refuses the peer.
    pub async fn accept(mut self, data: &[u8]) -> Result<RdmaStream> {
        check_data(GRANT, data)?;
        let limit = self.net.options.timeout;
        let granted = in_time(GRANT, limit, self.grant(data)).await;
        let granted = granted.map_err(|error| match self.path {
            Some(path) if error.kind() == ErrorKind::TimedOut => {
                not_passed(GRANT, error.kind(), error.message(), path)
            }
            _ => error,
        });
        let peer = &self.peer;
        let failed = granted.as_ref().err().map(Error::kind);
        self.net.guests.count(|stats| match failed {
            None => stats.accepted += 1,
            Some(ErrorKind::Full) => stats.full += 1,
            Some(ErrorKind::TimedOut) => stats.timed_out += 1,
            Some(_) => stats.failed += 1,
        });
        log(|| match &granted {
            Ok(stream) => {
                let (path, transport) = (stream.path(), stream.transport());
                debug!(target: "tokio_doca::stream", %peer, ?transport, path, "accepted");
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                warn!(target: "tokio_doca::stream", %peer, %error, "timed out");
            }
            Err(error) => warn!(target: "tokio_doca::stream", %peer, %error, "not accepted"),
        });
        if let Err(error) = &granted
            && let Some(refusal) = self.state.refuse(refusal(error.kind()))
        {
            // A short message: the socket takes it at once, or the peer does not read.
            let refuse = self.exchange.say(refusal);
            _ = futures::FutureExt::now_or_never(refuse);
        }
        granted
    }

    async fn grant(&mut self, data: &[u8]) -> Result<RdmaStream> {
        let guest = self.net.guests.admit();
        if guest.is_none() {
            let text = "the listener drains: nobody is accepted any more";
            return Err(self.exchange.error(ErrorKind::Shutdown, text));
        }
        // Another thread may have heard the peer than the one that accepts it.
        self.exchange.may_tcp &= self.net.may_tcp();
        let (mut hello, mut before, mut failure) = (self.hello.clone(), None, None);
        // The path may carry no large packets, or nothing: then the peer asks for something else.
        let (link, wakers) = loop {
            match self.prepare(before.take(), &hello).await? {
                Prepared::Rdma(mut side, blob) => match self.meet(&mut side, &blob, data).await? {
                    Some((again, failed)) => {
                        if let Some(full) = side.held_up(GRANT)
                            && hello_of(&again).is_tcp()
                        {
                            return Err(full);
                        }
                        (before, hello, failure) = (Some(side), again, failed);
                    }
                    None => {
                        let link = Link::over_rdma(side.core, &side.wakers, &self.exchange);
                        break (link, side.wakers);
                    }
                },
                Prepared::Tcp(place, why) => {
                    let link = self.fall_back(place, &hello, data).await?;
                    fell_back(&self.peer, why.or(failure));
                    break (link, Arc::default());
                }
            }
        };
        let linger = self.net.options.linger;
        Ok(RdmaStream::new(link, wakers, &self.exchange, linger, guest))
    }

    /// Listens for the peer, in place of what was not met before; not if there is no RDMA, and both
    /// may do without.
    async fn prepare(&self, mut before: Option<Side>, hello: &[u8]) -> Result<Prepared> {
        let (net, exchange, theirs) = (&self.net, &self.exchange, hello_of(hello));
        let may = exchange.may_tcp && theirs.may_tcp();
        if theirs.is_tcp() {
            let text = "the peer has no RDMA, and this side demands it (StreamOptions::or_tcp)";
            return match may {
                true => Ok(Prepared::Tcp(before.map(Side::into_place), None)),
                false => Err(net.without_tcp(GRANT, exchange.error(ErrorKind::NotSupported, text))),
            };
        }
        let checked = match may {
            true => net.check_peer(GRANT, theirs.blob),
            false => Ok(()),
        };
        if let Err(error) = checked {
            return Ok(Prepared::Tcp(before.map(Side::into_place), Some(error)));
        }
        let side = match before.take() {
            Some(before) => net.side_again(exchange, before).await,
            None => net.side(exchange).await,
        };
        let (error, place) = match side {
            Ok(mut side) => match listen(&mut side, theirs).await {
                Ok(blob) => return Ok(Prepared::Rdma(side, blob)),
                Err(error) => (error, Some(side.into_place())),
            },
            Err(error) => (error, None),
        };
        if !may || !net.is_of_rdma(&error) {
            return Err(net.without_tcp(GRANT, error));
        }
        Ok(Prepared::Tcp(place, Some(error)))
    }

    /// Welcomes the peer, and waits until it has come. If it asks again, returns its other hello
    /// and what has failed on this side.
    async fn meet(
        &mut self,
        side: &mut Side,
        blob: &[u8],
        data: &[u8],
    ) -> Result<Option<(Bytes, Option<Error>)>> {
        self.welcome(blob, side.first_credits(), data).await?;
        // What the peer says decides. Its frames pass meanwhile, or do not.
        let exchange = &mut self.exchange;
        self.path = side.path();
        let mut passes = pin!(side.pass(GRANT));
        let (answer, passed) = match select(pin!(exchange.hear()), passes.as_mut()).await {
            Either::Left((answer, _)) => (answer, None),
            Either::Right((passed, hears)) => (hears.await, Some(passed)),
        };
        let answer = answer.map_err(gave_up)?;
        let heard = self.state.hear(&answer);
        if heard.map_err(|over| self.exchange.over(over))?.is_some() {
            return Ok(Some((answer, passed.and_then(Result::err))));
        }
        let passed = match passed {
            Some(passed) => passed,
            None => passes.await,
        };
        self.path = None;
        passed.map_err(gave_up)?;
        self.state.came();
        self.check_done().map(|()| None)
    }

    /// Welcomes the peer on the connection of the exchange, and waits until it says that it is
    /// there.
    async fn fall_back(&mut self, place: Option<Place>, hello: &[u8], data: &[u8]) -> Result<Link> {
        let place = match place {
            Some(place) => place,
            None => self.net.tcp_place(GRANT).await?,
        };
        self.welcome(&[], 0, data).await?;
        let answer = self.exchange.hear().await.map_err(gave_up)?;
        let heard = self.state.hear(&answer);
        heard.map_err(|over| self.exchange.over(over))?;
        self.check_done()?;
        let frame = hello_of(hello).frame as usize;
        let frame = self.net.options.frame_size.min(frame);
        let link = Link::over_tcp(&mut self.exchange, place, frame);
        self.net.guests.count(|stats| stats.fell_back += 1);
        Ok(link)
    }

    async fn welcome(&mut self, blob: &[u8], credits: u16, data: &[u8]) -> Result<()> {
        let offer = self.net.offer(&self.exchange, blob, credits, data);
        match self.state.welcome(offer) {
            Some(welcome) => self.exchange.say(welcome).await.map_err(gave_up),
            None => Ok(()),
        }
    }

    fn check_done(&self) -> Result<()> {
        match self.state.is_done() {
            true => Ok(()),
            false => Err(self.exchange.over(Over::Already)),
        }
    }

    /// Refuses the peer: its connect fails with this reason, of which it gets 512 bytes.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` if the peer has gone, `TimedOut` if it does not read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future refuses the peer without a reason.
    pub async fn refuse(mut self, reason: &str) -> Result<()> {
        self.exchange.op = REFUSE;
        let Some(refusal) = self.state.refuse(reason) else {
            return Ok(());
        };
        let peer = &self.peer;
        self.net.guests.count(|stats| stats.refused += 1);
        log(|| debug!(target: "tokio_doca::stream", %peer, reason, "refused"));
        let refusal = self.exchange.say(refusal);
        in_time(REFUSE, self.net.options.timeout, refusal).await
    }
}

/// How a peer is met.
enum Prepared {
    /// With what it connects with.
    Rdma(Side, Vec<u8>),
    /// On the connection of the exchange, with the memory of what was tried, and why if it is this
    /// side that has no RDMA.
    Tcp(Option<Place>, Option<Error>),
}

/// Takes the connector as the peer, and returns what it connects with: this side knows its own
/// address then.
async fn listen(side: &mut Side, theirs: Offer<'_>) -> Result<Vec<u8>> {
    side.listen(GRANT, theirs).await.map_err(gave_up)?;
    side.blob(GRANT)
}

/// Returns what a hello says, which was parsed before.
fn hello_of(hello: &[u8]) -> Offer<'_> {
    match Message::parse(hello) {
        Ok(Message::Hello(offer)) => offer,
        _ => unreachable!("it was parsed before"),
    }
}

/// Returns what is sent to a peer that cannot be accepted. A stranger learns nothing of this host.
fn refusal(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Full | ErrorKind::NoMemory => BUSY,
        ErrorKind::Shutdown => DRAINS,
        // A blob of another kind is one of these.
        ErrorKind::NotSupported | ErrorKind::InvalidValue => NO_RDMA,
        _ => CANNOT_CONNECT,
    }
}

/// The peer has closed its endpoint or its socket before it was connected. What is wrong on this
/// side is said as it is.
fn gave_up(error: Error) -> Error {
    let is_the_peers = matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
    );
    if !is_the_peers {
        return error;
    }
    let text = format!(
        "the peer gave up before it was connected: {}",
        error.message()
    );
    Error::new(ErrorKind::ConnectionAborted, GRANT, text)
}

impl Drop for Incoming {
    /// Counts a peer that was neither accepted nor told why not.
    fn drop(&mut self) {
        if self.state.is_asked() && !self.state.is_done() {
            self.net.guests.count(|stats| stats.refused += 1);
            let peer = &self.peer;
            log(|| debug!(target: "tokio_doca::stream", %peer, "refused"));
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
