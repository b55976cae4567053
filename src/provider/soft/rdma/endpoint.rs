//! The crate's handle to an endpoint.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrayvec::ArrayVec;

use super::super::fault::Fault;
use super::super::ports::Ports;
use super::connect::Role;
use super::remote::{self, Step};
use super::state::{EndpointInner, IDLE, Send, Shared};
use crate::device::{
    Access, Arrival, Dialling, Endpoint, EndpointConfig, EndpointState, Job, KeepAlive, RdmaJob,
    Receive, Segment, Segments, Submit, Submitted, Token, Verb,
};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::sync::discard;

/// In one of this number of one-sided operations, the endpoint checks whether the queue must be
/// polled.
const TURNS: u32 = 64;
/// The maximum number of slices of a message that is sent from the caller's memory.
const PIECES: usize = 16;

/// The crate's handle to an endpoint.
pub(in super::super) struct SoftEndpoint(Arc<Shared>);

impl SoftEndpoint {
    /// Opens an endpoint of this queue.
    pub(in super::super) fn open(
        ports: &Arc<Ports>,
        config: EndpointConfig,
    ) -> Result<SoftEndpoint> {
        let new = |number| Shared::new(Arc::clone(ports), number, config);
        ports.add(new).map(SoftEndpoint)
    }
}

// SAFETY: the duties of `device::contract`. A job is put into one queue, and taken from its front
// once, under one lock; its memory is touched under that lock. A job that is refused was not put.
// Inline jobs are done only while nothing is queued, and nothing of them is kept. No call blocks.
unsafe impl Submit for SoftEndpoint {
    #[inline]
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let Job::Rdma(job) = job else { return None };
        let shared = &*self.0;
        if job.len >= shared.faults.inline_below() {
            return None;
        }
        if job.verb.is_told() {
            // SAFETY: as the caller promises.
            return unsafe { shared.send_now(job) };
        }
        if job.remote.is_none() {
            return shared.ask_now();
        }
        let word = shared.open.word.load(Ordering::Acquire);
        let peer = [0, 1].map(|half: usize| shared.open.peer[half].load(Ordering::Relaxed));
        if word & IDLE == 0 || shared.has_missed_something() {
            return None;
        }
        let permitted = Access::from_bits_truncate(word as u32);
        // SAFETY: as the caller promises.
        let done = unsafe { remote::finish(job, permitted, &peer) }?;
        shared.inline_jobs.add_one();
        Some(Ok(done))
    }

    /// Sends the messages at the front of `jobs` under one lock, and notifies the peer once. The
    /// crate calls this only for messages.
    unsafe fn try_inline_all(
        &self,
        jobs: &[Job<'_>],
        outcomes: &mut [Result<u64, JobError>],
    ) -> usize {
        let shared = &*self.0;
        let below = shared.faults.inline_below();
        let mut inner = shared.inner();
        let mut finished = 0;
        for (job, place) in jobs.iter().zip(outcomes) {
            let Job::Rdma(job) = job else { break };
            if !job.verb.is_told() || job.len >= below {
                break;
            }
            // SAFETY: as the caller promises.
            let Some(outcome) = (unsafe { shared.publish_now(&mut inner, job) }) else {
                break;
            };
            *place = outcome;
            finished += 1;
            if outcome.is_err() {
                break;
            }
        }
        if finished > 0
            && let Some(connection) = &inner.connection
            && !connection.notify_message()
        {
            // The caller submits these jobs to the queue, where they fail.
            return 0;
        }
        finished
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let shared = &*self.0;
        let mut inner = shared.inner();
        let refused = match inner.state {
            EndpointState::Connected => None,
            EndpointState::Init => Some(JobError::of(Reason::NotConnected)),
            EndpointState::Error(cause) => Some(JobError::flushed(cause)),
        };
        let mut accepted = 0;
        let mut refused = refused.filter(|_| !jobs.is_empty());
        while refused.is_none() && accepted < jobs.len() {
            let (token, Job::Rdma(&job)) = jobs[accepted] else {
                refused = Some(JobError::device(ErrorKind::NotSupported, 0));
                break;
            };
            let fault = shared.faults.next();
            if fault == Fault::QueueFull {
                refused = Some(JobError::device(ErrorKind::Again, 0));
                break;
            }
            inner.sends.push_back(Send { token, job, fault });
            accepted += 1;
        }
        if accepted > 0 {
            shared.reopen(&inner);
            drop(inner);
            shared.ports.mark_ready(shared.number);
        }
        Submitted { accepted, refused }
    }
}

// SAFETY: the duties of `Endpoint`:
// 1. There is one lock. Jobs and receives are taken from the front, and completions wait in a
//    line. Inline jobs are done only while nothing is queued.
// 2. `fail`. 3. `end`, under the lock under which all memory is touched. 4. `pull`, under the same.
// 5. `Shared::connect`: a side that listens returns before it asks any process, and a ticket that
//    is dialled names the socket of its own instance.
unsafe impl Endpoint for SoftEndpoint {
    fn state(&self) -> EndpointState {
        self.0.inner().state
    }

