//! The device's half of an Rdma: a queue pair, and the Jobs that it takes.
#![expect(
    unsafe_code,
    reason = "who implements Endpoint touches memory that the crate lends it"
)]

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::manager::{CmAnswer, CmOffer, CmOptions, no_manager};
use super::submit::{KeepAlive, Submit, Submitted};
use super::transport::{Path, Transport};
use crate::device::job::{Arrival, Segments, Token};
use crate::device::memory::Access;
use crate::error::{JobError, Result};

/// The maximum payload of a packet. Defaults to 1,024 bytes. Once connected, both sides use the
/// smaller of their two values.
///
/// ```
/// use tokio_doca::rdma::{Mtu, Rdma};
/// # use tokio_doca::{Device, WorkQ};
///
/// # let (device, workq) = (Device::open_default()?, WorkQ::builder().build()?);
/// let rdma = Rdma::builder(&device).mtu(Mtu::Bytes4096).attach(&workq)?;
/// assert_eq!(rdma.mtu().bytes(), 4096);               // before it is connected
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "doca_mtu_size")]
#[doc(alias = "ibv_mtu")]
#[allow(missing_docs)] // the numbers say it
pub enum Mtu {
    Bytes256,
    Bytes512,
    #[default]
    Bytes1024,
    Bytes2048,
    Bytes4096,
}

impl Mtu {
    /// All sizes, the smallest first.
    pub const ALL: [Mtu; 5] = [
        Mtu::Bytes256,
        Mtu::Bytes512,
        Mtu::Bytes1024,
        Mtu::Bytes2048,
        Mtu::Bytes4096,
    ];

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }
}

/// The settings of a new [`Endpoint`].
#[derive(Clone)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// The operations that peers may do through the Endpoint: any of `RDMA_READ`, `RDMA_WRITE` and
    /// `RDMA_ATOMIC`.
    pub permissions: Access,
    /// The number of Jobs that the device works on at once, a power of two. Further Jobs are
    /// accepted, and wait in order.
    pub send_queue_size: u32,
    /// The maximum number of receives posted at once, a power of two. The crate promises not to
    /// exceed it.
    pub recv_queue_size: u32,
    /// The maximum number of pieces in a receive. The crate promises not to exceed it.
    pub recv_list_len: u32,
    /// With `Some` the crate posts no receives. The Endpoint grants its peer credits for
    /// `recv_queue_size` messages of at most this many bytes. It keeps each message until
    /// [`Endpoint::take_message`] takes it, and then grants the credit again. At most
    /// [`RdmaCaps::max_pooled_len`](crate::device::RdmaCaps::max_pooled_len).
    pub pooled_len: Option<usize>,
    /// The maximum payload of a packet.
    pub mtu: Mtu,
    /// The index of the port's address that the connection uses, less than
    /// [`RdmaCaps::gid_table_size`](crate::device::RdmaCaps::gid_table_size). With `None` the
    /// device chooses.
    pub gid_index: Option<u32>,
    /// How packets travel. A device without
    /// [`RdmaCaps::transport`](crate::device::RdmaCaps::transport) gets the default.
    pub transport: Transport,
    /// How long a Job waits for a peer that has no receive posted, or does not answer, before the
    /// Job fails.
    pub rnr_timeout: Duration,
    /// A function that the provider calls, outside of all its locks, whenever [`Endpoint::state`]
    /// has changed, and once a message has come after [`Endpoint::has_message`] returned `false`.
    pub changed: Arc<dyn Fn() + Send + Sync>,
}

impl EndpointConfig {
    /// Returns the config of a new Rdma with default settings.
    pub fn new(changed: Arc<dyn Fn() + Send + Sync>) -> EndpointConfig {
        EndpointConfig {
            permissions: Access::empty(),
            send_queue_size: 64,
            recv_queue_size: 64,
            recv_list_len: 1,
            pooled_len: None,
            mtu: Mtu::default(),
            gid_index: None,
            transport: Transport::default(),
            rnr_timeout: Duration::from_secs(2),
            changed,
        }
    }
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointConfig")
            .field("permissions", &self.permissions)
            .field("send_queue_size", &self.send_queue_size)
            .field("recv_queue_size", &self.recv_queue_size)
            .field("pooled_len", &self.pooled_len)
            .finish_non_exhaustive()
    }
}

/// The state of an Endpoint (section 4.3 of NVIDIA's DOCA RDMA guide).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "doca_rdma_state")]
pub enum EndpointState {
    /// The Endpoint can be exported and connected, and takes receives.
    Init,
    /// The Endpoint is connected to its peer.
    Connected,
    /// A Job has failed, or the peer has gone, for this reason. The Endpoint refuses Jobs and
    /// receives until it is reset.
    Error(JobError),
}

