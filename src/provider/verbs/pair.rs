//! An endpoint: a queue pair that a peer is connected to, its Jobs and its receives.
//!
//! ```text
//!   Init ----- connect: to RTR, to RTS -----> Connected
//!    ^                                            | a request fails, the peer is silent, or the device goes
//!    +-------- reset: another queue pair ---- Error
//! ```
//!
//! Whoever finds that it has failed says so at once (`fail`): nothing is taken any more. Taking back what the adapter has is left to
//! whoever reaps, under the one lock under which completions are polled: first all completions that there are, then the queue pair is destroyed,
//! which is when its memory is nobody's, and the rest ends flushed. So flushes are not waited for: an adapter may delay them.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use arrayvec::ArrayVec;

use super::blob::{Address, EndpointBlob, Origin, random_psn};
use super::context::bytes;
use super::core::{Core, lock};
use super::ffi::*;
use super::memory::lkey;
use super::qp::{Qp, Retry, Room, Route};
use super::sends::{Sends, Work};
use super::status::{self, Failed, Patience};
use super::traits::PROBES;
use super::watch::Watch;
use super::wr::{Chain, LIST, Remote};
use super::{live, watcher};
use crate::device::{
    Access, Completion, EndpointConfig, EndpointState, Mtu, RdmaJob, RecvOpcode, Segments,
    Submitted, Token, Verb,
};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};

/// Bytes that are sent as a part of the request, where the adapter takes that.
const INLINE: u32 = 128;

pub(super) struct Pair {
    pub(super) core: Arc<Core>,
    id: u64,
    config: EndpointConfig,
    patience: Patience,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) state: EndpointState,
    qp: Option<Arc<Qp>>,
    origin: Origin,
    psn: u32,
    gid: (u32, [u8; 16]),
    peer: Option<EndpointBlob>,
    connecting: bool,
    pub(super) sends: Sends<RdmaJob>,
    receives: VecDeque<Receive>,
    pub(super) watch: Watch,
    /// Looks at the peer since a completion was seen.
    probes: u32,
    /// Whose failure the state's cause is, if it has not ended yet.
    culprit: Option<Token>,
    /// The handle is gone: nobody waits for receives.
    retired: bool,
    /// It could not be taken from the adapter.
    doubt: bool,
}

struct Receive {
    token: Token,
    room: usize,
}

impl Work for RdmaJob {
    type Context = Remote;
    const MOST: usize = 1;

    #[inline(always)]
    fn push(&self, token: Token, chain: &mut Chain, context: &Remote) {
        chain.push_remote(token, self, context);
    }
}

impl Pair {
    pub(super) fn open(core: &Arc<Core>, config: EndpointConfig, depth: u32) -> Result<Arc<Pair>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        core.cq.promise(promised(&config))?;
        let retry = Retry::within(config.rnr_timeout);
        let inner = Inner {
            state: EndpointState::Init,
            qp: None,
            origin: Origin::new(),
            psn: random_psn(),
            gid: (0, [0; 16]),
            peer: None,
            connecting: false,
            sends: Sends::new(depth, config.send_queue_size),
            receives: VecDeque::with_capacity(config.recv_queue_size as usize),
            watch: Watch::default(),
            probes: 0,
            culprit: None,
            retired: false,
            doubt: false,
        };
        let pair = Arc::new(Pair {
            core: Arc::clone(core),
            id: NEXT.fetch_add(1, Relaxed),
            patience: Patience {
                ack: retry.total(),
                receive: config.rnr_timeout,
            },
            config,
            inner: Mutex::new(inner),
        });
        pair.begin(&mut pair.inner())?;
        core.context.add_pair(&pair);
        Ok(pair)
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Tells who asked for it that the state has changed: outside of all locks.
    pub(super) fn tell(&self) {
        (self.config.changed)();
    }

    /// A new queue pair, in the state Init, that no blob of before names.
    fn begin(&self, inner: &mut Inner) -> Result<()> {
        let context = &self.core.context;
        let config = &self.config;
        let mut remote = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            // For probes. Who may read what is said by the peers' own process, and by what is exported.
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        for (permission, flag) in [
            (
                Access::RDMA_WRITE,
                ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            ),
            (
                Access::RDMA_ATOMIC,
                ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
            ),
        ] {
            if config.permissions.contains(permission) {
                remote |= flag;
            }
        }
        let room = Room {
            sends: config.send_queue_size + PROBES,
            send_sges: context.traits.sges(),
            receives: config.recv_queue_size,
            receive_sges: config.recv_list_len,
            inline: INLINE,
        };
        let qp = Qp::create(&self.core.cq, context.pd(), self.id, room, remote)?;
        live::add(&inner.origin);
        inner.qp = Some(Arc::new(qp));
        inner.state = EndpointState::Init;
        Ok(())
    }

