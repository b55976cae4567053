//! The limits and settings of streams.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::flow::{HEAD, reserved};
use super::wire::FRAME_MIN;
use crate::device::{Access, Device, Mtu, Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Rdma, RdmaBuilder};
use crate::reactor::TABLES;

/// The maximum number of bytes on their way to a peer that does not read. A connection of the
/// software device holds more.
const IN_FLIGHT: usize = 448 << 10;

/// The largest packet size of all ports.
pub(super) const LARGEST: Mtu = Mtu::Bytes4096;
/// The packet size that passes on every Ethernet network.
pub(super) const SURE: Mtu = Mtu::Bytes1024;

/// How long a frame on the software device waits for a receive that the peer claims to have posted.
const LIAR: Duration = Duration::from_millis(100);

/// The address of a listener: a TCP address, the path of a Unix socket, or an address for rdma_cm,
/// the kernel's connection manager for RDMA. Strings convert to a host name with a port, such as
/// `"storage-1:4420"`.
///
/// The sides use this address only to set a connection up; the data travels by RDMA. On a Unix
/// socket the listener learns the user of its peer.
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
    /// An IP address of the listener's adapter, and a port, for rdma_cm. The kernel finds the
    /// adapter, the route and the addresses, and each side learns at once that the other side has
    /// ended. rdma_cm needs the library librdmacm. A connector's application can send at most 24
    /// bytes of data, and a listener's 164. With [`or_tcp`](StreamOptions::or_tcp) a listener also
    /// listens at the TCP address with the same port, and a connector that cannot connect by
    /// rdma_cm uses TCP there. [`gid_index`](StreamOptions::gid_index) and
    /// [`mtu`](StreamOptions::mtu) have no effect.
    ///
    /// Over iWARP, rdma_cm and TCP share the port numbers. There, with `or_tcp`, TCP has this port,
    /// and rdma_cm has the next one: set `or_tcp` on both sides or on neither.
    Cm(SocketAddr),
    /// A host name or an address, a colon and the port. The addresses of a host name are tried one
    /// after the other, in the order of the system's resolver.
    Host(String),
}

impl From<&str> for StreamAddr {
    fn from(name: &str) -> StreamAddr {
        StreamAddr::Host(name.to_owned())
    }
}

impl From<String> for StreamAddr {
    fn from(name: String) -> StreamAddr {
        StreamAddr::Host(name)
    }
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
            StreamAddr::Tcp(addr) | StreamAddr::Cm(addr) => addr.fmt(f),
            StreamAddr::Unix(path) => path.display().fmt(f),
            StreamAddr::Host(name) => name.fmt(f),
        }
    }
}

/// The limits of the streams of one [`RdmaListener`](super::RdmaListener) or
/// [`RdmaConnector`](super::RdmaConnector), and the memory that they share.
///
/// Each of `connections` streams has memory to receive `recv_window` frames and three more (over
/// iWARP four), unless streams share [`recv_bufs`](Self::recv_bufs), and memory to send half of
/// `send_window` frames. Together these are 545 KiB for each stream by default. The memory comes in
/// parts of at most 8 MiB (or larger, if one stream or the shared buffers need more). `bind` or the
/// first stream allocates the first part; later streams allocate further parts as they need them.
/// Separate threads allocate the memory, so that only the task that needs it waits. It is
/// registered for remote operations alone, so that an adapter locks it only once: a
/// [`Dma`](crate::Dma) cannot access it.
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
    pub(super) connections: usize,
    pub(super) frame_size: usize,
    recv_window: Option<usize>,
    pub(super) recv_bufs: Option<usize>,
    pub(super) send_window: usize,
    pub(super) half_open: usize,
    permissions: Access,
    transport: Transport,
    gid_index: Option<u32>,
    mtu: Option<Mtu>,
    rnr_timeout: Option<Duration>,
    pub(super) or_tcp: bool,
    pub(super) timeout: Duration,
    pub(super) linger: Duration,
    /// True if the device's transport does not acknowledge messages, so that the sides of a stream
    /// confirm ends. The device decides this, and not the application.
    pub(super) confirms: bool,
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
            transport: Transport::default(),
            gid_index: None,
            mtu: None,
            rnr_timeout: None,
            or_tcp: false,
            timeout: Duration::from_secs(5),
            linger: Duration::from_secs(1),
            confirms: false,
        }
    }
}

impl StreamOptions {
    /// Returns the defaults.
    pub fn new() -> StreamOptions {
        StreamOptions::default()
    }

    /// Sets the maximum number of streams that have memory at the same time. Defaults to 64; at
    /// least 1, and at most 4,094, the number of Rdmas and sync events that a WorkQ can have.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the maximum length of a frame in bytes, including its header of 4 bytes: 64 bytes to
    /// 128 KiB. Defaults to 32 KiB and 4 bytes, so that a write of 64 KiB is two frames. The
    /// smaller value of the two sides applies.
    pub fn frame_size(mut self, bytes: usize) -> Self {
        self.frame_size = bytes;
        self
    }

