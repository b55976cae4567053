//! The context: its properties, its states, and how it comes to be connected.

use std::time::Duration;

use super::connect::How;
use super::{Connect, RecvPool};
use crate::device::{Access, Caps, Mtu, RdmaCaps};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::context::{Context, Kind};
use crate::reactor::{EndpointPort, RdmaState, RdmaWatch};

/// The longest blob.
pub(super) const BLOB: usize = 1024;

/// An RDMA context: messages and one-sided operations with a peer that it is connected to (RDMA
/// guide; `doca_rdma`).
///
/// It is attached to one [`WorkQ`](crate::WorkQ); clones are the same context. Each side exports a
/// blob ([`export`](Rdma::export)), gets it to the other somehow, and connects with the one that it
/// got ([`connect`](Rdma::connect)). Over a stream, [`handshake`](Rdma::handshake) does all of it,
/// and [`handshake_accept`](Rdma::handshake_accept) does in a server.
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
/// What is refused before it is posted leaves the context as it is. A job that fails takes it to
/// [`RdmaState::Error`], and often the peer's as well: all other jobs and receives end with
/// [`Reason::Flushed`](crate::error::Reason::Flushed), which names the first cause
/// ([`JobError::cause`](crate::error::JobError::cause)), and nothing is taken any more until both
/// sides are [`reset`](Rdma::reset) and connected anew.
///
/// # Receives
///
/// Receives do not count against the depth of the WorkQ: they have a table of their own
/// ([`recv_queue_size`](super::RdmaBuilder::recv_queue_size)). A message meets the receives in the
/// order in which they were posted. A receive cannot be recalled: see [`Rdma::recv`] for what
/// becomes of a dropped one.
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

/// A context, as its connection.
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

    fn event_driven(&self) -> bool {
        self.event_driven
    }

    fn max_buf_size(&self) -> u64 {
        self.max_message_size
    }

    fn max_list_len(&self) -> u32 {
        self.max_send_list_len
    }
}

impl Rdma {
    /// Returns what the peer's [`connect`](Rdma::connect) needs, at most 1,024 bytes: the same
    /// until the next [`reset`](Rdma::reset). Any process that has it can connect: it is a secret.
    ///
    /// # Errors
    ///
    /// `BadState` in the state Error, or once the WorkQ was shut down; what could not be had.
    #[doc(alias = "doca_rdma_export")]
    pub fn export(&self) -> Result<Vec<u8>> {
        const OP: &str = "Rdma::export";
        self.check_open(OP)?;
        let blob = self.port().endpoint().export();
        let blob = blob.map_err(|error| error.with_call(OP))?;
        if blob.len() > BLOB {
            let text = format!(
                "the device's blob has {} bytes, more than {BLOB}",
                blob.len()
            );
            return Err(Error::new(ErrorKind::Unexpected, OP, text));
        }
        Ok(blob)
    }

    /// Connects to the context that was exported so, with the time limit of the builder if
    /// [`Connect::timeout`] says no other. Nothing begins before the first poll; no runtime is
    /// needed. The peer need not have connected yet: it must before it takes anything.
    ///
    /// # Errors
    ///
    /// `BadState` unless in the state Init; `InvalidValue` for what is no blob, or was changed, and
    /// for a blob of something else, with the call that takes it; `ConnectionAborted` if the peer
    /// refuses, was reset, or is connected to another one; `ConnectionReset` if it has gone;
    /// `NotSupported` if it cannot be reached from here; `TimedOut`. The state is Init then; or
    /// Error, if an adapter was half connected: [`reset`](Rdma::reset) it.
    ///
    /// # Cancel safety
    ///
    /// Dropping it is ordinary: an attempt that is under way ends by itself, within the time limit,
    /// and may connect. Check the [`state`](Rdma::state), or call [`reset`](Rdma::reset).
    #[doc(alias = "doca_rdma_connect")]
    pub fn connect(&self, blob: &[u8]) -> Connect {
        Connect::new(self, How::Connect, blob, self.connect_timeout())
    }

    /// Returns the state of the connection. It checks whether the peer has left.
    #[doc(alias = "doca_rdma_get_state")]
    pub fn state(&self) -> RdmaState {
        self.port().state()
    }

    /// Watches the state: [`RdmaWatch::changed`] waits for the next change.
    ///
    /// If the WorkQ is not busy-polled, and the watch is made or awaited on a Tokio runtime, the
    /// watch is notified of the end of the peer even if nothing else is awaited. In
    /// [`Mode::BusyPoll`](crate::Mode::BusyPoll) a change is found by a poll of an operation, or by
    /// a call of [`state`](Rdma::state). Once [`WorkQ::set_mode`](crate::WorkQ::set_mode) has set
    /// another mode on a runtime, the watch is notified as well.
    #[doc(alias = "doca_rdma_set_connection_state_callbacks")]
    pub fn watch(&self) -> RdmaWatch {
        self.port().watch()
    }

