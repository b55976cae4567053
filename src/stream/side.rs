//! One side of a connection that is to be made: the connector dials and introduces itself, the
//! listener contacts nobody and waits for that (ADR 0043). And what the sides of one listener or
//! connector have in common: their memory, and how they meet.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use tokio::net::lookup_host;
use tokio::runtime::Handle;
use tracing::debug;

use super::core::{Core, Parts};
use super::drain::Guests;
use super::exchange::Over;
use super::flow::RESERVED;
use super::options::{LARGEST, SURE, StreamOptions, has_network};
use super::wakers::Wakers;
use super::wire::{BUSY, CANNOT_CONNECT, DRAINS, LEN_MAX, Message, Offer, Wrong};
use crate::channel::{self, Inbox, Socket};
use crate::device::{Device, Mtu, Path};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::mem::BufPool;
use crate::ops::RecvPool;
use crate::reactor::WorkQ;
use crate::sync::log;

mod memory;

use memory::{Memory, Place};

/// The call of a connector.
pub(super) const CONNECT: &str = "RdmaConnector::connect";

/// The most frames of a stream that wait for a receive, where no network is between.
const WAITING: usize = 4;

/// One side of a connection that is to be made.
pub(super) struct Side {
    pub(super) core: Box<Core>,
    pub(super) wakers: Arc<Wakers>,
    /// The longest frame that it takes.
    frame: u32,
    /// Of its memory: for what it receives, and for what it sends.
    pools: (BufPool, BufPool),
}

impl Side {
    /// Returns what the other side connects with. A listener asks once it listens: its address is
    /// one of the connector's subnet.
    pub(super) fn blob(&self, op: &'static str) -> Result<Vec<u8>> {
        let blob = self.core.rdma().export();
        blob.map_err(|error| error.with_call(op))
    }

    /// Returns the connector's offer, which gives no credits: its first frame does.
    pub(super) fn hello<'a>(&self, blob: &'a [u8], data: &'a [u8]) -> Offer<'a> {
        Offer {
            frame: self.frame,
            credits: 0,
            flags: 0,
            blob,
            data,
        }
    }

    /// Returns the listener's offer, once it listens. Over a network its first frame gives credits.
    pub(super) fn welcome<'a>(&mut self, blob: &'a [u8], data: &'a [u8]) -> Offer<'a> {
        let credits = match self.path() {
            Some(_) => 0,
            None => self.core.first_credits(),
        };
        Offer {
            credits,
            ..self.hello(blob, data)
        }
    }

    /// How it reaches the other side; `None` without a network.
    pub(super) fn path(&self) -> Option<Path> {
        self.core.rdma().path()
    }

    /// Connects to the listener.
    pub(super) async fn dial(
        &mut self,
        op: &'static str,
        offer: Offer<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let dial = self.core.rdma().dial(offer.blob).timeout(timeout);
        dial.await.map_err(|error| error.with_call(op))?;
        self.begin(op, offer)
    }

    /// Takes the connector as the peer, and contacts nobody.
    pub(super) async fn listen(&mut self, op: &'static str, offer: Offer<'_>) -> Result<()> {
        let listen = self.core.rdma().listen(offer.blob);
        listen.await.map_err(|error| error.with_call(op))?;
        // Its first frame gives credits, and nothing that comes before it.
        let offer = Offer {
            credits: 0,
            ..offer
        };
        self.begin(op, offer)
    }

    /// Has the first frames pass: the connector's, which proves to the listener that it has come (a
    /// stranger can say on the socket that it is connected), and over a network the listener's
    /// after it. They are as long as a packet, so that all others pass as well.
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

    fn begin(&mut self, op: &'static str, offer: Offer<'_>) -> Result<()> {
        let begun = self.core.begin(offer.frame as usize, offer.credits);
        begun.map_err(|error| Error::from(error.of_stream()).with_call(op))
    }
}

/// What nothing passes on a path means.
pub(super) fn not_passed(op: &'static str, kind: ErrorKind, why: &str, path: Path) -> Error {
    let text = format!(
        "{why}; the path is {path}, and StreamOptions::gid_index or transport says another address \
         of this side"
    );
    Error::new(kind, op, text)
}

