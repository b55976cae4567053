//! [`Rdma`]: its properties, its states, and how it is connected.

use std::time::Duration;

use super::connect::How;
use super::{Connect, RecvPool};
use crate::device::{Access, Caps, Mtu, RdmaCaps};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::context::{Context, Kind, exported};
use crate::reactor::{EndpointPort, RdmaState, RdmaWatch};

/// An RDMA context: messages and one-sided operations with a peer that it is connected to (NVIDIA's
/// RDMA guide; `doca_rdma`).
///
/// A context is attached to one [`WorkQ`](crate::WorkQ); clones are handles of the same context. To
/// connect, each side exports a blob ([`export`](Rdma::export)), sends it to the other side over a
/// channel of the application, and passes the blob that it received to [`connect`](Rdma::connect).
/// Over a byte stream such as a `TcpStream` a handshake does all of this: a client calls
/// [`handshake_connect`](Rdma::handshake_connect), a server
/// [`handshake_accept`](Rdma::handshake_accept), and two sides without such roles both call
/// [`handshake`](Rdma::handshake).
///
/// ```
/// # use tokio_doca::{error::JobError, BufPool, Device, ErrorKind, Mmap, Rdma, WorkQ};
/// async fn greet(rdma: &Rdma, pool: &BufPool) -> Result<(), JobError> {
///     let (hello, answer) = (pool.alloc().await, pool.alloc().await);
///     hello.extend_from_slice(b"hello")?;
///     rdma.send(&hello).await?;
///     let received = rdma.recv(&answer).await?;
///     println!("{} bytes of an answer", received.len);
///     Ok(())
/// }
/// ```
///
/// # Errors of jobs
///
/// A job that is refused before it is posted leaves the context as it is. A job that fails takes
/// the context to [`RdmaState::Error`], and often the peer's as well. All other jobs and receives
/// then end with [`Reason::Flushed`](crate::error::Reason::Flushed);
/// [`JobError::cause`](crate::error::JobError::cause) returns the first cause. New jobs are refused
/// until both sides are [`reset`](Rdma::reset) and connected anew.
///
/// # Receives
///
/// Receives do not count against the depth of the WorkQ: each Rdma has a table for them
/// ([`recv_queue_size`](super::RdmaBuilder::recv_queue_size)). Messages complete the receives in
/// the order in which those were posted. A receive cannot be recalled: [`Rdma::recv`] documents
/// what happens to a receive that is dropped.
#[derive(Clone)]
#[doc(alias = "doca_rdma")]
#[doc(alias = "ibv_qp")]
pub struct Rdma(pub(super) Context<RdmaCaps, RdmaInner>);

/// The settings that an Rdma was built with, and its endpoint on the device.
pub(super) struct RdmaInner {
    pub(super) port: EndpointPort,
    pub(super) permissions: Access,
    pub(super) send_queue_size: u32,
    pub(super) recv_queue_size: u32,
    pub(super) recv_chain_len: u32,
    pub(super) mtu: Mtu,
    pub(super) gid_index: Option<u32>,
    pub(super) rnr_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) recv_pool: Option<RecvPool>,
}

/// An [`Rdma`] that can be used as a reference to its [`EndpointPort`].
pub(super) struct Pair(pub(super) Rdma);

impl AsRef<EndpointPort> for Pair {
    fn as_ref(&self) -> &EndpointPort {
        self.0.port()
    }
}

impl Kind for RdmaCaps {
    const ATTACH: &'static str = "RdmaBuilder::attach";
    const DETACH: &'static str = "Rdma::detach";
    const LACKS: &'static str = "has no remote operations: DevInfo::caps().rdma says who has";

    fn of(caps: &Caps) -> Option<&RdmaCaps> {
        caps.rdma.as_ref()
    }

    fn limits(&self) -> (bool, u64, u32) {
        (
            self.event_driven,
            self.max_message_size,
            self.max_send_list_len,
        )
    }
}

impl Rdma {
    /// Returns the blob that the peer passes to [`connect`](Rdma::connect), of at most 1,024 bytes.
    /// The blob is the same until the next [`reset`](Rdma::reset). Keep it secret: any process that
    /// has it can connect.
    ///
    /// # Errors
    ///
    /// `BadState` in the state Error, or once the WorkQ was shut down; other kinds if a resource
    /// could not be obtained, which the text names.
    #[doc(alias = "doca_rdma_export")]
    pub fn export(&self) -> Result<Vec<u8>> {
        const OP: &str = "Rdma::export";
        self.check_open(OP)?;
        exported(OP, self.port().endpoint().export())
    }