    /// The number of its queue pair.
    pub(super) fn number(&self) -> Option<u32> {
        self.inner().qp.as_ref().map(|qp| qp.num())
    }

    pub(super) fn export(&self) -> Result<Vec<u8>> {
        let mut inner = self.inner();
        if let EndpointState::Error(cause) = inner.state {
            let text = format!("it has failed ({cause}): reset it first");
            return Err(Error::new(ErrorKind::BadState, "Rdma::export", text));
        }
        let blob = self.blob(&mut inner)?;
        Ok(blob.format())
    }

    fn blob(&self, inner: &mut Inner) -> Result<EndpointBlob> {
        let traits = &self.core.context.traits;
        inner.gid = self.gid()?;
        let Some(qp) = &inner.qp else {
            let text = "it has no queue pair: reset it";
            return Err(Error::new(ErrorKind::BadState, "Rdma::export", text));
        };
        Ok(EndpointBlob {
            origin: inner.origin,
            address: Address {
                lid: traits.lid,
                qpn: qp.num(),
                psn: inner.psn,
                gid: inner.gid.1,
                mtu: Some(self.mtu()),
            },
            permissions: self.config.permissions,
            answers: traits.rd_atomics[0],
        })
    }

    /// The address that peers reach it by: index and address. The same until the port's addresses change.
    fn gid(&self) -> Result<(u32, [u8; 16])> {
        let context = &self.core.context;
        match self.config.gid_index {
            None => context.best_gid(),
            Some(index) => match context.gid(index).map(|entry| bytes(&entry)) {
                Ok(gid) if gid != [0; 16] => Ok((index, gid)),
                _ => {
                    let name = &context.name;
                    let text = format!("the port of {name} has no address at GID index {index}");
                    Err(Error::new(ErrorKind::NotFound, "Rdma::export", text))
                }
            },
        }
    }

    fn mtu(&self) -> Mtu {
        let active = self.core.context.traits.active_mtu.clamp(1, 5) as usize;
        self.config.mtu.min(Mtu::ALL[active - 1])
    }

    pub(super) fn connect(&self, blob: &[u8]) -> Result<()> {
        const OP: &str = "Rdma::connect";
        let peer = EndpointBlob::parse(blob)?;
        if peer.origin.is_own() && !live::contains(&peer.origin) {
            let text = "the Rdma that exported this was reset or dropped since";
            return Err(Error::new(ErrorKind::ConnectionAborted, OP, text));
        }
        let mut inner = self.inner();
        if inner.state != EndpointState::Init || inner.connecting {
            let text = "it is connected, or being connected, or has failed: reset it first";
            return Err(Error::new(ErrorKind::BadState, OP, text));
        }
        let Some(qp) = inner.qp.clone() else {
            let text = "it has no queue pair: reset it first";
            return Err(Error::new(ErrorKind::BadState, OP, text));
        };
        let traits = &self.core.context.traits;
        inner.gid = self.gid()?;
        let route = Route {
            peer: peer.address,
            psn: inner.psn,
            gid_index: inner.gid.0,
            mtu: peer
                .address
                .mtu
                .map_or(self.mtu(), |mtu| mtu.min(self.mtu())),
            rd_atomics: [traits.rd_atomics[0], traits.rd_atomics[1].min(peer.answers)],
            retry: Retry::within(self.config.rnr_timeout),
        };
        inner.connecting = true;
        drop(inner);
        // It may take long: others go on meanwhile.
        let connected = qp.connect(&route);
        let mut inner = self.inner();
        inner.connecting = false;
        let same = inner.qp.as_ref().is_some_and(|it| Arc::ptr_eq(it, &qp));
        if !same || inner.state != EndpointState::Init {
            let text = "it was reset or dropped, or failed, while it was being connected";
            return Err(Error::new(ErrorKind::ConnectionAborted, OP, text));
        }
        connected.map_err(|error| self.unreachable(error))?;
        inner.peer = Some(peer);
        inner.state = EndpointState::Connected;
        inner.watch = Watch::default();
        drop(inner);
        watcher::tick();
        Ok(())
    }

