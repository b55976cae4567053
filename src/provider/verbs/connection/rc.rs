//! An endpoint: a queue pair that a peer is connected to, its Jobs and its receives.
//!
//! ```text
//!   Init ----- connect: to RTR, to RTS -----> Connected
//!    ^                                            | a request fails, the peer is silent, or the device goes
//!    +-------- reset: another queue pair ---- Error
//! ```
//!
//! The thread that finds a failure sets the state Error at once (`fail`), after which nothing is
//! accepted. The reaper then takes back what the adapter has ([`super::ending`]). It polls all
//! completions that exist, and has the queue pair destroyed. After that the adapter touches no
//! memory of the connection, and the remaining Jobs end as flushed. So the crate does not wait for
//! the adapter's flushes, which an adapter may delay.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::super::adapter::{
    Address, BlobOrigin, EndpointBlob, Gid, PROBES, random_psn, remote_flags,
};
use super::super::cm::{CmEvent, Handler};
use super::super::ffi::*;
use super::super::transport::{Core, PeerTimeouts, Qp, QpCaps, Retry, Sends};
use super::local_endpoints;
use super::pooled::Pooled;
use super::sinks::Sinks;
use super::timeouts::Timeouts;
use crate::device::{EndpointConfig, EndpointState, Path, RdmaJob, Token};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::sync::{BriefGuard, BriefMutex, lock};

/// The connections of one queue that have failed, or may have failed, since the queue's last reap.
#[derive(Default)]
pub(in super::super) struct FailedConnections(Mutex<Vec<Arc<RcConnection>>>);

