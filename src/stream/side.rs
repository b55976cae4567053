//! One side of a connection in the making. The connector dials and sends the first frame; the
//! listener contacts no peer, but waits for that frame (ADR 0043). The submodules have what the
//! sides of one listener or connector share: their memory ([memory]), and their device and offers
//! ([net]).

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use tokio::net::lookup_host;
use tokio::runtime::Handle;

use super::core::Core;
use super::exchange::Fail;
use super::wakers::Wakers;
use super::wire::{BUSY, CANNOT_CONNECT, DRAINS, LEN_MAX, Message, NO_RDMA, Offer, Wrong};
use crate::channel::{Inbox, Peer, Socket};
use crate::device::Path;
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::mem::BufPool;

mod memory;
mod net;

pub(super) use memory::Pools;
use net::is_of_rdma;
pub(super) use net::{Net, fell_back, no_rdma};

/// The name of the connector's call in errors.
pub(super) const CONNECT: &str = "RdmaConnector::connect";

/// One side of a connection in the making.
pub(super) struct Side {
    pub(super) core: Box<Core>,
    pub(super) wakers: Arc<Wakers>,
    /// The pools of the side's memory: one to receive, and one to send.
    pools: (BufPool, BufPool),
}

impl Side {
    /// Returns the blob with which the other side connects. A listener calls this only once it
    /// listens for the connector, since only then it has chosen an address in the connector's
    /// subnet.
    pub(super) fn blob(&self, op: &'static str) -> Result<Vec<u8>> {
        let blob = self.core.rdma().export();
        blob.map_err(|error| error.with_call(op))
    }

    /// Returns the credits of a listener's offer. Over a network, the listener's first frame
    /// carries them instead.
    pub(super) fn first_credits(&mut self) -> u16 {
        match self.path() {
            Some(_) => 0,
            None => self.core.first_credits(),
        }
    }

    /// Gives up the connection, and returns its memory for another connection.
    pub(super) fn into_pools(self) -> Pools {
        let (receives, sends) = self.pools;
        Pools {
            receives,
            sends,
            control: self.core.into_control(),
        }
    }

    /// Returns the path to the other side; `None` without a network.
    pub(super) fn path(&self) -> Option<Path> {
        self.core.rdma().path()
    }

    /// Connects to the listener.
    pub(super) async fn dial(
        &mut self,
        exchange: &Exchange,
        offer: Offer<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let (op, rdma) = (exchange.op, self.core.rdma());
        let dial = rdma.dial_on(&exchange.runtime, offer.blob, timeout);
        dial.await.map_err(|error| not_met(op, error))?;
        self.begin(op, offer.frame, offer.credits)
    }

    /// Accepts the connector as the peer, without contacting it.
    pub(super) async fn listen(&mut self, op: &'static str, offer: Offer<'_>) -> Result<()> {
        let listen = self.core.rdma().listen(offer.blob);
        listen.await.map_err(|error| not_met(op, error))?;
        // The connector's first frame gives the credits; its offer gives none.
        self.begin(op, offer.frame, 0)
    }

    /// Sends and receives the first frames. The connector's frame proves to the listener that the
    /// peer has connected by RDMA, which a stranger could merely claim on the socket. Over a
    /// network the listener's frame follows. Both are as long as a packet, which proves that all
    /// later frames pass as well.
    pub(super) async fn pass(&mut self, op: &'static str) -> Result<()> {
        let (path, dials, core) = (self.path(), op == CONNECT, &mut self.core);
        let passed = match path {
            None if dials => poll_fn(|cx| core.poll_introduce(cx)).await,
            None => poll_fn(|cx| core.poll_introduction(cx)).await,
            Some(path) => {
                let (mut came, mut sent) = (false, false);
                let both = poll_fn(|cx| {
                    came = came || ready_ok(core.poll_introduction(cx))?;
                    let may = dials || came;
                    sent = sent || may && ready_ok(core.poll_test(path.mtu.bytes() as usize, cx))?;
                    if came && sent {
                        Poll::Ready(Ok(()))
                    } else {
                        Poll::Pending
                    }
                });
                both.await
            }
        };
        passed.map_err(|error| {
            let error = Error::from(error.of_stream()).with_call(op);
            match path {
                None => error,
                Some(path) => not_passed(op, error.kind(), error.message(), path),
            }
        })
    }