    /// Connects to the context whose [`export`](Rdma::export) returned `blob`. The time limit is
    /// the builder's, unless [`Connect::timeout`] sets another one. Nothing begins before the first
    /// poll; no runtime is needed. The peer need not have connected yet, but accepts no message
    /// before it has.
    ///
    /// # Errors
    ///
    /// `BadState` unless the Rdma is in the state Init, or once the WorkQ was shut down;
    /// `InvalidValue` if `blob` is not a blob, was changed, or was exported by something other than
    /// an Rdma (the error names the call that takes such a blob); `ConnectionAborted` if the peer
    /// refuses, was reset, or is connected to another context; `ConnectionReset` if the peer has
    /// gone; `NotSupported` if the peer cannot be reached from here; `TimedOut` after the time
    /// limit; `OperatingSystem` if no thread can be started. After an error the state is Init, or
    /// Error if an adapter had begun to connect its queue pair. In the state Error,
    /// [`reset`](Rdma::reset) the Rdma.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped. An attempt that has begun ends by itself, within the time limit,
    /// and may still connect. Check the [`state`](Rdma::state), or call [`reset`](Rdma::reset).
    #[doc(alias = "doca_rdma_connect")]
    pub fn connect(&self, blob: &[u8]) -> Connect {
        Connect::new(self, How::Connect, blob, self.connect_timeout())
    }

    /// Checks whether the peer has left, and returns the state of the connection.
    #[doc(alias = "doca_rdma_get_state")]
    pub fn state(&self) -> RdmaState {
        self.port().state()
    }

    /// Returns a watch of the state: [`RdmaWatch::changed`] waits for the next change.
    ///
    /// If the WorkQ is not busy-polled, and the watch is made or awaited on a Tokio runtime, the
    /// watch is notified when the peer ends, even if nothing else is awaited. In
    /// [`Mode::BusyPoll`](crate::Mode::BusyPoll) a change is found by a poll of an operation, or by
    /// a call of [`state`](Rdma::state). If [`WorkQ::set_mode`](crate::WorkQ::set_mode) later sets
    /// another mode, and is called on a runtime, the watch is notified as in the first case.
    #[doc(alias = "doca_rdma_set_connection_state_callbacks")]
    pub fn watch(&self) -> RdmaWatch {
        self.port().watch()
    }

    /// Closes the connection after everything was delivered: waits until the peer has all messages
    /// that were submitted before, and then calls [`reset`](Rdma::reset). The peer gets these
    /// messages, and its next operation fails with an error for which
    /// [`is_disconnect`](crate::error::JobError::is_disconnect) returns true.
    ///
    /// Dropping an Rdma does not wait: messages that still wait for a receive of the peer are lost.
    ///
    /// # Errors
    ///
    /// As [`Rdma::send`], if a message could not be sent. The connection is then not reset.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the connection as it is: call `close` again, or
    /// [`reset`](Rdma::reset).
    #[doc(alias = "doca_rdma_connection_disconnect")]
    pub async fn close(&self) -> Result<()> {
        const OP: &str = "Rdma::close";
        // Operations of a connection complete in order, so that this empty write completes last.
        let ended = self.write((), ()).await;
        ended.map_err(|error| Error::from(error).with_call(OP))?;
        self.reset().map_err(|error| error.with_call(OP))
    }

    /// Returns to Init from any state. The connection ends, and the peer's state turns to Error.
    /// Jobs in flight and receives end with [`Reason::Flushed`](crate::error::Reason::Flushed),
    /// whose cause is [`Reason::Reset`](crate::error::Reason::Reset). Messages that no receive has
    /// returned are dropped. This includes a message for a dropped receive that a later receive has
    /// taken over, if the later receive was not polled since. Messages that come before `reset`
    /// returns count as messages of the old connection. Blobs that were exported become invalid:
    /// export and connect anew. `reset` does not wait; memory of jobs in flight is released as the
    /// jobs are collected.
    ///
    /// If an adapter does not release its jobs and receives, the state stays Error, and the jobs
    /// and receives end with [`Reason::MemoryKept`](crate::error::Reason::MemoryKept): build
    /// another Rdma.
    ///
    /// # Errors
    ///
    /// `BadState` once the WorkQ was shut down.
    #[doc(alias = "doca_ctx_stop")]
    #[doc(alias = "doca_ctx_start")]
    pub fn reset(&self) -> Result<()> {
        self.check_open("Rdma::reset")?;
        self.port().reset();
        Ok(())
    }