/// Whether it is ready, and well.
fn ready_ok(polled: Poll<Result<(), JobError>>) -> Result<bool, JobError> {
    match polled {
        Poll::Ready(outcome) => outcome.map(|()| true),
        Poll::Pending => Ok(false),
    }
}

/// Returns the runtime that polls.
///
/// # Errors
///
/// `BadState` if there is none.
///
/// # Panics
///
/// As Tokio does, if it has no I/O or no time: before anything is begun.
pub(super) fn runtime(op: &'static str) -> Result<Handle> {
    let runtime = channel::runtime(op)?;
    drop(tokio::time::sleep(Duration::ZERO));
    Ok(runtime)
}

/// Does something with the addresses of a host, until it is done with one of them.
///
/// # Errors
///
/// `NotFound` if the name has no address; what it was not done with the last one for.
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

/// The same with these addresses. Each has its share of the time, so that one that is silent leaves
/// some to the others.
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

/// Refuses a device that connects by rdma_cm alone: iWARP's.
fn check_connects(op: &'static str, device: &Device) -> Result<()> {
    let caps = device.info().caps().rdma.as_ref();
    if caps.is_none_or(|caps| caps.acknowledged) {
        return Ok(());
    }
    let text = format!(
        "{} is an iWARP adapter, which connects by rdma_cm alone, and streams do not: use \
         another device, or TCP",
        device.info().name()
    );
    Err(Error::new(ErrorKind::NotSupported, op, text))
}

/// Refuses a device whose endpoints cannot share buffers of this size.
fn check_shared(op: &'static str, frame: usize, device: &Device) -> Result<()> {
    let caps = device.info().caps().rdma.as_ref();
    match caps.map_or(0, |caps| caps.max_pooled_room) {
        most if most < frame => {
            let text = format!(
                "the device shares buffers of at most {most} bytes between connections, and a \
                 frame has {frame}: leave StreamOptions::recv_bufs out, or set a smaller frame_size"
            );
            Err(Error::new(ErrorKind::NotSupported, op, text))
        }
        _ => Ok(()),
    }
}

/// What the streams of one listener or connector have in common.
pub(super) struct Net {
    pub(super) options: StreamOptions,
    device: Device,
    workq: WorkQ,
    memory: Memory,
    pub(super) guests: Guests,
}

impl Net {
    /// Checks what can be checked before a peer comes, and allocates nothing.
    pub(super) fn new(
        op: &'static str,
        options: StreamOptions,
        device: &Device,
        workq: &WorkQ,
    ) -> Result<Net> {
        options.check(op)?;
        check_connects(op, device)?;
        // What the device refuses is said now, and not to the first peer.
        let checked = options.rdma(device, None, LARGEST).check_on(device);
        checked.map_err(|error| error.with_call(op))?;
        if options.recv_bufs.is_some() {
            check_shared(op, options.frame_size, device)?;
        }
        Ok(Net {
            memory: Memory::new(options, device),
            device: device.clone(),
            workq: workq.clone(),
            options,
            guests: Guests::new(),
        })
    }

    /// Has memory for some streams.
    pub(super) async fn prepare(&self, op: &'static str) -> Result<()> {
        self.memory.take(op).await.map(drop)
    }

    /// One side of a connection that is to be made, for those that met in this exchange.
    pub(super) async fn side(&self, exchange: &Exchange) -> Result<Side> {
        let place = self.memory.take(exchange.op).await?;
        let side = self.side_of(exchange, place, LARGEST)?;
        match side.core.has_receives() {
            true => Ok(side),
            false => Err(self.memory.full(exchange.op)),
        }
    }

    /// Another connection, with packets that pass wherever Ethernet does, in place of one that is
    /// given up. Waits until its memory is back.
    pub(super) async fn side_again(&self, exchange: &Exchange, before: Side) -> Result<Side> {
        let (receives, sends) = before.pools;
        let (control, guest) = before.core.into_control();
        let place = Place {
            receives,
            sends,
            control,
        };
        let mut side = self.side_of(exchange, place, SURE)?;
        side.core.set_guest(guest);
        poll_fn(|cx| side.core.poll_receives(cx)).await;
        Ok(side)
    }