    /// Returns an error if this side's first frame waits for memory or slots that other streams
    /// use. Such a wait tells nothing about the path.
    pub(super) fn held_up(&self, op: &'static str) -> Option<Error> {
        let waits = self.path().is_some() && self.core.is_held_up(op == CONNECT);
        let text = "the frames of other streams have all memory or slots of the WorkQ: try again";
        waits.then(|| Error::new(ErrorKind::Full, op, text))
    }

    /// Begins with the length of the longest frame that the other side takes, and with the first
    /// credits that it gives.
    pub(super) fn begin(&mut self, op: &'static str, frame: u32, credits: u16) -> Result<()> {
        let begun = self.core.begin(frame as usize, credits);
        begun.map_err(|error| Error::from(error.of_stream()).with_call(op))
    }
}

/// Rewrites an error of connecting for the user of a stream, who has no blob.
fn not_met(op: &'static str, error: Error) -> Error {
    use ErrorKind::{ConnectionAborted, ConnectionReset, InvalidValue};
    let text = match error.kind() {
        ConnectionAborted | ConnectionReset => {
            "the other side has given up, or its process has ended: connect again"
        }
        InvalidValue => {
            "the other side has no device of this kind: use adapters on both sides, or \
             software devices of one host"
        }
        _ => return error.with_call(op),
    };
    Error::new(error.kind(), op, text)
}

/// Returns the error for a path over which no frames pass.
pub(super) fn not_passed(op: &'static str, kind: ErrorKind, why: &str, path: Path) -> Error {
    let text = format!(
        "{why}; the path is {path}, and StreamOptions::transport, or without rdma_cm gid_index, \
         says another address of this side"
    );
    Error::new(kind, op, text)
}

/// Returns true if the poll is ready without an error.
fn ready_ok(polled: Poll<Result<(), JobError>>) -> Result<bool, JobError> {
    match polled {
        Poll::Ready(outcome) => outcome.map(|()| true),
        Poll::Pending => Ok(false),
    }
}

/// Calls `with` for each address of a host, until it succeeds for one.
///
/// # Errors
///
/// `NotFound` if the name has no address; otherwise the error of the last address.
pub(super) async fn each_address<T>(
    op: &'static str,
    name: &str,
    limit: Duration,
    with: impl AsyncFnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let none = |error: &dyn fmt::Display| {
        let text = format!("no address for \"{name}\": {error}; write a name, a colon and a port");
        Error::new(ErrorKind::NotFound, op, text)
    };
    let addrs = lookup_host(name).await.map_err(|error| none(&error))?;
    let addrs: Vec<SocketAddr> = addrs.collect();
    let done = first_of(op, &addrs, limit, with).await;
    done.unwrap_or_else(|| Err(none(&"the resolver knows none")))
}

/// Calls `with` for each of these addresses, until it succeeds. Each address gets a share of the
/// time, so that a silent address leaves time for the others.
async fn first_of<T>(
    op: &'static str,
    addrs: &[SocketAddr],
    limit: Duration,
    mut with: impl AsyncFnMut(SocketAddr) -> Result<T>,
) -> Option<Result<T>> {
    let share = limit / addrs.len().max(1) as u32;
    let mut last = None;
    for &addr in addrs {
        last = Some(match tokio::time::timeout(share, with(addr)).await {
            Ok(Ok(done)) => return Some(Ok(done)),
            Ok(error) => error,
            Err(_) => {
                let text = format!("{addr} did not answer within {share:?}");
                Err(Error::new(ErrorKind::TimedOut, op, text))
            }
        });
    }
    last
}

/// The peer of a stream, this side's address, and the runtime of the stream.
pub(super) struct Met {
    pub(super) peer: Peer,
    pub(super) local: Option<SocketAddr>,
    pub(super) runtime: Handle,
}

