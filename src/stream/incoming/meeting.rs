//! A peer that has sent its hello on the socket of a listener.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::runtime::Handle;

use super::{GRANT, Incoming, Way, gave_up};
use crate::channel::Socket;
use crate::device::Path;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::drain::Guest;
use crate::stream::exchange::{Fail, Listening};
use crate::stream::side::{Exchange, Net, Pools, Side, fell_back};
use crate::stream::stream::{Link, RdmaStream, StreamTransport};
use crate::stream::wire::{Message, Offer, Wrong};

/// Reads the hello of a peer. Fails if there is no hello to answer; the caller logs the error once
/// it holds no lock.
pub(in crate::stream) async fn read_hello(
    socket: Socket,
    net: Arc<Net>,
    runtime: Handle,
) -> std::result::Result<Incoming, Option<Error>> {
    let limit = net.options.timeout;
    let mut exchange = Exchange::new(GRANT, socket, runtime, &net);
    let greeting = async {
        let (hello, mut state) = (
            exchange.read_message().await?,
            Listening::new(exchange.may_tcp),
        );
        let fail = match state.asked(&hello) {
            Ok(_) => return Ok((hello, state)),
            Err(fail) => fail,
        };
        if let Fail::Wrong(wrong @ Wrong::Version(_)) = fail {
            // A peer of another version reads the version in this answer.
            exchange.say(Message::Refusal(&wrong.to_string())).await?;
        }
        Err(exchange.failure(fail))
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
        Ok((hello, state)) => {
            let way = Way::Exchange(Meeting {
                exchange,
                state,
                hello,
                net: Arc::clone(&net),
                path: None,
            });
            Ok(Incoming { way, peer, net })
        }
        Err(error) => Err(Some(error)),
    }
}

/// The peer, and the exchange with it.
pub(super) struct Meeting {
    pub(super) exchange: Exchange,
    pub(super) state: Listening,
    /// The peer's hello. It was parsed before, and is valid.
    hello: Bytes,
    net: Arc<Net>,
    /// The path over which the peer's frames must come.
    pub(super) path: Option<Path>,
}

impl Meeting {
    /// Returns the peer's data for the application.
    pub(super) fn data(&self) -> &[u8] {
        hello_of(&self.hello).data
    }

    pub(super) fn transport(&self) -> StreamTransport {
        let theirs = hello_of(&self.hello);
        match theirs.is_tcp() || self.net.check_peer(GRANT, theirs.blob).is_err() {
            true => StreamTransport::Tcp,
            false => StreamTransport::Rdma,
        }
    }