/// A receive, as an Endpoint posts it.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// The Token of the receive's Completion.
    pub token: Token,
    /// The memory of the message. It is empty if the receive is for messages without bytes.
    pub dst: Segments,
    /// The maximum length of a message, in bytes. `dst` has at least that capacity.
    pub len: usize,
}

/// An attempt to [`dial`](Endpoint::dial) that [`begin_dial`](Endpoint::begin_dial) has begun.
/// Dropping it cancels the attempt.
pub trait Dialling: AsFd + Send {
    /// Completes the attempt, once the descriptor is readable. Does not block.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::dial`]. `ConnectionReset` does not prove that the peer has gone: the crate
    /// then calls [`Endpoint::dial`], which finds out.
    fn complete(self: Box<Self>) -> Result<()>;
}

/// The device's half of an Rdma, which accepts only [`Job::Rdma`](crate::device::Job::Rdma).
///
/// Its Completions come out of the [`Queue`](crate::device::Queue) that opened the Endpoint.
/// Besides the duties of the [contract](crate::device::contract), implementors keep these:
///
/// 1. Jobs begin in the order of their submission, and their Completions come in that order.
///    Receives end in the order in which they were posted. The result of a Job is the number of
///    bytes moved or, for an atomic, the previous value. The result of a receive is as in
///    [`Completion::received`](crate::device::Completion::received).
/// 2. If a Job or receive fails, the Endpoint enters [`EndpointState::Error`]. All other accepted
///    Jobs and receives end with [`JobError::flushed`], as do all that are submitted from then on.
/// 3. Once `reset` has returned, the device touches no memory of Jobs and receives. They complete
///    as flushed or, if the device cannot release them, with
///    [`JobError::memory_kept`](crate::error::JobError::memory_kept).
/// 4. With [`EndpointConfig::pooled_len`], messages are taken whole, once each, and in the order of
///    sending. If the peer has left, the state turns to Error only once its messages were taken; a
///    reset drops them. If a queue has several endpoints, the device may keep more messages of a
///    peer than the peer has credits, as long as each of the other peers has its credits or gets
///    them in the end.
/// 5. The device does not trust a blob until the process that made the blob has proved that it did:
///    `listen` contacts no process, and `dial` only that process.
///
/// # Safety
///
/// Implementors keep these duties.
pub unsafe trait Endpoint: Submit {
    /// Returns the state of the Endpoint. The call must be cheap.
    fn state(&self) -> EndpointState;

    /// Returns how the Endpoint's packets travel: [`EndpointConfig::transport`] with the changes
    /// that the device made. By default this is `Transport::default()`.
    fn transport(&self) -> Transport {
        Transport::default()
    }

    /// Returns the path to the peer, from the connect to the next reset. By default this is `None`:
    /// the device has no network.
    fn path(&self) -> Option<Path> {
        None
    }

    /// Returns the operations that the peer permits this side, from the connect to the next reset.
    /// By default these are all operations. If the peer permits none, a stream may collect several
    /// writes of the application in one frame.
    fn peer_permissions(&self) -> Access {
        Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC
    }

    /// Returns the blob that the peer's `connect` needs: at most 1,024 bytes, and the same until
    /// the next reset.
    ///
    /// # Errors
    ///
    /// `BadState` in the state Error; other kinds name the resource that could not be obtained.
    fn export(&self) -> Result<Vec<u8>>;

    /// Connects to the Endpoint whose [`export`](Endpoint::export) returned `blob`. It may block
    /// until the deadline. The peer need not have connected yet.
    ///
    /// # Errors
    ///
    /// `BadState` unless in the state Init; `InvalidValue` if `blob` is not from an Endpoint;
    /// `ConnectionAborted` if the peer refuses, or knows no such Endpoint; `ConnectionReset` if the
    /// peer has gone; `NotSupported` if it cannot be reached from here; `TimedOut` at the deadline.
    /// After an error the state is Init, or Error if only a reset helps.
    fn connect(&self, blob: &[u8], deadline: Instant) -> Result<()>;

    /// Accepts the Endpoint whose [`export`](Endpoint::export) returned `blob` as the peer, and
    /// contacts no process: a stranger may have made the blob. The peer [`dial`](Endpoint::dial)s.
    /// This call does not wait for the peer, but may block for its own device. Once the peer has
    /// come, the state turns to Connected, and the next reap calls [`EndpointConfig::changed`]; the
    /// peer's first message causes that reap at the latest. On a device that cannot see the peer
    /// come, such as an adapter, the state is Connected at once.
    ///
    /// # Errors
    ///
    /// As [`connect`](Endpoint::connect), without the errors that only the peer can report.
    fn listen(&self, blob: &[u8]) -> Result<()>;

