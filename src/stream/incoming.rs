//! A peer that asks a listener for a stream: what it wants, and whether it gets one.

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::RdmaStream;
use super::connector::{check_data, in_time};
use super::options::{Exchange, Net};
use super::wire::{CANNOT_CONNECT, Message, Wrong};
use crate::channel::{Peer, Socket};
use crate::error::{Error, ErrorKind, Result};

const GRANT: &str = "Incoming::accept";
const REFUSE: &str = "Incoming::refuse";

/// Hears what a peer wants; `None` if it says nothing that can be answered.
pub(super) async fn hear(socket: Socket, net: Arc<Net>, runtime: Handle) -> Option<Incoming> {
    let limit = net.options.timeout;
    let mut exchange = Exchange::new(GRANT, socket, runtime);
    let greeting = async {
        let hello = exchange.hear().await?;
        match Message::parse(&hello) {
            Ok(Message::Hello(_)) => return Ok(Some(hello)),
            Err(wrong @ Wrong::Version(_)) => {
                // A peer of another version reads the version of this answer.
                exchange.say(Message::Refusal(&wrong.to_string())).await?;
            }
            _ => {}
        }
        Ok(None)
    };
    let hello = in_time(GRANT, limit, greeting).await.ok()??;
    Some(Incoming {
        peer: exchange.socket.peer(),
        hello,
        exchange,
        net,
    })
}

/// A peer that asks for a stream. Dropping it refuses the peer without a reason.
#[must_use = "the peer waits for an answer"]
pub struct Incoming {
    exchange: Exchange,
    /// The peer's hello, which was parsed before.
    hello: bytes::Bytes,
    peer: Peer,
    net: Arc<Net>,
}

impl Incoming {
    /// Returns who asks: its address, or its process and user.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns what the peer has told [`RdmaConnector::connect_with`](super::RdmaConnector).
    pub fn data(&self) -> &[u8] {
        match Message::parse(&self.hello) {
            Ok(Message::Hello(offer)) => offer.data,
            _ => &[],
        }
    }

    /// Connects, and tells the peer `data`, of at most 16 KiB.
    ///
    /// # Errors
    ///
    /// The peer is refused then. `Shutdown` once the listener
    /// [drains](RdmaListener::drain); `Full` if all memory for streams is in use;
    /// `ConnectionAborted` if the peer could not connect, or gave up: its connect was dropped or
    /// ran out of time, or its process has ended; `TimedOut` after the
    /// [`timeout`](StreamOptions::timeout); `InvalidValue` for more than 16 KiB of `data`; as
    /// [`Rdma::connect`](crate::Rdma::connect), but for its `ConnectionReset`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future refuses the peer.
    pub async fn accept(mut self, data: &[u8]) -> Result<RdmaStream> {
        check_data(GRANT, data)?;
        let limit = self.net.options.timeout;
        let granted = in_time(GRANT, limit, self.grant(data)).await;
        if let Err(error) = &granted {
            // A short message: the socket takes it at once, or the peer does not read.
            let refusal = Message::Refusal(refusal(error.kind())).bytes();
            let refuse = self.exchange.socket.write_frame(&refusal);
            _ = futures::FutureExt::now_or_never(refuse);
        }
        granted
    }

    async fn grant(&mut self, data: &[u8]) -> Result<RdmaStream> {
        let Ok(Message::Hello(theirs)) = Message::parse(&self.hello) else {
            unreachable!("it was parsed before");
        };
        let (options, exchange) = (self.net.options, &mut self.exchange);
        let Some(guest) = self.net.guests.admit() else {
            let text = "the listener drains: nobody is accepted any more";
            return Err(Error::new(ErrorKind::Shutdown, GRANT, text));
        };
        let mut side = self.net.side(GRANT, &exchange.runtime)?;
        side.core.set_guest(guest);
        let listens = side.listen(GRANT, theirs, options.timeout).await;
        listens.map_err(|error| match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => gave_up(&error),
            _ => error,
        })?;
        let welcomed = exchange.say(Message::Welcome(side.welcome(data))).await;
        welcomed.map_err(|error| gave_up(&error))?;
        let answer = exchange.hear().await.map_err(|error| gave_up(&error))?;
        match exchange.understand(&answer)? {
            Message::Ready => {}
            _ => {
                let text = "the peer does not say whether it is connected";
                return Err(exchange.error(ErrorKind::ConnectionAborted, text));
            }
        }
        let came = side.introduction(GRANT).await;
        came.map_err(|error| gave_up(&error))?;
        let (core, wakers) = (side.core, side.wakers);
        Ok(RdmaStream::new(
            core,
            wakers,
            self.peer.clone(),
            options.linger,
        ))
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
        let refusal = self.exchange.say(Message::Refusal(reason));
        in_time(REFUSE, self.net.options.timeout, refusal).await
    }
}

/// Returns what is sent to a peer that cannot be accepted. A stranger learns nothing of this host.
fn refusal(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Full => "all streams are in use",
        ErrorKind::Shutdown => "the listener drains",
        _ => CANNOT_CONNECT,
    }
}

/// The peer has closed its endpoint or its socket before it was connected.
fn gave_up(error: &Error) -> Error {
    let text = format!(
        "the peer gave up before it was connected: {}",
        error.message()
    );
    Error::new(ErrorKind::ConnectionAborted, GRANT, text)
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