impl FailedConnections {
    pub(in super::super) fn any(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    pub(in super::super) fn take(&self) -> Vec<Arc<RcConnection>> {
        std::mem::take(&mut *lock(&self.0))
    }
}

pub(in super::super) struct RcConnection {
    pub(in super::super) core: Arc<Core>,
    pub(in super::super) config: EndpointConfig,
    pub(in super::super) patience: PeerTimeouts,
    pub(in super::super) inner: BriefMutex<RcInner>,
    /// The connections of the same queue that have failed.
    all_failed: Arc<FailedConnections>,
    /// The id of a queue pair that has failed, and the cause, if the failure could not be handled
    /// at once.
    pub(in super::super) failed: Mutex<Option<(u64, JobError)>>,
    /// The id that events of the queue pair carry. It differs from the ids of earlier queue pairs,
    /// whose events may come late. 0 once the endpoint was retired.
    pub(super) id: AtomicU64,
    /// A copy of the state of `inner`, for callers that must not wait for its lock.
    state: Mutex<EndpointState>,
}

pub(in super::super) struct RcInner {
    pub(in super::super) state: EndpointState,
    pub(in super::super) qp: Option<Arc<Qp>>,
    pub(super) origin: BlobOrigin,
    pub(super) psn: u32,
    /// This side's address: the exported one, or one that suits the peer's address.
    pub(super) gid: Option<Gid>,
    /// Set when the endpoint is connected, and cleared by the next reset.
    pub(in super::super) path: Option<Path>,
    pub(in super::super) peer: Option<EndpointBlob>,
    /// True if a message has come since the endpoint has this queue pair.
    pub(super) got: bool,
    /// If true, nothing is sent until a message has come: on iWARP the side that connects sends
    /// first (RFC 5044, 7.1).
    pub(super) waits: bool,
    /// The handler of rdma_cm that connects this queue pair, or has connected it. Cleared with the
    /// queue pair.
    pub(super) link: Option<Arc<dyn Handler>>,
    pub(super) connecting: bool,
    pub(in super::super) sends: Sends<RdmaJob>,
    pub(in super::super) receives: VecDeque<Posted>,
    /// The memory to which posted reads write, on iWARP.
    pub(super) sinks: Sinks,
    /// Set for a connection with a pool, while it has a queue pair.
    pub(super) pooled: Option<Pooled>,
    pub(in super::super) timeouts: Timeouts,
    /// The number of probes that were sent since a completion was seen.
    pub(super) probes: u32,
    /// A Job that has waited too long, and the error with which the connection is about to fail.
    /// Both are discarded if the next poll finds the Job's completion.
    pub(super) overdue: Option<(Token, JobError)>,
    /// The error with which the connection is about to fail, since its peer was silent for too
    /// long. It is discarded if the next poll finds an answer of the peer.
    pub(super) silent: Option<JobError>,
    /// The Job whose failure is the cause in the state, if the Job has not ended yet.
    pub(in super::super) first_failed: Option<Token>,
    /// True if the handle was dropped, so that the completions of receives are discarded.
    pub(in super::super) retired: bool,
    /// True if the queue pair could not be taken from the adapter.
    pub(super) doubt: bool,
    /// True while the queue pair is being taken from the adapter, or another one is being made.
    /// Only the thread that does this may change the connection.
    pub(in super::super) dying: bool,
    /// The queue pair that a thread shall take from the adapter, while that thread has not begun.
    pub(in super::super) left: Option<Dying>,
}

/// The queue pair of a connection that has begun to end, if there is one, and the handler of
/// rdma_cm that has connected it. The caller quiesces the queue pair, and holds no lock meanwhile,
/// since the driver may take long. Afterwards the handler is notified, which ends the connection at
/// the peer.
#[must_use]
pub(in super::super) struct Dying(
    pub(super) Option<Arc<Qp>>,
    pub(super) Option<Arc<dyn Handler>>,
);

impl Dying {
    /// Returns true if there is a queue pair to quiesce.
    pub(in super::super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Quiesces the queue pair. Returns false if the adapter may still touch memory.
    pub(in super::super) fn quiesce(self) -> bool {
        let Dying(qp, link) = self;
        let quiesced = qp.is_none_or(Qp::quiesce);
        if let Some(link) = link {
            link.handle(CmEvent::ENDED);
        }
        quiesced
    }
}

pub(in super::super) struct Posted {
    pub(in super::super) token: Token,
    pub(in super::super) len: usize,
}

impl RcConnection {
    pub(in super::super) fn open(
        core: &Arc<Core>,
        all_failed: &Arc<FailedConnections>,
        config: EndpointConfig,
        depth: u32,
    ) -> Result<Arc<RcConnection>> {
        core.cq.promise(promised(&config))?;
        let retry = Retry::within(config.rnr_timeout, &config.transport);
        let inner = RcInner {
            state: EndpointState::Init,
            qp: None,
            origin: BlobOrigin::new(),
            psn: random_psn(),
            gid: None,
            path: None,
            peer: None,
            got: false,
            waits: false,
            link: None,
            connecting: false,
            sends: Sends::new(depth),
            receives: VecDeque::with_capacity(own_receives(&config) as usize),
            sinks: Sinks::default(),
            pooled: None,
            timeouts: Timeouts::default(),
            probes: 0,
            overdue: None,
            silent: None,
            first_failed: None,
            retired: false,
            doubt: false,
            dying: false,
            left: None,
        };
        let conn = Arc::new(RcConnection {
            core: Arc::clone(core),
            all_failed: Arc::clone(all_failed),
            patience: PeerTimeouts {
                ack: retry.total(),
                receive: config.rnr_timeout,
                iwarp: core.context.traits.iwarp,
            },
            config,
            inner: BriefMutex::new(inner),
            failed: Mutex::default(),
            id: AtomicU64::new(0),
            state: Mutex::new(EndpointState::Init),
        });
        let made = conn.make()?;
        conn.begin(&mut conn.inner(), made);
        Ok(conn)
    }

    pub(in super::super) fn id(&self) -> u64 {
        self.id.load(SeqCst)
    }

    /// Returns the state, without waiting for the lock of `inner`.
    pub(in super::super) fn state(&self) -> EndpointState {
        *lock(&self.state)
    }

    pub(super) fn set_state(&self, inner: &mut RcInner, state: EndpointState) {
        inner.state = state;
        *lock(&self.state) = state;
    }

    pub(in super::super) fn inner(&self) -> BriefGuard<'_, RcInner> {
        lock(&self.inner)
    }

    /// Notifies the application that the state has changed. The caller holds no lock.
    pub(in super::super) fn notify(&self) {
        (self.config.changed)();
    }

