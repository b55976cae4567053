//! The limits of streams, and the memory that those of one listener or connector share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, net::SocketAddr};

use tokio::runtime::Handle;

use super::core::{Core, Parts};
use super::drain::Guests;
use super::exchange::Over;
use super::flow::{HEAD, RESERVED};
use super::side::Side;
use super::wire::{FRAME_MIN, LEN_MAX, Message, Wrong};
use crate::channel::{self, Inbox, Socket};
use crate::device::{Access, Device};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::{BufPool, Mmap};
use crate::ops::{Rdma, RecvPool};
use crate::reactor::WorkQ;

/// Bytes that may be on their way to a peer that does not read: less than what a connection of the
/// software device holds.
const IN_FLIGHT: usize = 448 << 10;

/// How long a frame waits for a receive of a peer that has said that it is posted.
const LIAR: Duration = Duration::from_millis(100);

/// The most frames of a stream that wait so.
const WAITING: usize = 4;

/// Each Buf begins with a cache line.
const ALIGN: usize = 64;

/// Bytes of a Buf for control frames.
const CONTROL: usize = 64;

/// Where a listener listens: a TCP address, or a Unix socket in the file system.
///
/// Only the exchange that sets a connection up goes there. On a Unix socket the listener learns the
/// user of its peer.
///
/// ```
/// use std::net::SocketAddr;
/// use std::path::Path;
/// use tokio_doca::stream::StreamAddr;
///
/// let local = StreamAddr::from(Path::new("/run/service.sock"));
/// let network = StreamAddr::from("192.0.2.7:4791".parse::<SocketAddr>()?);
/// assert_eq!(local.to_string(), "/run/service.sock");
/// assert!(matches!(network, StreamAddr::Tcp(addr) if addr.port() == 4791));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for StreamAddr {
    fn from(addr: SocketAddr) -> StreamAddr {
        StreamAddr::Tcp(addr)
    }
}

impl From<PathBuf> for StreamAddr {
    fn from(path: PathBuf) -> StreamAddr {
        StreamAddr::Unix(path)
    }
}

impl From<&Path> for StreamAddr {
    fn from(path: &Path) -> StreamAddr {
        StreamAddr::Unix(path.to_owned())
    }
}

impl fmt::Display for StreamAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamAddr::Tcp(addr) => addr.fmt(f),
            StreamAddr::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The limits of the streams of one [`RdmaListener`](super::RdmaListener) or
/// [`RdmaConnector`](super::RdmaConnector), and the memory that they share.
///
/// The memory is allocated at once: for each of `connections` as many frames as `recv_window` and
/// two more to receive, unless streams share [`recv_bufs`](Self::recv_bufs), and half of
/// `send_window` to send.
///
/// ```
/// use std::time::Duration;
/// use tokio_doca::stream::StreamOptions;
/// # use tokio_doca::{Device, WorkQ};
///
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// // Few streams with long messages, and up to 16 messages of a stream in flight.
/// let options = StreamOptions::new()
///     .connections(4)
///     .frame_size(64 << 10)
///     .send_window(16)
///     .timeout(Duration::from_secs(1));
/// let connector = options.connector(&device, &workq)?;
/// # drop(connector);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is built before bind or connector"]
pub struct StreamOptions {
    connections: usize,
    frame_size: usize,
    recv_window: Option<usize>,
    recv_bufs: Option<usize>,
    send_window: usize,
    half_open: usize,
    permissions: Access,
    pub(super) timeout: Duration,
    pub(super) linger: Duration,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            connections: 64,
            frame_size: (32 << 10) + HEAD,
            recv_window: None,
            recv_bufs: None,
            send_window: 4,
            half_open: 64,
            permissions: Access::empty(),
            timeout: Duration::from_secs(5),
            linger: Duration::from_secs(1),
        }
    }
}

impl StreamOptions {
    /// Returns the defaults.
    pub fn new() -> StreamOptions {
        StreamOptions::default()
    }

