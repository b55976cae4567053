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

/// The largest payload of a packet. Both sides use the smaller of the two once they are connected.
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

    /// Returns how many bytes.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }
}

/// What an Endpoint is made for.
#[derive(Clone)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// What peers may do through it: of `RDMA_READ`, `RDMA_WRITE` and `RDMA_ATOMIC`.
    pub permissions: Access,
    /// How many Jobs the device works on at once: a power of two. More are accepted, and wait in
    /// order.
    pub send_queue_size: u32,
    /// The most receives that are posted at once: a power of two. It is a promise.
    pub recv_queue_size: u32,
    /// The longest list of a receive. It is a promise.
    pub recv_list_len: u32,
    /// With `Some` the crate posts no receives. The Endpoint lends its peer the credit for
    /// `recv_queue_size` messages of at most this many bytes, keeps them until
    /// [`Endpoint::take_message`] takes them, and lends each credit anew then. At most
    /// [`RdmaCaps::max_pooled_room`](crate::device::RdmaCaps::max_pooled_room).
    pub pooled_room: Option<usize>,
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The index of the port's address that the connection uses, less than
    /// [`RdmaCaps::gid_table_size`](crate::device::RdmaCaps::gid_table_size). With `None` the
    /// device chooses.
    pub gid_index: Option<u32>,
    /// How packets travel. A device without
    /// [`RdmaCaps::transport`](crate::device::RdmaCaps::transport) gets the default.
    pub transport: Transport,
    /// How long a Job waits for a peer that has no receive posted, or does not answer, before it
    /// fails.
    pub rnr_timeout: Duration,
    /// The provider calls it outside of all its locks: whenever [`Endpoint::state`] has changed,
    /// and once a message has come after [`Endpoint::has_message`] answered `false`.
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
            pooled_room: None,
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
            .field("pooled_room", &self.pooled_room)
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
    /// The name of its Completion.
    pub token: Token,
    /// The memory of the message. It is empty if the receive is for messages without bytes.
    pub dst: Segments,
    /// The maximum length of a message, in bytes. `dst` has at least that capacity.
    pub room: usize,
}

/// A [`dial`](Endpoint::dial) that was begun. Dropping it gives it up.
pub trait Dialling: AsFd + Send {
    /// Completes it, once the descriptor is readable. It does not block.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::dial`]; `ConnectionReset` also if only `dial` can find out what became of the
    /// peer.
    fn complete(self: Box<Self>) -> Result<()>;
}

/// The device's half of an Rdma, which takes [`Job::Rdma`](crate::device::Job::Rdma) alone.
///
/// Its Completions come out of the [`Queue`](crate::device::Queue) that opened it. Besides the
/// duties of the [contract](crate::device::contract):
///
/// 1. Jobs begin in the order of their submission, and their Completions come in that order.
///    Receives end in the order in which they were posted. The answer of a Job is how many bytes
///    were moved, or, of an atomic, what was there; that of a receive
///    [`Completion::received`](crate::device::Completion::received).
/// 2. A Job or receive that fails takes the Endpoint to [`EndpointState::Error`]: all others that
///    were accepted end with [`JobError::flushed`], and so does what is submitted from then on.
/// 3. When `reset` has returned no memory of Jobs and receives is touched any more; their
///    Completions come, flushed. (Or, of a device that does not let go of them, with
///    [`JobError::memory_kept`](crate::error::JobError::memory_kept).)
/// 4. Messages of an Endpoint with [`EndpointConfig::pooled_room`] are taken whole, once each, and
///    in the order in which they were sent. A peer that has left turns the state to Error once its
///    messages were taken; a reset drops them. Of several endpoints of a queue a peer may have more
///    messages waiting than it was lent, if others have their credits or get them in the end.
/// 5. The device does not believe a blob before the blob's maker has proved it: `listen` contacts
///    no process, and `dial` only the blob's own.
///
/// # Safety
///
/// Implementors keep these duties.
pub unsafe trait Endpoint: Submit {
    /// Returns the state. It must be cheap.
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

    /// Returns what the peer lets this side do, from the connect to the next reset. By default this
    /// is everything: then streams keep their writes in order with one-sided operations.
    fn peer_permissions(&self) -> Access {
        Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC
    }

    /// Returns what the peer's `connect` needs: at most 1,024 bytes, until the next reset the same.
    ///
    /// # Errors
    ///
    /// `BadState` in the state Error; what could not be had.
    fn export(&self) -> Result<Vec<u8>>;

    /// Connects to the Endpoint that was exported so. It may block, until the deadline at most. The
    /// peer need not have connected yet.
    ///
    /// # Errors
    ///
    /// `BadState` unless in the state Init; `InvalidValue` for what is no blob of an Endpoint;
    /// `ConnectionAborted` if the peer refuses, or knows no such Endpoint; `ConnectionReset` if it
    /// has gone; `NotSupported` if it cannot be reached from here; `TimedOut`. The state is Init
    /// then, or Error if there is no way back but a reset.
    fn connect(&self, blob: &[u8], deadline: Instant) -> Result<()>;