    fn peer_permissions(&self) -> Access {
        let peer = self.0.inner().expected;
        peer.map_or(Access::empty(), |peer| peer.permissions)
    }

    fn export(&self) -> Result<Vec<u8>> {
        self.0.export()
    }

    fn connect(&self, blob: &[u8], deadline: Instant) -> Result<()> {
        self.0.meet(blob, Role::ByInstance, deadline)
    }

    fn listen(&self, blob: &[u8]) -> Result<()> {
        self.0.meet(blob, Role::Listens, Instant::now())
    }

    fn dial(&self, blob: &[u8], deadline: Instant) -> Result<()> {
        self.0.meet(blob, Role::Dials, deadline)
    }

    fn begin_dial(&self, blob: &[u8]) -> Option<Box<dyn Dialling>> {
        let asked = self.0.begin_dial(blob)?;
        Some(Box::new(asked))
    }

    unsafe fn post_recvs(&self, receives: &[Receive]) -> Submitted {
        let shared = &*self.0;
        if shared.config.pooled_len.is_some() {
            return Submitted::none(JobError::of(Reason::ReceivesFromPool));
        }
        let mut inner = shared.inner();
        if let EndpointState::Error(cause) = inner.state {
            return Submitted::none(JobError::flushed(cause));
        }
        // No message is longer than 2^31 bytes, which fit into the 32 bits for the length in a
        // receive's word.
        let bounded = |receive: &Receive| Receive {
            len: receive.len.min(1 << 31),
            ..*receive
        };
        inner.posted.extend(receives.iter().map(bounded));
        if let Some(connection) = &mut inner.connection {
            for receive in receives.iter().map(bounded) {
                connection.post(receive.len);
            }
            connection.notify_freed();
        }
        Submitted {
            accepted: receives.len(),
            refused: None,
        }
    }

    fn has_message(&self) -> bool {
        let mut inner = self.0.inner();
        let connection = inner.connection.as_mut();
        connection.is_some_and(|connection| connection.has_message())
    }

    unsafe fn take_message(
        &self,
        dst: &Segments,
        capacity: usize,
    ) -> Result<Option<(Arrival, usize)>, JobError> {
        // SAFETY: as the caller promises.
        let taken = unsafe { self.0.pull(dst, capacity) };
        self.0.notify();
        taken
    }

    fn send_bytes(&self, pieces: &[&[u8]]) -> Option<Result<u64, JobError>> {
        let mut list = ArrayVec::<Segment, PIECES>::new();
        for piece in pieces {
            let (addr, len) = (NonNull::from(*piece).cast(), piece.len());
            // SAFETY: this call alone uses the Segment. It borrows the bytes, and only reads them.
            list.try_push(unsafe { Segment::new(addr, len, 0) }).ok()?;
        }
        // SAFETY: the list is not changed, and lives longer than this call, which keeps nothing.
        let local = unsafe { Segments::list(&list) };
        let len = local.bytes();
        if len >= self.0.faults.inline_below() {
            return None;
        }
        let job = RdmaJob {
            verb: Verb::Send(None),
            local,
            remote: None,
            len,
        };
        // SAFETY: the pieces are valid during the call, are borrowed so that no thread writes them,
        // and have `len` bytes together.
        unsafe { self.0.send_now(&job) }
    }

    fn reset(&self) {
        let mut inner = self.0.inner();
        // The new ticket is published before the old one is dropped. Otherwise the old ticket might
        // be the last holder of the fabric; then the process would get another instance, and blobs
        // with the old instance would name a process that has gone.
        let fresh = inner.published.as_ref().and_then(|_| self.0.publish().ok());
        let kept = self.0.end(&mut inner);
        inner.published = fresh;
        drop(inner);
        drop(kept);
        self.0.notify();
    }

    unsafe fn retire(&self, keep: KeepAlive) {
        self.0.retire();
        discard(keep);
    }
}

impl Shared {
    /// Returns true if the queue has something to do. Inline operations do not poll the queue, so a
    /// task that does nothing else would never notice that its peer has left. So this polls in one
    /// of [`TURNS`] operations.
    #[inline]
    fn has_missed_something(&self) -> bool {
        let turn = self.open.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.open.turn.store(turn, Ordering::Relaxed);
        turn.is_multiple_of(TURNS) && self.ports.ready()
    }

    /// Sends a message inline, if nothing else is queued.
    ///
    /// # Safety
    ///
    /// As for `try_inline`.
    unsafe fn send_now(&self, job: &RdmaJob) -> Option<Result<u64, JobError>> {
        let mut inner = self.inner();
        // SAFETY: as the caller promises.
        let outcome = unsafe { self.publish_now(&mut inner, job) };
        if let (Some(Ok(_)), Some(connection)) = (outcome, &inner.connection)
            && !connection.notify_message()
        {
            // The caller submits this job to the queue, where it fails after all earlier jobs.
            return None;
        }
        outcome
    }