    /// Ends the connection in order: waits until the peer has all messages that were submitted
    /// before, and then does what [`reset`](Rdma::reset) does. The peer gets these messages, and
    /// its next operation fails with an error that
    /// [`is_disconnect`](crate::error::JobError::is_disconnect).
    ///
    /// An Rdma that is dropped instead does not wait: messages that wait for a receive of the peer
    /// are lost.
    ///
    /// # Errors
    ///
    /// As [`Rdma::send`], if a message could not be sent; the connection is not reset then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the connection as it is: call it again, or reset.
    #[doc(alias = "doca_rdma_connection_disconnect")]
    pub async fn close(&self) -> Result<()> {
        const OP: &str = "Rdma::close";
        // Operations of a connection end in order, so that this one is the last.
        let ended = self.write((), ()).await;
        ended.map_err(|error| Error::from(error).with_call(OP))?;
        self.reset().map_err(|error| error.with_call(OP))
    }

    /// Returns to Init from any state. The connection ends, and the peer's state turns to Error.
    /// Jobs in flight and receives end with [`Reason::Flushed`](crate::error::Reason::Flushed), for
    /// [`Reason::Reset`](crate::error::Reason::Reset); messages that were not taken are dropped,
    /// and so is one that lies in the memory of a dropped receive which another one took over, and
    /// was not polled since. Messages that come before it returns count as old ones. What was
    /// exported is worth nothing any more: export and connect anew. It does not wait; memory of
    /// jobs in flight goes back as they are collected.
    ///
    /// An adapter that does not let go of them leaves the state at Error, and they end with
    /// [`Reason::MemoryKept`](crate::error::Reason::MemoryKept): build another Rdma.
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

    /// Gives this handle up, if it is the last one on its attachment. The connection ends with it.
    ///
    /// # Errors
    ///
    /// `InUse` while a clone, an Op or a stream has it. What it was is dropped all the same; jobs
    /// in flight are finished.
    #[doc(alias = "doca_ctx_workq_rm")]
    #[doc(alias = "doca_rdma_destroy")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Returns what it has done so far. Always on; jobs and receives pay nothing for it.
    pub fn stats(&self) -> RdmaStats {
        let (port, mut stats) = (self.port(), RdmaStats::default());
        let receives = port.receives();
        (stats.connects, stats.errors) = port.transitions();
        (stats.receives_posted, stats.receives_in_use) = receives.posted_and_in_use();
        stats.receives_dropped = receives.dropped();
        stats.receives_waiting = receives.line.waiting() as u64;
        stats
    }

    /// Connects to a context that [`listen`](Rdma::listen)s for this one; its process may be
    /// hostile.
    pub(crate) fn dial(&self, blob: &[u8]) -> Connect {
        Connect::new(self, How::Dial, blob, self.connect_timeout())
    }

    /// Takes the context that was exported so as its peer, which [`dial`](Rdma::dial)s, and does
    /// not wait for it, so that it has no time limit. An adapter may block in its driver; without a
    /// network nothing does, and none of the threads that wait for peers is needed.
    pub(crate) async fn listen(&self, blob: &[u8]) -> Result<()> {
        let listen = Connect::new(self, How::Listen, blob, Duration::ZERO);
        match self.caps().transport {
            true => listen.await,
            false => listen.wait(),
        }
    }

    /// The peer's stream has ended in order, for the log.
    pub(crate) fn set_ended(&self) {
        self.port().set_ended();
    }

    /// Returns what the peer lets this side do.
    pub(crate) fn peer_permissions(&self) -> Access {
        self.port().peer_permissions()
    }

    /// Has the log name the peer from now on.
    pub(crate) fn set_peer(&self, peer: String) {
        self.port().set_peer(peer);
    }

    /// Returns how long a connection may take that says no other limit.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.0.extra().connect_timeout
    }

    #[inline(always)]
    pub(super) fn port(&self) -> &EndpointPort {
        &self.0.extra().port
    }

    /// Refused once the WorkQ was shut down.
    pub(super) fn check_open(&self, op: &'static str) -> Result<()> {
        self.0
            .attachment()
            .check_open()
            .map_err(|_| Error::new(ErrorKind::BadState, op, "the WorkQ was shut down"))
    }
}

/// Counts of an Rdma since it was attached, as [`Rdma::stats`] returns them.
///
/// The numbers are exact while nothing happens. Jobs are counted by their
/// [`WorkQ`](crate::WorkQ::stats).
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
    /// The number of times that it was connected. A change of the state is counted if the WorkQ is
    /// polled, or `stats` is called, before the next change.
    pub connects: u64,
    /// The number of times that its state turned to Error, counted in the same way.
    pub errors: u64,
    /// Receives that were posted. A receive that takes over a dropped one posts none.
    pub receives_posted: u64,
    /// The number of receive entries in use: posted receives, and messages that were not fetched
    /// yet.
    pub receives_in_use: u64,
    /// The number of `receives_in_use` whose operation was dropped, and which the next receive will
    /// adopt.
    pub receives_dropped: u64,
    /// The number of receives that wait in line for an entry.
    pub receives_waiting: u64,
}