    fn unreachable(&self, error: Error) -> Error {
        let name = &self.core.context.name;
        let hint = match self.core.context.traits.iwarp {
            true => "iWARP connects by rdma_cm alone, which this library does not",
            false => {
                "is the peer's address of this network, and of the same kind (RoCE, InfiniBand)?"
            }
        };
        let text = format!("{name} cannot reach the peer: {error}; {hint}");
        Error::new(ErrorKind::NotSupported, "Rdma::connect", text)
    }

    fn remote(&self, inner: &Inner, qp: &Qp) -> Remote {
        let (answers, answers_lkey) = self.core.answers.place();
        Remote {
            permitted: inner.peer.map_or(Access::empty(), |peer| peer.permissions),
            max_inline: qp.max_inline(),
            answers,
            answers_lkey,
        }
    }

    /// # Safety
    ///
    /// As for `Endpoint::submit`.
    #[inline(always)]
    pub(super) unsafe fn submit(self: &Arc<Self>, jobs: &[(Token, RdmaJob)]) -> Submitted {
        let mut inner = self.inner();
        match inner.state {
            EndpointState::Connected => {}
            _ if jobs.is_empty() => {}
            EndpointState::Init => return Submitted::none(JobError::of(Reason::NotConnected)),
            EndpointState::Error(cause) => return Submitted::none(JobError::flushed(cause)),
        }
        let before = inner.sends.len();
        for &(token, job) in jobs {
            inner.sends.push(token, job);
        }
        // SAFETY: as the caller promises.
        let Err(refused) = (unsafe { self.post(&mut inner) }) else {
            return Submitted {
                accepted: jobs.len(),
                refused: None,
            };
        };
        let cause = status::refusal(refused.errno);
        if refused.at >= before {
            // It, and those behind it, nobody has seen.
            inner.sends.truncate(refused.at);
            return Submitted {
                accepted: refused.at - before,
                refused: Some(cause),
            };
        }
        // One that was accepted before, and waited for its place.
        let tell = self.fail_of(&mut inner, refused.at, cause);
        drop(inner);
        if tell {
            self.tell();
        }
        Submitted {
            accepted: jobs.len(),
            refused: None,
        }
    }

    /// # Safety
    ///
    /// The memory of all Jobs that wait is valid, and leased: as for `Endpoint::submit`.
    #[inline(always)]
    unsafe fn post(&self, inner: &mut Inner) -> std::result::Result<(), super::sends::Refused> {
        let Some(qp) = &inner.qp else {
            return Ok(());
        };
        let remote = self.remote(inner, qp);
        // SAFETY: as the caller promises.
        unsafe { inner.sends.post(qp, &remote) }
    }

    /// # Safety
    ///
    /// As for `Endpoint::post_recv`.
    pub(super) unsafe fn post_recv(
        &self,
        token: Token,
        dst: &Segments,
        room: usize,
    ) -> std::result::Result<(), JobError> {
        let mut inner = self.inner();
        if let EndpointState::Error(cause) = inner.state {
            return Err(JobError::flushed(cause));
        }
        let mut sges = ArrayVec::<ibv_sge, LIST>::new();
        // No message is longer.
        let mut left = room.min(1 << 31);
        for segment in dst.as_slice().iter().filter(|segment| segment.len > 0) {
            let part = segment.len.min(left);
            if part == 0 {
                break;
            }
            let sge = ibv_sge {
                addr: segment.addr.addr().get() as u64,
                length: part as u32,
                lkey: lkey(segment.key),
            };
            if sges.try_push(sge).is_err() {
                return Err(JobError::device(ErrorKind::InvalidValue, 0));
            }
            left -= part;
        }
        let Some(qp) = &inner.qp else {
            return Err(JobError::of(Reason::DeviceGone));
        };
        // SAFETY: as the caller promises.
        let posted = unsafe { qp.post_recv(token.as_raw(), &mut sges) };
        posted.map_err(status::refusal)?;
        inner.receives.push_back(Receive { token, room });
        Ok(())
    }

    /// It has failed, for this cause unless for another before. True if that is news: who is told is told by the caller, outside of all locks.
    pub(super) fn fail(self: &Arc<Self>, inner: &mut Inner, cause: JobError) -> bool {
        if matches!(inner.state, EndpointState::Error(_)) || inner.retired {
            return false;
        }
        inner.state = EndpointState::Error(cause);
        self.core.failed(self);
        true
    }