    /// Sends a message inline, without notifying the peer. Returns `None` if the job must be
    /// queued.
    ///
    /// # Safety
    ///
    /// As for `try_inline`.
    #[inline(always)]
    unsafe fn publish_now(
        &self,
        inner: &mut EndpointInner,
        job: &RdmaJob,
    ) -> Option<Result<u64, JobError>> {
        if !inner.sends.is_empty() || inner.state != EndpointState::Connected {
            return None;
        }
        let connection = inner.connection.as_mut()?;
        if !connection.has_capacity(job) {
            return None;
        }
        let mut copied = 0;
        // SAFETY: as the caller promises.
        let step = unsafe { connection.step(job, &mut copied, usize::MAX) };
        match step {
            Ok(Step::Done(answer)) => {
                self.inline_jobs.add_one();
                Some(Ok(answer))
            }
            // The peer does not permit the operation, has taken back its memory, or has broken the
            // protocol.
            Err(cause) => {
                self.fail(inner, cause);
                Some(Err(cause))
            }
            // The peer is leaving, and has taken back its receives. Nothing was sent yet, so the
            // caller submits the job to the queue, which notices that the peer has ended.
            Ok(Step::Waits) if !connection.sending.is_amid_message() => None,
            // `has_capacity` has checked that everything fits, so the peer has taken back what it
            // had published. The caller submits the job to the queue, where it begins anew, and
            // fails.
            Ok(Step::More | Step::Waits) => {
                self.fail(inner, JobError::of(Reason::PeerNonsense));
                None
            }
        }
    }

    /// Answers a job that only asks whether the peer is connected, if no other job is queued.
    /// Otherwise, or if the peer has left, returns `None`: the caller submits the job to the queue,
    /// where it follows all earlier jobs.
    fn ask_now(&self) -> Option<Result<u64, JobError>> {
        let inner = self.inner();
        if !inner.sends.is_empty() || inner.state != EndpointState::Connected {
            return None;
        }
        match inner.connection.as_ref()?.ask() {
            Ok(Step::Done(answer)) => {
                self.inline_jobs.add_one();
                Some(Ok(answer))
            }
            _ => None,
        }
    }

    /// Takes the oldest message of an endpoint whose messages are pulled.
    ///
    /// # Safety
    ///
    /// As for `take_message`.
    unsafe fn pull(
        &self,
        dst: &Segments,
        capacity: usize,
    ) -> Result<Option<(Arrival, usize)>, JobError> {
        let mut inner = self.inner();
        let (Some(connection), Some(lent)) = (&mut inner.connection, self.config.pooled_len) else {
            return Ok(None);
        };
        // SAFETY: as the caller promises.
        let head = match unsafe { connection.pull(dst, capacity) } {
            Ok(None) => return Ok(None),
            Ok(Some(head)) => head,
            Err(_) => {
                let cause = JobError::of(Reason::PeerNonsense);
                self.fail(&mut inner, cause);
                return Err(cause);
            }
        };
        let receiving = &connection.receiving;
        let has_left =
            || connection.presence().is_err() && !receiving.has_more(&connection.messages);
        if receiving.has_overtaken() || has_left() {
            self.ports.mark_ready(self.number);
        }
        let len = head.len as usize;
        let too_small =
            |have: usize| JobError::new(Reason::ReceiveTooSmall, len as u64, have as u64);
        match head.arrival() {
            None => {
                let cause = too_small(lent);
                self.fail(&mut inner, cause);
                Err(cause)
            }
            Some(Arrival::Send | Arrival::SendImm(_)) if len > capacity => Err(too_small(capacity)),
            Some(arrival) => Ok(Some((arrival, len))),
        }
    }

    /// Ends the endpoint, since its Rdma is gone.
    pub(super) fn retire(&self) {
        let mut inner = self.inner();
        if inner.retired {
            return;
        }
        inner.retired = true;
        // No task waits for receives any more.
        inner.posted.clear();
        let kept = self.end(&mut inner);
        drop(inner);
        drop(kept);
        self.changed.store(false, Ordering::Relaxed);
    }

    /// Returns the blob with which the peer connects to this endpoint.
    fn export(self: &Arc<Self>) -> Result<Vec<u8>> {
        let mut inner = self.inner();
        if let EndpointState::Error(cause) = inner.state {
            let text = format!("it has failed ({cause}): reset it first");
            return Err(Error::new(ErrorKind::BadState, None, text));
        }
        Ok(self.published(&mut inner)?.blob().to_vec())
    }
}

impl Drop for SoftEndpoint {
    fn drop(&mut self) {
        self.0.retire();
    }
}