    /// Connects to an Endpoint that [`listen`](Endpoint::listen)s for this one. It may block until
    /// the deadline. The peer may be hostile, so the call connects only to an Endpoint of the
    /// process that made the blob. By default this calls [`connect`](Endpoint::connect).
    ///
    /// # Errors
    ///
    /// As [`connect`](Endpoint::connect); `NotPermitted` if the blob leads to another process.
    fn dial(&self, blob: &[u8], deadline: Instant) -> Result<()> {
        self.connect(blob, deadline)
    }

    /// Begins to [`dial`](Endpoint::dial) without blocking, if the device can do so for this blob.
    /// Returns `None` if it cannot, as the default does.
    fn begin_dial(&self, _blob: &[u8]) -> Option<Box<dyn Dialling>> {
        None
    }

    /// Connects to the side that listens at this address, by the network's connection manager
    /// (rdma_cm). It does not block: it calls `answer` on completion, at the deadline at the
    /// latest. By default this is not supported.
    ///
    /// # Errors
    ///
    /// Given to `answer`: `BadState` unless in the state Init; `InvalidValue` for more private data
    /// than a request can carry; `NotSupported` if the address cannot be reached by this device;
    /// `ConnectionAborted` if the peer refuses; `TimedOut`. The state is as after
    /// [`connect`](Endpoint::connect).
    fn connect_to(&self, _addr: SocketAddr, _options: CmOptions, answer: CmAnswer) {
        answer(Err(no_manager()));
    }

    /// Accepts a connection that a peer has requested. It does not block: it calls `answer` with no
    /// bytes once both sides are connected, or with an error. By default this is not supported.
    ///
    /// # Errors
    ///
    /// As [`connect_to`](Endpoint::connect_to), and `InvalidValue` for an offer of another device,
    /// or if [`CmOptions::foreign`] is wrong for the peer.
    fn accept(&self, _offer: Box<dyn CmOffer>, _options: CmOptions, answer: CmAnswer) {
        answer(Err(no_manager()));
    }

    /// Posts receives, up to `recv_queue_size` of them, in order, until one is refused. The
    /// Endpoint accepts them in the states Init and Connected; in the state Error it refuses them
    /// with [`JobError::flushed`]. The device never sees a refused receive, and the crate does not
    /// post it again, whatever the reason. With [`EndpointConfig::pooled_len`] the crate does not
    /// call this.
    ///
    /// # Safety
    ///
    /// The memory of each receive is valid, and leased, until its Completion was reaped, or the
    /// value given to `retire` is dropped. None of the Tokens is posted already, and at most
    /// `recv_queue_size` receives are posted.
    unsafe fn post_recvs(&self, receives: &[Receive]) -> Submitted;

    /// Returns true if [`take_message`](Endpoint::take_message) would find a message. The crate
    /// calls this only if [`EndpointConfig::pooled_len`] is `Some`. After `false`, the Endpoint
    /// calls [`EndpointConfig::changed`] once a message comes, which may be before this call
    /// returns. The default returns `false`. The call must be cheap.
    fn has_message(&self) -> bool {
        false
    }

    /// Takes the oldest message that the Endpoint keeps, and copies it to `_dst`. The crate calls
    /// this only if [`EndpointConfig::pooled_len`] is `Some`. Returns the peer's operation and the
    /// number of bytes written. Returns `None`, as the default does, if there is no message or the
    /// Endpoint has failed.
    ///
    /// # Errors
    ///
    /// The cause, if the message makes the Endpoint fail. `ReceiveTooSmall` if the message is
    /// longer than `_capacity`: the message stays, and the Endpoint does not fail.
    ///
    /// # Safety
    ///
    /// `_dst` is valid and leased, and has at least `_capacity` bytes.
    unsafe fn take_message(
        &self,
        _dst: &Segments,
        _capacity: usize,
    ) -> Result<Option<(Arrival, usize)>, JobError> {
        Ok(None)
    }

    /// Sends a message of these pieces at once, as [`Submit::try_inline`] does, from memory that
    /// need not be registered. The device keeps no reference to the memory. Returns `None`, as the
    /// default does, if it has not begun to send.
    fn send_bytes(&self, _pieces: &[&[u8]]) -> Option<Result<u64, JobError>> {
        None
    }

    /// Returns to the state Init from any state: the connection ends, accepted Jobs and receives
    /// end flushed, and earlier exports become invalid. The peer's state turns to Error. During and
    /// after `retire` this does nothing, since a thread that shuts the WorkQ down may call it late.
    fn reset(&self);

    /// Ends the connection, since the Rdma was dropped. The device drops `keep` once it no longer
    /// touches the memory of any receive. It reports no more Completions of receives, but still
    /// those of Jobs. The call never waits.
    ///
    /// # Safety
    ///
    /// `keep` keeps the memory of all posted receives alive, and no thread posts any more.
    unsafe fn retire(&self, keep: KeepAlive);
}