    /// Sets how many frames the peer can send before this side reads: at least 1, and at most the
    /// number that 448 KiB can hold. Defaults to 12, or fewer if 12 frames are more than 448 KiB.
    pub fn recv_window(mut self, frames: usize) -> Self {
        self.recv_window = Some(frames);
        self
    }

    /// Has all streams receive into `buffers` shared buffers of one frame each, 1 to 65,536. A
    /// stream holds a buffer only until the application has read the frame in it; an idle stream
    /// holds none. A frame that arrives in the last free buffer is copied to the heap until it is
    /// read, so that other streams continue however slowly an application reads. While a stream
    /// waits to write and does not read, at most [`recv_window`](Self::recv_window) of its frames
    /// are copied like this. The setting does not change how many frames the peer can send.
    /// [`RdmaMessages`](super::RdmaMessages) pass these buffers to the application: set at least
    /// one buffer more than the application keeps at a time.
    ///
    /// By default each stream has its own buffers, which it posts as receives. Only devices whose
    /// [`max_pooled_len`](crate::device::RdmaCaps::max_pooled_len) is at least
    /// [`frame_size`](Self::frame_size) can share them.
    pub fn recv_bufs(mut self, buffers: usize) -> Self {
        self.recv_bufs = Some(buffers);
        self
    }

    /// Sets how many frames of a stream may be in flight at once, each of which holds a buffer of
    /// the memory for sends. The number is 1 to 512, and defaults to 4. On the software device at
    /// most 4 frames of a stream are in flight; those that the device finishes at once do not
    /// count.
    pub fn send_window(mut self, frames: usize) -> Self {
        self.send_window = frames;
        self
    }

    /// Sets how many peers may be connected to a listener's socket without [`accept`] having
    /// returned them. The number is 1 to 65,536, and defaults to 64. If one more connects, the
    /// oldest of these peers is dropped once it has been silent for 100 ms. Peers that were
    /// returned as [`Incoming`](super::Incoming) do not count.
    ///
    /// [`accept`]: super::RdmaListener::accept
    pub fn half_open(mut self, peers: usize) -> Self {
        self.half_open = peers;
        self
    }

    /// Sets which one-sided operations the peer may do on memory that was exported to it:
    /// `RDMA_READ`, `RDMA_WRITE`, `RDMA_ATOMIC`. Defaults to none. Pass the blob of
    /// [`Mmap::export_rdma`](crate::Mmap::export_rdma) to the peer as the `data` of
    /// [`RdmaConnector::connect_with`](super::RdmaConnector::connect_with) or
    /// [`Incoming::accept`](super::Incoming::accept), or over the stream: at a [`StreamAddr::Cm`],
    /// `data` is limited to 24 bytes for the connector, and 164 for the listener. The peer submits
    /// the operations through [`RdmaStream::rdma`](super::RdmaStream::rdma).
    pub fn permissions(mut self, access: Access) -> Self {
        self.permissions = access;
        self
    }

    /// Sets how the packets of all streams travel over an adapter: traffic class, service level,
    /// address, and more. Defaults to `Transport::default()`, which is right for most networks; the
    /// software device takes only this default.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets the index of the port's address that streams use. Defaults to `None`: the streams use
    /// the address of the [`transport`](Self::transport), if it has one. Otherwise a listener takes
    /// an address in the connector's subnet. If there is none, the streams use the address at which
    /// the two sides met by TCP, if the port has it, and else the one that
    /// [`RdmaBuilder::gid_index`](crate::rdma::RdmaBuilder::gid_index) chooses.
    pub fn gid_index(mut self, index: impl Into<Option<u32>>) -> Self {
        self.gid_index = index.into();
        self
    }

    /// Sets the largest payload of a packet; the smaller value of the two sides applies. Defaults
    /// to `None`: the value of the port. Packets are never longer than
    /// [`frame_size`](Self::frame_size), except that 1,024 bytes are always allowed. Before a
    /// stream over an adapter begins, each side sends a message that fills one packet, as a test.
    /// If the network between the ports carries only shorter packets, the stream uses packets of
    /// 1,024 bytes, and the log says so.
    pub fn mtu(mut self, mtu: impl Into<Option<Mtu>>) -> Self {
        self.mtu = mtu.into();
        self
    }