    /// Drops this handle, which must be the last one of the context, and ends the connection.
    ///
    /// # Errors
    ///
    /// `InUse` if a clone, a pending operation or a stream still holds the context. The handle is
    /// consumed either way; jobs in flight finish.
    #[doc(alias = "doca_ctx_workq_rm")]
    #[doc(alias = "doca_rdma_destroy")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Returns the counts of this Rdma so far. They are always kept, at no cost for jobs and
    /// receives.
    pub fn stats(&self) -> RdmaStats {
        let (port, mut stats) = (self.port(), RdmaStats::default());
        let receives = port.receives();
        (stats.connects, stats.errors) = port.transitions();
        (stats.receives_posted, stats.receives_in_use) = receives.posted_and_in_use();
        stats.receives_dropped = receives.dropped();
        stats.receives_waiting = receives.line.waiting() as u64;
        stats
    }

    /// Connects to a context that [`listen`](Rdma::listen)s for this one. The process of that
    /// context may be hostile.
    pub(crate) fn dial(&self, blob: &[u8]) -> Connect {
        Connect::new(self, How::Dial, blob, self.connect_timeout())
    }

    /// Takes the context whose export is `blob` as the peer, which will [`dial`](Rdma::dial). Does
    /// not wait for the peer, so that there is no time limit. The driver of an adapter may block,
    /// so that a thread for blocking calls is used. A device without a network does not block, and
    /// needs no thread.
    pub(crate) async fn listen(&self, blob: &[u8]) -> Result<()> {
        let listen = Connect::new(self, How::Listen, blob, Duration::ZERO);
        match self.caps().transport {
            true => listen.await,
            false => listen.wait(),
        }
    }

    /// Records for the log that the peer's stream has ended in order.
    pub(crate) fn set_ended(&self) {
        self.port().set_ended();
    }

    /// Returns the operations that the peer permits this side.
    pub(crate) fn peer_permissions(&self) -> Access {
        self.port().peer_permissions()
    }

    /// Sets the name of the peer for the log.
    pub(crate) fn set_peer(&self, peer: String) {
        self.port().set_peer(peer);
    }

    /// Returns the time limit of attempts to connect that set no other limit.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.0.extra().connect_timeout
    }

    #[inline(always)]
    pub(super) fn port(&self) -> &EndpointPort {
        &self.0.extra().port
    }

    /// Returns `BadState` once the WorkQ was shut down.
    pub(super) fn check_open(&self, op: &'static str) -> Result<()> {
        self.0
            .attachment()
            .check_open()
            .map_err(|_| Error::new(ErrorKind::BadState, op, "the WorkQ was shut down"))
    }
}

/// Counts of an Rdma since it was attached, as [`Rdma::stats`] returns them.
///
/// The numbers are exact only while nothing is in progress. Jobs are counted by the WorkQ
/// ([`WorkQ::stats`](crate::WorkQ::stats)).
///
/// ```
/// # use tokio_doca::{BufPool, Device, Mmap, Rdma, WorkQ, rdma::RdmaStats};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let (a, b) = (Rdma::builder(&device).attach(&workq)?, Rdma::builder(&device).attach(&workq)?);
/// # let (of_a, of_b) = (a.export()?, b.export()?);
/// # tokio::try_join!(a.connect(&of_b), b.connect(&of_a))?;
/// // `a` and `b` are connected.
/// let dst = pool.alloc().await;
/// let receive = b.recv(&dst).start()?;
/// let stats: RdmaStats = b.stats();
/// assert_eq!((stats.receives_posted, stats.receives_in_use), (1, 1));
///
/// let sent = a.send(()).start()?;                     // an empty message
/// receive.await?;
/// # sent.await?;
/// assert_eq!(b.stats().receives_in_use, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaStats {
    /// The number of times that the Rdma was connected. A change of the state is counted if the
    /// WorkQ is polled, or `stats` is called, before the next change.
    pub connects: u64,
    /// The number of times that the state turned to Error, counted as `connects` is.
    pub errors: u64,
    /// The number of receives that were posted. A receive that takes over a dropped receive is not
    /// counted.
    pub receives_posted: u64,
    /// The number of receive entries in use: those of posted receives, and of messages that were
    /// not fetched yet.
    pub receives_in_use: u64,
    /// The number of `receives_in_use` whose operation was dropped. The next receives will adopt
    /// them.
    pub receives_dropped: u64,
    /// The number of receives that wait in line for an entry.
    pub receives_waiting: u64,
}