    /// Makes a queue pair that no earlier blob names, and the connection's part of a pool. The
    /// caller holds no lock, since the driver may take long.
    fn make(&self) -> Result<(Qp, Option<Pooled>)> {
        let context = &self.core.context;
        let config = &self.config;
        let remote = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            // Probes need this permission. Which memory a peer may read is checked by the peer's
            // own process, and limited by what is exported.
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | remote_flags(config.permissions);
        let caps = QpCaps {
            sends: config.send_queue_size + PROBES,
            least_sends: 2 * PROBES,
            send_sges: context.traits.sges(),
            receives: own_receives(config),
            receive_sges: config.recv_list_len,
            inline: config.transport.inline_size,
        };
        let pooled = Pooled::join(&self.core, config)?;
        let queues = (&self.core.cq, pooled.as_ref().map(Pooled::srq));
        let id = Qp::next_id();
        self.id.store(id, SeqCst);
        let pkey_index = config.transport.pkey_index;
        let qp = Qp::create(queues, context.pd(), id, caps, remote, pkey_index)?;
        Ok((qp, pooled))
    }

    /// Starts to use the queue pair, and the part of a pool, that `make` has made.
    fn begin(&self, inner: &mut RcInner, (qp, pooled): (Qp, Option<Pooled>)) {
        inner.sends.set_capacity(qp.sends() - PROBES);
        local_endpoints::add(&inner.origin);
        inner.qp = Some(Arc::new(qp));
        inner.pooled = pooled;
    }

    /// Returns the number of the queue pair.
    pub(in super::super) fn number(&self) -> Option<u32> {
        self.inner().qp.as_ref().map(|qp| qp.num())
    }

    pub(in super::super) fn export(&self) -> Result<Vec<u8>> {
        let mut inner = self.inner();
        if let EndpointState::Error(cause) = inner.state {
            let text = format!("it has failed ({cause}): reset it first");
            return Err(Error::new(ErrorKind::BadState, None, text));
        }
        let blob = self.blob(&mut inner)?;
        Ok(blob.format())
    }

    fn blob(&self, inner: &mut RcInner) -> Result<EndpointBlob> {
        let context = &self.core.context;
        let port = context.port()?;
        let gid = self.choose_gid(inner, None)?;
        let Some(qp) = &inner.qp else {
            let text = "it has no queue pair: reset it";
            return Err(Error::new(ErrorKind::BadState, None, text));
        };
        Ok(EndpointBlob {
            origin: inner.origin,
            address: Address {
                lid: port.lid,
                qpn: qp.num(),
                psn: inner.psn,
                gid: gid.addr.octets(),
                mtu: Some(self.config.mtu.min(port.mtu)),
            },
            permissions: self.config.permissions,
            answers: context.traits.rd_atomics[0],
        })
    }