    /// Takes the Endpoint that was exported so as its peer, and contacts no one: a stranger may
    /// have made the blob. The peer [`dial`](Endpoint::dial)s. It does not wait for that; it may
    /// block as long as its own device does. The state turns to Connected once the peer has come,
    /// and [`EndpointConfig::changed`] is called by the next reap, which the peer's first message
    /// causes at the latest; a device that cannot see that, such as an adapter, is Connected at
    /// once.
    ///
    /// # Errors
    ///
    /// As [`connect`](Endpoint::connect), without the errors that only the peer can report.
    fn listen(&self, blob: &[u8]) -> Result<()>;

    /// Connects to an Endpoint that [`listen`](Endpoint::listen)s for this one. It may block, until
    /// the deadline at most. The peer may be hostile: its blob leads to an Endpoint of the process
    /// that made it, and nowhere else. By default it connects.
    ///
    /// # Errors
    ///
    /// As [`connect`](Endpoint::connect); `NotPermitted` if the blob leads elsewhere.
    fn dial(&self, blob: &[u8], deadline: Instant) -> Result<()> {
        self.connect(blob, deadline)
    }

    /// Begins to [`dial`](Endpoint::dial) without blocking, if the device can do so for this blob.
    /// By default it cannot.
    fn begin_dial(&self, _blob: &[u8]) -> Option<Box<dyn Dialling>> {
        None
    }

    /// Connects to the side that listens at this address, by the network's connection manager. It
    /// does not block: `answer` is called when it has completed, at the deadline at the latest. By
    /// default it is not supported.
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

    /// Accepts the connection that a peer has asked for. It does not block, and `answer` is called
    /// with no bytes when both sides are connected, or this has failed. By default it is not
    /// supported.
    ///
    /// # Errors
    ///
    /// As [`connect_to`](Endpoint::connect_to), and `InvalidValue` for an offer of another device,
    /// or of a peer that is foreign or not against what the options say.
    fn accept(&self, _offer: Box<dyn CmOffer>, _options: CmOptions, answer: CmAnswer) {
        answer(Err(no_manager()));
    }

    /// Posts receives, up to `recv_queue_size` of them, in order, until one is refused. They are
    /// taken in the states Init and Connected, and refused with [`JobError::flushed`] in the state
    /// Error. Those that are refused were never the device's, and are not tried again, whatever the
    /// reason is. With [`EndpointConfig::pooled_room`] the crate does not call it.
    ///
    /// # Safety
    ///
    /// The memory of each is valid, and leased, until its Completion was reaped, or what `retire`
    /// was given is dropped. No Token is posted already, and no more than `recv_queue_size`
    /// receives are.
    unsafe fn post_recvs(&self, receives: &[Receive]) -> Submitted;

    /// Returns true if there is a message to take, of an Endpoint with
    /// [`EndpointConfig::pooled_room`]. If there is none, the Endpoint calls
    /// [`EndpointConfig::changed`] once there is one. A message may come before the call returns.
    /// The default answers `false`. Cheap.
    fn has_message(&self) -> bool {
        false
    }

    /// Copies the oldest message, of an Endpoint with [`EndpointConfig::pooled_room`], and answers
    /// what came and how many bytes were written. Returns `None` if there is none. The default
    /// does.
    ///
    /// # Errors
    ///
    /// What the Endpoint fails with. `ReceiveTooSmall` if the message is longer than `room`: it
    /// stays, and the Endpoint does not fail.
    ///
    /// # Safety
    ///
    /// `dst` is valid and leased, and has at least `room` bytes.
    unsafe fn take_message(
        &self,
        _dst: &Segments,
        _room: usize,
    ) -> Result<Option<(Arrival, usize)>, JobError> {
        Ok(None)
    }

    /// Sends a message of these pieces at once, as [`Submit::try_inline`] does, from memory that no
    /// device needs to know. Nothing of it is kept. Returns `None`, as the default does, if it has
    /// not begun.
    fn send_bytes(&self, _pieces: &[&[u8]]) -> Option<Result<u64, JobError>> {
        None
    }

    /// Returns to the state Init from any state: the connection ends, Jobs and receives that were
    /// accepted end flushed, and earlier exports become invalid. The peer's state turns to Error.
    /// While or after it is retired, this does nothing: a thread that shuts the WorkQ down may be
    /// late.
    fn reset(&self);

    /// Ends the connection: the Rdma was dropped. The device drops `keep` once it touches no
    /// receive's memory any more, and reports no Completions of receives, but still those of Jobs.
    /// It never waits.
    ///
    /// # Safety
    ///
    /// `keep` keeps the memory of all receives that are posted, and no thread posts any more.
    unsafe fn retire(&self, keep: KeepAlive);
}