    fn side_of(&self, exchange: &Exchange, place: Place, mtu: Mtu) -> Result<Side> {
        let op = exchange.op;
        let mut send_window = self.options.send_window;
        if !has_network(&self.device) {
            send_window = send_window.min(WAITING);
        }
        let local = exchange.socket.local_addr();
        let local = local.map(|addr| addr.ip().to_canonical());
        let mut rdma = self.options.rdma(&self.device, local, mtu);
        if self.options.recv_bufs.is_some() {
            let credits = (self.options.window() + RESERVED) as u32;
            rdma = rdma.recv_pool(&RecvPool::new(&place.receives).credits(credits));
        }
        let rdma = rdma
            .attach(&self.workq)
            .map_err(|error| error.with_call(op))?;
        let wakers = Arc::default();
        let parts = Parts {
            receives: &place.receives,
            sends: &place.sends,
            control: place.control,
            recv_window: self.options.window(),
            send_window,
            runtime: exchange.runtime.clone(),
        };
        Ok(Side {
            core: Box::new(Core::new(rdma, parts, &wakers)),
            frame: self.options.frame_size as u32,
            wakers,
            pools: (place.receives, place.sends),
        })
    }
}

/// The socket on which an exchange goes on, and what was read of it.
pub(super) struct Exchange {
    pub(super) op: &'static str,
    pub(super) socket: Socket,
    inbox: Inbox,
    pub(super) runtime: Handle,
}

impl Exchange {
    pub(super) fn new(op: &'static str, socket: Socket, runtime: Handle) -> Exchange {
        Exchange {
            op,
            socket,
            inbox: Inbox::new(LEN_MAX, 1),
            runtime,
        }
    }

    pub(super) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, self.op, text.into())
    }

    fn io(&self, error: io::Error) -> Error {
        let peer = self.socket.peer();
        let text = match error.kind() {
            io::ErrorKind::UnexpectedEof if self.op == CONNECT => {
                format!("{peer} has hung up: it is no RdmaListener, or has dropped its Incoming")
            }
            io::ErrorKind::InvalidData if self.op == CONNECT => {
                format!("{peer} speaks another protocol: name the address of an RdmaListener")
            }
            _ => format!("the exchange with {peer}: {error}"),
        };
        self.error(ErrorKind::ConnectionAborted, text)
    }

    pub(super) async fn say(&self, message: Message<'_>) -> Result<()> {
        let written = self.socket.write_frame(&message.bytes()).await;
        written.map_err(|error| self.io(error))
    }

    /// Says hello, and hears the answer.
    pub(super) async fn ask(&mut self, side: &Side, data: &[u8]) -> Result<Bytes> {
        let blob = side.blob(self.op)?;
        self.say(Message::Hello(side.hello(&blob, data))).await?;
        self.hear().await
    }

    /// Reads the next message, which the state of the exchange parses.
    pub(super) async fn hear(&mut self) -> Result<Bytes> {
        let read = self.socket.read_frame(&mut self.inbox).await;
        read.map_err(|error| self.io(error))
    }

    /// Why the exchange is over, as an error.
    pub(super) fn over(&self, over: Over<'_>) -> Error {
        if let Over::Refused(reason) = over {
            let peer = self.socket.peer();
            log(|| debug!(target: "tokio_doca::stream", %peer, reason, "the peer refuses"));
        }
        let kind = match over {
            Over::Wrong(Wrong::Version(_)) => ErrorKind::UnsupportedVersion,
            // A stranger's words choose nothing for a listener.
            _ if self.op != CONNECT => ErrorKind::ConnectionAborted,
            Over::Refused(BUSY) => ErrorKind::Full,
            Over::Refused(DRAINS) => ErrorKind::Shutdown,
            // By the application.
            Over::Refused(reason) if reason != CANNOT_CONNECT => ErrorKind::NotPermitted,
            _ => ErrorKind::ConnectionAborted,
        };
        self.error(kind, over.to_string())
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