    /// Sets how many streams have memory at once. Defaults to 64; 1 to 65,536.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the longest message, in bytes, 4 of which are its head. Defaults to 32 KiB and these 4,
    /// so that a write of 64 KiB is two messages; 64 to 128 KiB. The smaller one of both sides
    /// holds.
    pub fn frame_size(mut self, bytes: usize) -> Self {
        self.frame_size = bytes;
        self
    }

    /// Sets how many frames the peer can send before this side reads: at least 1, and at most 448
    /// KiB in all. Defaults to 8, or as many as these have room for.
    pub fn recv_window(mut self, frames: usize) -> Self {
        self.recv_window = Some(frames);
        self
    }

    /// Has all streams receive into this number of buffers of a frame each, 1 to 65,536. A stream
    /// has one of them only while the application has not read the frame that came in it. A frame
    /// that comes in the last free one is copied to the heap until it is read, so that the peers of
    /// others go on however slowly an application reads: at most
    /// [`recv_window`](Self::recv_window) frames of each stream, while it waits to write and does
    /// not read. An idle stream has no buffer. The peer's window is the same.
    /// [`RdmaMessages`](super::RdmaMessages) hand these buffers to the application: there must be
    /// one more than it keeps.
    ///
    /// By default each stream has buffers of its own, which it posts as receives. Only devices with
    /// a [`max_pooled_room`](crate::device::RdmaCaps::max_pooled_room) of a frame can share them.
    pub fn recv_bufs(mut self, buffers: usize) -> Self {
        self.recv_bufs = Some(buffers);
        self
    }

    /// Sets how many frames of a stream are on their way at once, each of which holds a buffer of
    /// the memory for sends. Defaults to 4; 1 to 512. Over the software device at most 4 frames
    /// wait: those that it finishes at once do not count.
    pub fn send_window(mut self, frames: usize) -> Self {
        self.send_window = frames;
        self
    }

    /// Sets how many peers may have connected to a listener's socket and not been returned by
    /// [`accept`](super::RdmaListener::accept). Defaults to 64; 1 to 65,536. If another one connects, the
    /// oldest of them loses its place once it has been silent for 100 ms. An
    /// [`Incoming`](super::Incoming) does not count any more.
    pub fn half_open(mut self, peers: usize) -> Self {
        self.half_open = peers;
        self
    }

    /// Sets what the peer may do by one-sided operations on memory that was exported to it:
    /// `RDMA_READ`, `RDMA_WRITE`, `RDMA_ATOMIC`. Defaults to nothing. The peer gets the blob of
    /// [`Mmap::export_rdma`](crate::Mmap::export_rdma) with the exchange, and works on
    /// [`RdmaStream::rdma`](super::RdmaStream::rdma).
    pub fn permissions(mut self, access: Access) -> Self {
        self.permissions = access;
        self
    }

    /// Sets how long a side waits for the other one, for each of the two parts of the exchange: the
    /// greeting, and the connection. Defaults to 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long a dropped stream goes on sending what was written. Defaults to 1 s; with 0 the
    /// connection is reset.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    pub(super) fn silent(&self) -> usize {
        self.half_open
    }

    /// Returns how many frames a peer can send before this side reads.
    fn window(&self) -> usize {
        self.recv_window
            .unwrap_or(8.min(IN_FLIGHT / self.frame_size))
    }

    /// Refuses a number that is out of its range.
    fn check(&self, op: &'static str) -> Result<()> {
        let within = |name, value, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => {
                let text = format!("StreamOptions::{name}({value}): it is {least} to {most}");
                Err(Error::new(ErrorKind::InvalidValue, op, text))
            }
        };
        let many = 1 << 16;
        within("connections", self.connections, 1, many)?;
        within("frame_size", self.frame_size, FRAME_MIN as usize, 128 << 10)?;
        within("recv_window", self.window(), 1, IN_FLIGHT / self.frame_size)?;
        within("recv_bufs", self.recv_bufs.unwrap_or(1), 1, many)?;
        within("send_window", self.send_window, 1, 512)?;
        within("half_open", self.half_open, 1, many)
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
    receives: BufPool,
    sends: BufPool,
    control: BufPool,
    pub(super) guests: Guests,
}