    /// It has failed.
    pub(super) fn fail_now(self: &Arc<Self>, cause: JobError) {
        let tell = self.fail(&mut self.inner(), cause);
        if tell {
            self.tell();
        }
    }

    /// What a completion says of it. True if somebody shall be told.
    #[inline(always)]
    pub(super) fn completed(self: &Arc<Self>, wc: &Wc, give: impl FnOnce(Completion)) -> bool {
        let inner = &mut *self.inner();
        if wc.wr_id == super::wr::UNNAMED {
            return self.probed(inner, wc);
        }
        let token = Token::from_raw(wc.wr_id);
        if token.table() != 0 {
            return self.received(inner, token, wc, give);
        }
        let Some(job) = inner.sends.done(token) else {
            return false;
        };
        self.core.context.jobs.fetch_add(1, Relaxed);
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return self.failed(inner, Failed::Job(job.verb, job.len), token, wc, give);
        }
        inner.probes = 0;
        let answer = match job.verb {
            Verb::CompareSwap { .. } | Verb::FetchAdd(_) => self.core.answers.get(token.index()),
            // `byte_len` is not valid for all.
            _ => job.len as u64,
        };
        give(Completion::new(token, Ok(answer)));
        if inner.state != EndpointState::Connected {
            return false;
        }
        // SAFETY: Jobs that wait were submitted, and are not over.
        match unsafe { self.post(inner) } {
            Ok(()) => false,
            Err(refused) => self.fail_of(inner, refused.at, status::refusal(refused.errno)),
        }
    }

    /// It has failed, by one of its Jobs.
    fn fail_of(self: &Arc<Self>, inner: &mut Inner, at: usize, cause: JobError) -> bool {
        let news = self.fail(inner, cause);
        if news {
            inner.culprit = inner.sends.token(at);
        }
        news
    }

    fn received(
        self: &Arc<Self>,
        inner: &mut Inner,
        token: Token,
        wc: &Wc,
        give: impl FnOnce(Completion),
    ) -> bool {
        if inner.receives.front().is_none_or(|it| it.token != token) {
            return false;
        }
        let Some(Receive { room, .. }) = inner.receives.pop_front() else {
            return false;
        };
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return self.failed(inner, Failed::Receive(room), token, wc, give);
        }
        let with_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        let opcode = match (wc.opcode, with_imm) {
            (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, _) => RecvOpcode::WriteImm,
            (_, true) => RecvOpcode::SendImm,
            (_, false) => RecvOpcode::Send,
        };
        let len = wc.byte_len as usize;
        let len = match opcode {
            RecvOpcode::WriteImm => len,
            // What the driver says is checked: no more than there is room for is believed to be there.
            _ => len.min(room),
        };
        let immediate = if with_imm {
            u32::from_be(wc.imm_data)
        } else {
            0
        };
        give(Completion::received(token, opcode, len, immediate));
        false
    }

    #[cold]
    fn failed(
        self: &Arc<Self>,
        inner: &mut Inner,
        what: Failed,
        token: Token,
        wc: &Wc,
        give: impl FnOnce(Completion),
    ) -> bool {
        let cause = status::cause(what, wc.status, wc.vendor_err, &self.patience);
        // A receive fails itself if the message is too long for it; all else is the connection's failure.
        let own = match what {
            Failed::Receive(_) => {
                cause.is_some_and(|cause| cause.reason() == Reason::ReceiveExceeded)
            }
            _ => true,
        };
        let news = self.fail(inner, cause.unwrap_or(JobError::of(Reason::PeerFailed)));
        let result = match (inner.state, cause) {
            (EndpointState::Error(first), Some(cause)) if news && own && first == cause => cause,
            (EndpointState::Error(first), _) => JobError::flushed(first),
            _ => JobError::flushed(JobError::of(Reason::Reset)),
        };
        if !(inner.retired && token.table() != 0) {
            give(Completion::new(token, Err(result)));
        }
        news
    }

    #[cold]
    fn probed(self: &Arc<Self>, inner: &mut Inner, wc: &Wc) -> bool {
        if wc.status == ibv_wc_status::IBV_WC_SUCCESS {
            inner.probes = 0;
            return false;
        }
        match status::cause(Failed::Probe, wc.status, wc.vendor_err, &self.patience) {
            Some(cause) => self.fail(inner, cause),
            None => self.fail(inner, JobError::of(Reason::PeerFailed)),
        }
    }

    /// Takes everything from the adapter, and ends what is left; false if in doubt. The caller has the lock under which completions are polled,
    /// and has polled all.
    pub(super) fn end(&self, inner: &mut Inner) -> bool {
        live::remove(&inner.origin);
        if let Some(qp) = inner.qp.take()
            && !qp.quiesce()
        {
            // The memory is kept: of the Jobs, of the receives, and of the answers.
            std::mem::forget(Arc::clone(&self.core));
            inner.sends.unpost();
            while inner.sends.pop().is_some() {}
            inner.receives.clear();
            inner.doubt = true;
        }
        if inner.doubt {
            return false;
        }
        let cause = match inner.state {
            EndpointState::Error(cause) => cause,
            _ => JobError::of(Reason::Reset),
        };
        let flushed = JobError::flushed(cause);
        inner.sends.unpost();
        let culprit = inner.culprit.take();
        while let Some((token, _)) = inner.sends.pop() {
            let error = if culprit == Some(token) {
                cause
            } else {
                flushed
            };
            self.core.finish(Completion::new(token, Err(error)));
        }
        for Receive { token, .. } in inner.receives.drain(..) {
            if !inner.retired {
                self.core.finish(Completion::new(token, Err(flushed)));
            }
        }
        inner.peer = None;
        inner.probes = 0;
        true
    }

    /// Back to Init. As for `end`.
    pub(super) fn renew(&self, inner: &mut Inner) {
        if !self.end(inner) || inner.retired {
            return;
        }
        inner.origin = Origin::new();
        inner.psn = random_psn();
        if let Err(error) = self.begin(inner) {
            tracing::error!(%error, "no queue pair after a reset");
            let cause = match self.core.context.is_dead() {
                true => JobError::of(Reason::DeviceGone),
                false => JobError::device(error.kind(), 0),
            };
            inner.state = EndpointState::Error(cause);
        }
    }

    /// The handle is gone. As for `end`.
    pub(super) fn retire(&self) -> bool {
        let inner = &mut *self.inner();
        inner.retired = true;
        let ended = self.end(inner);
        inner.state = EndpointState::Error(JobError::of(Reason::Reset));
        ended
    }

    /// Looks at the time, for the watcher; whether there is more to look at.
    pub(super) fn tick(self: &Arc<Self>, now: Instant) -> Option<std::time::Duration> {
        let mut inner = self.inner();
        if inner.state != EndpointState::Connected {
            return None;
        }
        let front = inner
            .sends
            .front()
            .map(|(token, job)| (token, job.verb, job.len));
        let look = inner.watch.look(now, front, self.config.rnr_timeout);
        if let Some(waited) = look.no_receive {
            let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            let tell = self.fail_of(
                &mut inner,
                0,
                JobError::endpoint(Reason::NoReceive, millis, 0),
            );
            drop(inner);
            if tell {
                self.tell();
            }
            return None;
        }
        let ours = inner.peer.is_some_and(|peer| !peer.origin.is_foreign());
        if look.idle && ours && inner.probes < PROBES {
            self.probe(&mut inner);
        }
        Some(look.again)
    }

    /// Asks the peer's adapter whether its queue pair is there: nothing else tells who only waits.
    fn probe(&self, inner: &mut Inner) {
        let Some(qp) = &inner.qp else {
            return;
        };
        let mut chain = Chain::new();
        // The last one before the places are all taken says when they are free again.
        chain.push_probe(inner.probes + 1 == PROBES);
        // SAFETY: it names no memory.
        if unsafe { qp.post_send(&mut chain) }.is_ok() {
            inner.probes += 1;
        }
    }
}

/// Completions of an endpoint that may wait at once, beside those of Jobs, which the queue's depth counts.
fn promised(config: &EndpointConfig) -> u32 {
    config.recv_queue_size + PROBES
}

impl Drop for Pair {
    fn drop(&mut self) {
        // `qp` holds the completion queue, and goes after this.
        self.core.cq.release(promised(&self.config));
        let inner = self.inner.get_mut();
        let inner = inner.unwrap_or_else(std::sync::PoisonError::into_inner);
        live::remove(&inner.origin);
    }
}