    pub(super) async fn grant(&mut self, guest: Guest, data: &[u8]) -> Result<RdmaStream> {
        // The thread that accepts the peer may be another one than the thread that read the hello.
        self.exchange.may_tcp &= self.net.may_tcp();
        let (mut hello, mut before, mut failure) = (self.hello.clone(), None, None);
        // If the path carries no large packets, or none at all, the peer sends another hello.
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
                        let link = Link::over_rdma(side.core, &side.wakers, &self.exchange.runtime);
                        break (link, side.wakers);
                    }
                },
                Prepared::Tcp(pools, why) => {
                    let link = self.fall_back(pools, &hello, data).await?;
                    fell_back(&self.exchange.socket.peer(), why.or(failure));
                    break (link, Arc::default());
                }
            }
        };
        let linger = self.net.options.linger;
        let met = self.exchange.met();
        Ok(RdmaStream::new(link, wakers, met, linger, Some(guest)))
    }

    /// Prepares a connection for the peer. `before` is the connection of an earlier hello, which
    /// this one replaces. If there is no RDMA, and both sides allow a stream without it, this
    /// prepares to continue over the socket of the exchange.
    async fn prepare(&self, mut before: Option<Side>, hello: &[u8]) -> Result<Prepared> {
        let (net, exchange, theirs) = (&self.net, &self.exchange, hello_of(hello));
        let may = exchange.may_tcp && theirs.may_tcp();
        if theirs.is_tcp() {
            let text = "the peer has no RDMA, and this side demands it (StreamOptions::or_tcp)";
            return match may {
                true => Ok(Prepared::Tcp(before.map(Side::into_pools), None)),
                false => Err(net.without_tcp(GRANT, exchange.error(ErrorKind::NotSupported, text))),
            };
        }
        let checked = match may {
            true => net.check_peer(GRANT, theirs.blob),
            false => Ok(()),
        };
        if let Err(error) = checked {
            return Ok(Prepared::Tcp(before.map(Side::into_pools), Some(error)));
        }
        let side = match before.take() {
            Some(before) => net.side_again(exchange, before).await,
            None => net.side(GRANT, Some(exchange)).await,
        };
        let (error, pools) = match side {
            Ok(mut side) => match listen(&mut side, theirs).await {
                Ok(blob) => return Ok(Prepared::Rdma(side, blob)),
                Err(error) => (error, Some(side.into_pools())),
            },
            Err(error) => (error, None),
        };
        if !may || !net.is_of_rdma(&error) {
            return Err(net.without_tcp(GRANT, error));
        }
        Ok(Prepared::Tcp(pools, Some(error)))
    }

    /// Sends the welcome, and waits until the peer has connected. If the peer sends another hello
    /// instead, returns that hello and the error of this side.
    async fn meet(
        &mut self,
        side: &mut Side,
        blob: &[u8],
        data: &[u8],
    ) -> Result<Option<(Bytes, Option<Error>)>> {
        self.welcome(blob, side.first_credits(), data).await?;
        // The peer's message decides the result, whether its frames have passed by then or not.
        let exchange = &mut self.exchange;
        self.path = side.path();
        let mut passes = pin!(side.pass(GRANT));
        let (answer, passed) = match select(pin!(exchange.read_message()), passes.as_mut()).await {
            Either::Left((answer, _)) => (answer, None),
            Either::Right((passed, hears)) => (hears.await, Some(passed)),
        };
        let answer = answer.map_err(gave_up)?;
        let heard = self.state.receive(&answer);
        if heard.map_err(|fail| self.exchange.failure(fail))?.is_some() {
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

    /// Sends the welcome for a stream over the connection of the exchange, and waits until the peer
    /// says that it is ready.
    async fn fall_back(&mut self, pools: Option<Pools>, hello: &[u8], data: &[u8]) -> Result<Link> {
        let pools = match pools {
            Some(pools) => pools,
            None => self.net.tcp_pools(GRANT).await?,
        };
        self.welcome(&[], 0, data).await?;
        let answer = self.exchange.read_message().await.map_err(gave_up)?;
        let heard = self.state.receive(&answer);
        heard.map_err(|fail| self.exchange.failure(fail))?;
        self.check_done()?;
        let frame = hello_of(hello).frame as usize;
        let frame = self.net.options.frame_size.min(frame);
        let link = Link::over_tcp(&mut self.exchange, pools, frame);
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
            false => Err(self.exchange.failure(Fail::Already)),
        }
    }
}

/// The connection that was prepared for a peer.
enum Prepared {
    /// A side that listens, and the blob with which the peer connects.
    Rdma(Side, Vec<u8>),
    /// The connection of the exchange, with the memory of the attempt before, and the error if this
    /// side has no RDMA.
    Tcp(Option<Pools>, Option<Error>),
}

/// Accepts the connector as the peer, and returns the blob with which the peer connects. The blob
/// cannot be made before, since this side knows its own address only now.
async fn listen(side: &mut Side, theirs: Offer<'_>) -> Result<Vec<u8>> {
    side.listen(GRANT, theirs).await.map_err(gave_up)?;
    side.blob(GRANT)
}

/// Parses a hello that was parsed before, and is valid.
fn hello_of(hello: &[u8]) -> Offer<'_> {
    match Message::parse(hello) {
        Ok(Message::Hello(offer)) => offer,
        _ => unreachable!("it was parsed before"),
    }
}