    /// Sets how long a frame waits for a peer before its stream ends: with `TimedOut` if the peer
    /// has no receive posted, and with `ConnectionReset` if it does not answer. Defaults to `None`:
    /// 2 s over an adapter, and 100 ms on the software device, where an honest peer has posted a
    /// receive for each credit.
    pub fn rnr_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.rnr_timeout = timeout.into();
        self
    }

    /// Sets whether a stream may continue without RDMA, over the TCP or Unix socket at which the
    /// two sides met. This happens if a side has no RDMA, if the devices of the two sides are of
    /// different kinds, or if they cannot reach one another before the stream begins. Defaults to
    /// false. Both sides must set it. Otherwise no stream begins, and the error names the reason.
    ///
    /// With it, one listener serves hosts with adapters and hosts without.
    /// [`RdmaStream::transport`] returns the transport of a stream; the log and
    /// [`ListenerStats::fell_back`] show it as well. A stream over TCP has the same type and the
    /// same rules, with these differences:
    ///
    /// - [`RdmaStream::rdma`] is `None`. The device need not have RDMA at all.
    /// - If the peer does not read, writes wait because the system's socket buffers are full, not
    ///   because of `recv_window` and `send_window`. [`RdmaMessages`](super::RdmaMessages) copy
    ///   their data, into the same number of Bufs as with RDMA.
    /// - `shutdown` waits until the peer's host has received everything, which takes a few
    ///   milliseconds, and about 50 ms if the peer does not read.
    /// - The loss of the peer's machine is noticed within a minute. While data is on its way to
    ///   that machine, it is noticed when the system gives up (tcp(7): `tcp_retries2`, about 15
    ///   minutes).
    /// - A thread of [`WorkQ::poll_thread`](crate::WorkQ::poll_thread) cannot wait for sockets: a
    ///   stream that is connected or accepted on such a thread has RDMA, or is refused.
    ///
    /// A peer can choose TCP for its own stream. The peers of a software device's listener are
    /// otherwise processes of this host; with this setting, the listener serves the network (see
    /// SECURITY.md). A side gives up an attempt to connect by RDMA after half of its
    /// [`timeout`](Self::timeout): set the same one on both sides.
    ///
    /// [`RdmaStream::transport`]: super::RdmaStream::transport
    /// [`RdmaStream::rdma`]: super::RdmaStream::rdma
    /// [`ListenerStats::fell_back`]: super::ListenerStats::fell_back
    pub fn or_tcp(mut self, may: bool) -> Self {
        self.or_tcp = may;
        self
    }

    /// Sets how long each of the two steps that set a stream up may take: the request with its
    /// answer, and the connection. Defaults to 5 s for each step.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long a dropped stream continues to send what was written. Defaults to 1 s. If
    /// `linger` is 0, the connection is reset at once.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Begins the Rdma of a stream, with packets of at most `mtu`. `local` is the address of this
    /// side at which it met the peer.
    pub(super) fn rdma<'a>(
        &self,
        device: &'a Device,
        local: Option<IpAddr>,
        mtu: Mtu,
    ) -> RdmaBuilder<'a> {
        let mut transport = self.transport;
        if has_network(device) {
            transport.source = transport.source.or(local);
        }
        let rdma = Rdma::builder(device)
            .recv_queue_size(self.receives() as u32)
            .send_queue_size(self.send_window as u32 + 2)
            .permissions(self.permissions)
            .transport(transport)
            .gid_index(self.gid_index)
            .mtu(self.mtu.unwrap_or(mtu).min(mtu).min(self.tried()));
        // Credits are for receives that are posted. Without a network between the sides, a frame
        // waits for a receive only if the peer has lied.
        match self.rnr_timeout {
            Some(timeout) => rdma.rnr_timeout(timeout),
            None if !has_network(device) => rdma.rnr_timeout(LIAR),
            None => rdma,
        }
    }

    /// Returns the largest packet that the first frames try. It is at most a frame, but at least
    /// `SURE`, which passes wherever Ethernet does.
    fn tried(&self) -> Mtu {
        let fit = |mtu: &&Mtu| mtu.bytes() as usize <= self.frame_size;
        let largest = Mtu::ALL.iter().rev().find(fit);
        largest.map_or(SURE, |mtu| (*mtu).max(SURE))
    }

    /// Returns how many frames a peer can send before this side reads.
    pub(super) fn window(&self) -> usize {
        self.recv_window
            .unwrap_or(12.min(IN_FLIGHT / self.frame_size))
    }

    /// Returns how many receives a stream has.
    pub(super) fn receives(&self) -> usize {
        self.window() + reserved(self.confirms)
    }

    /// Refuses a number that is out of its range.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        let frame = self.frame_size;
        let within = |name, value, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => {
                let text = format!("StreamOptions::{name}({value}): it is {least} to {most}");
                Err(Error::new(ErrorKind::InvalidValue, op, text))
            }
        };
        let many = 1 << 16;
        within("connections", self.connections, 1, TABLES)?;
        within("frame_size", frame, FRAME_MIN as usize, 128 << 10)?;
        within("recv_window", self.window(), 1, IN_FLIGHT / frame).map_err(|error| {
            let text = format!("{} with frames of {frame} bytes", error.message());
            Error::new(error.kind(), op, text)
        })?;
        within("recv_bufs", self.recv_bufs.unwrap_or(1), 1, many)?;
        within("send_window", self.send_window, 1, 512)?;
        within("half_open", self.half_open, 1, many)
    }
}

/// Returns true if a device has a network between it and its peers, as adapters have.
pub(super) fn has_network(device: &Device) -> bool {
    let caps = device.info().caps().rdma.as_ref();
    caps.is_none_or(|caps| caps.transport)
}
