//! A peer that asks a listener for a stream, and the answer that the application gives it.

use std::fmt;
use std::sync::Arc;

use tracing::debug;

use super::connector::{check_data, in_time};
use super::side::{Net, not_passed};
use super::stream::{RdmaStream, StreamTransport};
use super::wire::{BUSY, CANNOT_CONNECT, CM_WELCOME_MAX, DATA_MAX, DRAINS, NO_RDMA};
use crate::channel::Peer;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::log;

mod cm;
mod meeting;

use cm::Asked;
pub(super) use cm::asked;
use meeting::Meeting;
pub(super) use meeting::read_hello;

const GRANT: &str = "Incoming::accept";
const REFUSE: &str = "Incoming::refuse";

/// How the peer has asked: over a socket, or by rdma_cm.
enum Way {
    Exchange(Meeting),
    Cm(Asked),
}

/// A peer that asks for a stream. Dropping the `Incoming` refuses the peer without a reason.
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
    way: Way,
    peer: Peer,
    net: Arc<Net>,
}

impl Incoming {
    /// Returns the peer that asks for the stream: its address, or its process and user.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the data that the peer has passed to
    /// [`RdmaConnector::connect_with`](super::RdmaConnector).
    pub fn data(&self) -> &[u8] {
        match &self.way {
            Way::Exchange(meeting) => meeting.data(),
            Way::Cm(asked) => asked.data(),
        }
    }

    /// Returns the transport that the stream would have, as far as it is known now. It is TCP if
    /// the peer has no RDMA, or has a device of another kind; then [`accept`](Incoming::accept)
    /// refuses the peer unless both sides allow TCP
    /// ([`StreamOptions::or_tcp`](super::StreamOptions::or_tcp)). The sides may still fail to
    /// connect by RDMA: the stream's [`transport`](RdmaStream::transport) returns the transport
    /// that it got.
    pub fn transport(&self) -> StreamTransport {
        match &self.way {
            Way::Exchange(meeting) => meeting.transport(),
            Way::Cm(_) => StreamTransport::Rdma,
        }
    }

    /// Accepts the peer: sends it `data`, of at most 16 KiB, or 164 bytes by rdma_cm, and returns
    /// the stream once the two sides are connected.
    ///
    /// # Errors
    ///
    /// On an error the peer is refused.
    ///
    /// - `NotSupported` if the peer has no RDMA, and this side does not allow TCP
    ///   ([`StreamOptions::or_tcp`](super::StreamOptions::or_tcp)), or if the peer's device is of
    ///   another host.
    /// - `Shutdown` once the listener [drains](super::RdmaListener::drain).
    /// - `Full` if all memory for streams is in use, and `NoMemory` if no more can be allocated.
    /// - `ConnectionAborted` if the peer could not connect, or gave up: its call of `connect` was
    ///   dropped or ran out of time, or its process has ended.
    /// - `TimedOut` after the [`timeout`](super::StreamOptions::timeout).
    /// - `InvalidValue` if `data` is too long: keep to 164 bytes if the listener has a
    ///   [`StreamAddr::Cm`](super::StreamAddr::Cm).
    /// - The errors of [`Rdma::connect`](crate::Rdma::connect), except its `ConnectionReset`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future refuses the peer.
    pub async fn accept(mut self, data: &[u8]) -> Result<RdmaStream> {
        let most = match &self.way {
            Way::Exchange(_) => DATA_MAX,
            Way::Cm(_) => CM_WELCOME_MAX,
        };
        check_data(GRANT, data, most)?;
        let limit = self.net.options.timeout;
        let granted = in_time(GRANT, limit, self.grant(data)).await;
        let path = match &self.way {
            Way::Exchange(meeting) => meeting.path,
            Way::Cm(asked) => asked.path,
        };
        let granted = granted.map_err(|error| match path {
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
            // This is logged at debug level, since strangers decide how often they connect.
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                debug!(target: "tokio_doca::stream", %peer, %error, "timed out");
            }
            Err(error) => debug!(target: "tokio_doca::stream", %peer, %error, "not accepted"),
        });
        if let Err(error) = &granted {
            self.way.say_refusal(refusal(error.kind()));
        }
        granted
    }

    async fn grant(&mut self, data: &[u8]) -> Result<RdmaStream> {
        let Some(guest) = self.net.guests.admit() else {
            let text = "the listener drains, and accepts no more streams";
            return Err(Error::new(ErrorKind::Shutdown, GRANT, text));
        };
        match &mut self.way {
            Way::Exchange(meeting) => meeting.grant(guest, data).await,
            Way::Cm(asked) => asked.grant(&self.net, guest, data).await,
        }
    }

    /// Refuses the peer: its call of `connect` fails with this reason, cut to 512 bytes, or to 146
    /// bytes by rdma_cm.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` if the peer has gone; `TimedOut` if it does not read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future refuses the peer without a reason.
    pub async fn refuse(mut self, reason: &str) -> Result<()> {
        let said = match &mut self.way {
            Way::Exchange(meeting) => meeting.state.refuse(reason).map(Some),
            Way::Cm(asked) => asked.refuse(reason).then_some(None),
        };
        let Some(refusal) = said else {
            return Ok(());
        };
        let peer = &self.peer;
        self.net.guests.count(|stats| stats.refused += 1);
        log(|| debug!(target: "tokio_doca::stream", %peer, reason, "refused"));
        let (Some(refusal), Way::Exchange(meeting)) = (refusal, &mut self.way) else {
            return Ok(());
        };
        meeting.exchange.op = REFUSE;
        let refusal = meeting.exchange.say(refusal);
        in_time(REFUSE, self.net.options.timeout, refusal).await
    }
}

impl Way {
    /// Sends the reason to a peer that cannot be accepted, if the peer waits for an answer.
    fn say_refusal(&mut self, reason: &str) {
        let meeting = match self {
            Way::Exchange(meeting) => meeting,
            Way::Cm(asked) => {
                asked.refuse(reason);
                return;
            }
        };
        if let Some(refusal) = meeting.state.refuse(reason) {
            // The message is short: if the socket does not take it at once, the peer does not read.
            let refuse = meeting.exchange.say(refusal);
            _ = futures::FutureExt::now_or_never(refuse);
        }
    }

    /// Returns true if the peer was neither accepted nor refused.
    fn waits(&self) -> bool {
        match self {
            Way::Exchange(meeting) => meeting.state.is_asked() && !meeting.state.is_done(),
            Way::Cm(asked) => asked.waits(),
        }
    }
}

/// Returns the text that is sent to a peer that cannot be accepted. It tells a stranger nothing
/// about this host.
fn refusal(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Full | ErrorKind::NoMemory => BUSY,
        ErrorKind::Shutdown => DRAINS,
        // The blob of a device of another kind fails with one of these kinds.
        ErrorKind::NotSupported | ErrorKind::InvalidValue => NO_RDMA,
        _ => CANNOT_CONNECT,
    }
}

/// Rewrites the error of a peer that has closed its endpoint or its socket before it was connected.
/// Errors of this side stay as they are.
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
    /// Counts a peer that was neither accepted nor refused.
    fn drop(&mut self) {
        if self.way.waits() {
            self.net.guests.count(|stats| stats.refused += 1);
            let peer = &self.peer;
            log(|| debug!(target: "tokio_doca::stream", %peer, "refused"));
        }
        if let Way::Cm(asked) = &mut self.way {
            // The empty text is in this library's form, which no other program sends.
            asked.refuse("");
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