impl Net {
    pub(super) fn new(
        op: &'static str,
        options: StreamOptions,
        device: &Device,
        workq: &WorkQ,
    ) -> Result<Net> {
        options.check(op)?;
        let frame = options.frame_size;
        let element = frame.next_multiple_of(ALIGN);
        let all = element * options.connections;
        let own = all * (options.window() + RESERVED);
        let receives = options.recv_bufs.map_or(own, |bufs| bufs * element);
        if options.recv_bufs.is_some() {
            check_shared(op, frame, device)?;
        }
        let sends = all * options.send_window.div_ceil(2);
        let build = || {
            let control = 2 * CONTROL * options.connections;
            let memory = Mmap::builder().device(device);
            let memory = memory.alloc(receives + sends + control)?;
            let pool = |from: usize, len, element| {
                let pool = BufPool::builder(&memory).range(from..from + len);
                pool.element_size(element).alignment(ALIGN).build()
            };
            Ok(Net {
                receives: pool(0, receives, frame)?,
                sends: pool(receives, sends, frame)?,
                control: pool(receives + sends, control, CONTROL)?,
                device: device.clone(),
                workq: workq.clone(),
                options,
                guests: Guests::new(),
            })
        };
        build().map_err(|error: Error| error.with_call(op))
    }

    /// One side of a connection that is to be made.
    pub(super) fn side(&self, op: &'static str, runtime: &Handle) -> Result<Side> {
        let full = || {
            let text = format!(
                "all memory for {} streams is in use: drop one, or set \
                 StreamOptions::connections",
                self.options.connections
            );
            Error::new(ErrorKind::Full, op, text)
        };
        let control = [self.control.try_alloc(), self.control.try_alloc()];
        let [Ok(credits), Ok(end)] = control else {
            return Err(full());
        };
        let receives = (self.options.window() + RESERVED) as u32;
        let mut send_window = self.options.send_window;
        let mut rdma = Rdma::builder(&self.device)
            .recv_queue_size(receives)
            .send_queue_size(send_window as u32 + 2)
            .permissions(self.options.permissions);
        let caps = self.device.info().caps().rdma.as_ref();
        if caps.is_some_and(|caps| !caps.transport) {
            // Credits are for receives that are posted. Without a network between them, a frame
            // waits for one only if the peer has lied.
            rdma = rdma.rnr_timeout(LIAR);
            send_window = send_window.min(WAITING);
        }
        if self.options.recv_bufs.is_some() {
            rdma = rdma.recv_pool(&RecvPool::new(&self.receives).credits(receives));
        }
        let rdma = rdma
            .attach(&self.workq)
            .map_err(|error| error.with_call(op))?;
        let wakers = Arc::default();
        let parts = Parts {
            receives: &self.receives,
            sends: &self.sends,
            control: [credits, end],
            recv_window: self.options.window(),
            send_window,
            runtime: runtime.clone(),
        };
        let core = Box::new(Core::new(rdma, parts, &wakers));
        if !core.has_receives() {
            return Err(full());
        }
        Ok(Side {
            blob: core.rdma().export().map_err(|error| error.with_call(op))?,
            frame: self.options.frame_size as u32,
            core,
            wakers,
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

    fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, self.op, text.into())
    }

    fn io(&self, error: io::Error) -> Error {
        let peer = self.socket.peer();
        let text = match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                format!("{peer} has hung up: it is no RdmaListener, or drops who asks")
            }
            io::ErrorKind::InvalidData => {
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

    /// Reads the next message, which [`Exchange::understand`] parses.
    pub(super) async fn hear(&mut self) -> Result<bytes::Bytes> {
        let read = self.socket.read_frame(&mut self.inbox).await;
        read.map_err(|error| self.io(error))
    }

    /// Why the exchange is over, as an error.
    pub(super) fn over(&self, over: Over<'_>) -> Error {
        let kind = match over {
            Over::Wrong(Wrong::Version(_)) => ErrorKind::UnsupportedVersion,
            _ => ErrorKind::ConnectionAborted,
        };
        self.error(kind, over.to_string())
    }
}