/// The socket of an exchange, and the bytes that were read from it.
pub(super) struct Exchange {
    pub(super) op: &'static str,
    pub(super) socket: Arc<Socket>,
    inbox: Inbox,
    pub(super) runtime: Handle,
    /// True if the stream may continue over the socket.
    pub(super) may_tcp: bool,
}

impl Exchange {
    pub(super) fn new(op: &'static str, socket: Socket, runtime: Handle, net: &Net) -> Exchange {
        Exchange {
            op,
            socket: Arc::new(socket),
            inbox: Inbox::new(LEN_MAX, 1),
            runtime,
            may_tcp: net.may_tcp(),
        }
    }

    pub(super) fn met(&self) -> Met {
        Met {
            peer: self.socket.peer(),
            local: self.socket.local_addr(),
            runtime: self.runtime.clone(),
        }
    }

    /// Returns this side's address on the socket.
    fn local_ip(&self) -> Option<IpAddr> {
        let local = self.socket.local_addr();
        local.map(|addr| addr.ip().to_canonical())
    }

    pub(super) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, self.op, text.into())
    }

    fn io(&self, error: io::Error) -> Error {
        let peer = self.socket.peer();
        let text = match error.kind() {
            io::ErrorKind::UnexpectedEof if self.op == CONNECT => {
                format!(
                    "{peer} has hung up: it is no RdmaListener, has dropped its Incoming, or its process has ended"
                )
            }
            io::ErrorKind::InvalidData if self.op == CONNECT => {
                format!("{peer} speaks another protocol: name the address of an RdmaListener")
            }
            _ => format!("the exchange with {peer}: {error}"),
        };
        self.error(ErrorKind::ConnectionAborted, text)
    }

    /// Takes the bytes that were read from the socket after the messages of the exchange.
    pub(super) fn take_inbox(&mut self) -> Inbox {
        std::mem::replace(&mut self.inbox, Inbox::new(LEN_MAX, 1))
    }

    pub(super) async fn say(&self, message: Message<'_>) -> Result<()> {
        let written = self.socket.write_frame(&message.bytes()).await;
        written.map_err(|error| self.io(error))
    }

    /// Reads the next message. The state of the exchange parses it.
    pub(super) async fn read_message(&mut self) -> Result<Bytes> {
        let read = self.socket.read_frame(&mut self.inbox).await;
        read.map_err(|error| self.io(error))
    }

    /// Returns the error for an exchange that has ended for this reason.
    pub(super) fn failure(&self, fail: Fail<'_>) -> Error {
        let kind = match fail {
            Fail::Wrong(Wrong::Version(_)) => ErrorKind::UnsupportedVersion,
            // A stranger's text does not decide the kind of a listener's error.
            _ if self.op != CONNECT => ErrorKind::ConnectionAborted,
            Fail::Refused(reason) => refused(reason),
            _ => ErrorKind::ConnectionAborted,
        };
        self.error(kind, fail.to_string())
    }
}

/// Maps the reason that a listener has sent to the kind of the connector's error.
pub(super) fn refused(reason: &str) -> ErrorKind {
    match reason {
        BUSY => ErrorKind::Full,
        DRAINS => ErrorKind::Shutdown,
        NO_RDMA => ErrorKind::NotSupported,
        CANNOT_CONNECT => ErrorKind::ConnectionAborted,
        // A reason that the listener's application has given.
        _ => ErrorKind::NotPermitted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_silent_leaves_time_to_the_others() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().unwrap();
        let [silent, good] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let meet = async |addr| match addr == good {
            true => Ok(addr),
            false => std::future::pending().await,
        };
        runtime.block_on(async {
            let limit = Duration::from_millis(50);
            let met = first_of("test", &[silent, good], limit, meet).await;
            assert_eq!(met.unwrap().unwrap(), good);
            let met = first_of("test", &[silent], limit, meet).await;
            let text = met.unwrap().unwrap_err().to_string();
            assert!(text.contains("192.0.2.1:1 did not answer"), "{text}");
            assert!(first_of("test", &[], limit, meet).await.is_none());
        });
    }
}