    pub(in super::super) fn connect(self: &Arc<Self>, blob: &[u8]) -> Result<()> {
        let peer = EndpointBlob::parse(blob)?;
        if peer.origin.is_own() && !local_endpoints::contains(&peer.origin) {
            let text = "the Rdma that exported this was reset or dropped since";
            return Err(Error::new(ErrorKind::ConnectionAborted, None, text));
        }
        let mut inner = self.inner();
        if peer.origin == inner.origin {
            let text = "this is the Rdma's own blob, and it cannot be its own peer: the two sides exchange their blobs";
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        let qp = self.unconnected(&inner)?;
        let gid = self.choose_gid(&mut inner, Some(&peer))?;
        let route = self.route(&inner, gid, &peer)?;
        let path = Path::new(gid.addr, peer.address.gid.into(), route.mtu);
        inner.connecting = true;
        drop(inner);
        if let Err((half, error)) = qp.connect(&route) {
            let cause = JobError::device(error.kind(), 0);
            self.give_back(&qp, half, cause)?;
            return Err(self.unreachable(error, gid, path));
        }
        self.set_connected(&qp, peer, path, false)
    }

    fn unreachable(&self, error: Error, gid: Gid, path: Path) -> Error {
        let name = &self.core.context.name;
        let hint = match self.core.context.traits.iwarp {
            true => "iWARP connects by rdma_cm alone: Rdma::connect_to",
            false => {
                "is the peer's address of this network, and of the same kind (RoCE, InfiniBand)? gid_index() or Transport::gid says another address of this side"
            }
        };
        let text = format!(
            "{name} cannot reach the peer by {path} (GID index {}): {error}; {hint}",
            gid.index
        );
        Error::new(ErrorKind::NotSupported, None, text)
    }

    /// Sets the state Error with this cause, or with an earlier one. Returns true if the state has
    /// changed. The caller then notifies the application, outside of all locks.
    pub(in super::super) fn fail(self: &Arc<Self>, inner: &mut RcInner, cause: JobError) -> bool {
        if matches!(inner.state, EndpointState::Error(_)) || inner.retired {
            return false;
        }
        // The connection may have ended before, with messages that were not taken.
        let ending = inner.pooled.as_ref().and_then(Pooled::ending);
        self.set_state(inner, EndpointState::Error(ending.unwrap_or(cause)));
        self.request_check();
        true
    }

    /// Requests that the reaper handle this connection, which has failed or may have failed.
    pub(super) fn request_check(self: &Arc<Self>) {
        lock(&self.all_failed.0).push(Arc::clone(self));
        self.core.request_reap();
    }

    /// Fails the connection if its queue pair has failed, if its peer is still silent, or if an
    /// overdue Job still waits. The caller has polled all completions. Returns true as `fail` does.
    pub(in super::super) fn check_failures(self: &Arc<Self>, inner: &mut RcInner) -> bool {
        let failed = lock(&self.failed).take();
        if let Some((_, cause)) = failed.filter(|&(id, _)| id == self.id()) {
            return self.fail_later(inner, cause);
        }
        if let Some(cause) = inner.silent.take().filter(|_| !inner.timeouts.heard) {
            return self.fail_later(inner, cause);
        }
        match inner.overdue.take() {
            Some((token, cause)) if inner.sends.token(0) == Some(token) => {
                self.fail_of(inner, 0, cause)
            }
            _ => false,
        }
    }

    /// Fails the connection because the Job at index `at` of `sends` has failed.
    pub(super) fn fail_of(
        self: &Arc<Self>,
        inner: &mut RcInner,
        at: usize,
        cause: JobError,
    ) -> bool {
        let news = self.fail(inner, cause);
        if news {
            inner.first_failed = inner.sends.token(at);
        }
        news
    }

    /// Makes another queue pair, once the connection has ended. The connection is usable only after
    /// [`begin_anew`](RcConnection::begin_anew).
    ///
    /// # Errors
    ///
    /// Returns the error if no queue pair could be made. In that case the connection is in the
    /// state Error.
    pub(in super::super) fn renew(&self) -> Result<()> {
        let inner = self.inner();
        if inner.doubt || inner.retired {
            return Ok(());
        }
        drop(inner);
        let made = self.make();
        let inner = &mut *self.inner();
        inner.origin = BlobOrigin::new();
        inner.psn = random_psn();
        (inner.gid, inner.path) = (None, None);
        (inner.connecting, inner.got, inner.waits) = (false, false, false);
        inner.silent = None;
        let begun = made.map(|made| self.begin(inner, made));
        begun.inspect_err(|error| {
            let cause = match self.core.context.is_dead() {
                true => JobError::of(Reason::DeviceGone),
                false => JobError::device(error.kind(), 0),
            };
            self.set_state(inner, EndpointState::Error(cause));
        })
    }
}

/// Returns the maximum number of an endpoint's completions that may await a poll at once, without
/// those of Jobs, which the depth of the queue covers.
fn promised(config: &EndpointConfig) -> u32 {
    own_receives(config) + PROBES
}

/// Returns the number of receives of the endpoint's own queue pair. With a pool, receives belong to
/// the shared queue.
fn own_receives(config: &EndpointConfig) -> u32 {
    match config.pooled_len {
        Some(_) => 0,
        None => config.recv_queue_size,
    }
}

impl Drop for RcConnection {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        if !inner.doubt {
            // If in doubt, completions may still come. `qp` holds the completion queue, and is
            // dropped after this call.
            self.core.cq.release(promised(&self.config));
        }
        local_endpoints::remove(&inner.origin);
    }
}
