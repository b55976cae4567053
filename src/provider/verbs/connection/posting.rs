//! How an endpoint's Jobs, receives and probes are given to the adapter.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::super::adapter::{LIST, PROBES, lkey};
use super::super::ffi::ibv_sge;
use super::super::transport::{Chain, Qp, Refused, Remote, Work, fill_request, status};
use super::rc::{Posted, RcConnection, RcInner};
use crate::device::{Access, EndpointState, Job, RdmaJob, Receive, Submitted, Token, Verb};
use crate::error::{ErrorKind, JobError, Reason};

impl Work for RdmaJob {
    type Context = Remote;
    /// What is done, and how many bytes.
    type Posted = (Verb, usize);

    #[inline(always)]
    fn posted(&self) -> (Verb, usize) {
        (self.verb, self.len)
    }

    #[inline(always)]
    fn most(&self) -> usize {
        1
    }

    #[inline(always)]
    fn push(&self, token: Token, chain: &mut Chain, context: &Remote) {
        chain.push_remote(token, self, context);
    }
}

fn is_atomic(verb: Verb) -> bool {
    matches!(verb, Verb::CompareSwap { .. } | Verb::FetchAdd(_))
}

impl RcConnection {
    fn remote(&self, inner: &RcInner, qp: &Qp) -> Remote {
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
    /// As for `Submit::submit`.
    #[inline(always)]
    pub(in super::super) unsafe fn submit(
        self: &Arc<Self>,
        jobs: &[(Token, Job<'_>)],
    ) -> Submitted {
        let mut inner = self.inner();
        match inner.state {
            EndpointState::Connected => {}
            _ if jobs.is_empty() => {}
            EndpointState::Init => return Submitted::none(JobError::of(Reason::NotConnected)),
            EndpointState::Error(cause) => return Submitted::none(JobError::flushed(cause)),
        }
        let is_atomic = |&(_, job): &(Token, Job<'_>)| match job {
            Job::Rdma(job) => is_atomic(job.verb),
            _ => false,
        };
        if self.core.answers_are_kept() && jobs.iter().any(is_atomic) {
            // A queue pair that stays may yet write an answer where theirs would go.
            return Submitted::none(JobError::queue_broken());
        }
        let before = inner.sends.len();
        let mut known = 1;
        // SAFETY: as the caller promises.
        let one = unsafe { self.post_one(&mut inner, jobs) };
        let posted = one.unwrap_or_else(|| {
            for &(token, job) in jobs {
                let Job::Rdma(&job) = job else { break };
                inner.sends.push(token, job);
            }
            known = inner.sends.len() - before;
            // SAFETY: as the caller promises.
            unsafe { self.post(&mut inner) }
        });
        let Err(refused) = posted else {
            return Submitted {
                accepted: known,
                ..Submitted::unsupported(&jobs[known..])
            };
        };
        let cause = status::refusal(refused.errno);
        if refused.at >= before && !refused.cut {
            // It, and those behind it, nobody has seen.
            inner.sends.truncate(refused.at);
            return Submitted {
                accepted: refused.at - before,
                refused: Some(cause),
            };
        }
        // One that was accepted before, and waited for its place; or one that the adapter may have
        // taken.
        let tell = self.fail_of(&mut inner, refused.at, cause);
        drop(inner);
        if tell {
            self.tell();
        }
        Submitted {
            accepted: known,
            ..Submitted::unsupported(&jobs[known..])
        }
    }

    /// Posts a Job that comes alone, if none waits: nothing of it is stored but what its completion
    /// needs.
    ///
    /// # Safety
    ///
    /// As for `Submit::submit`.
    #[inline(always)]
    unsafe fn post_one(
        &self,
        inner: &mut RcInner,
        jobs: &[(Token, Job<'_>)],
    ) -> Option<Result<(), Refused>> {
        let (&[(token, Job::Rdma(job))], Some(qp)) = (jobs, &inner.qp) else {
            return None;
        };
        let remote = self.remote(inner, qp);
        let request = |wr: &mut _, sges: &mut _| fill_request(wr, token, job, &remote, sges);
        // SAFETY: as the caller promises.
        unsafe { inner.sends.post_one(qp, token, job, request) }
    }

    /// # Safety
    ///
    /// The memory of all Jobs that wait is valid, and leased: as for `Submit::submit`.
    #[inline(always)]
    pub(in super::super) unsafe fn post(&self, inner: &mut RcInner) -> Result<(), Refused> {
        let Some(qp) = &inner.qp else {
            return Ok(());
        };
        let remote = self.remote(inner, qp);
        // SAFETY: as the caller promises.
        unsafe { inner.sends.post(qp, &remote) }
    }

    /// # Safety
    ///
    /// As for `Endpoint::post_recvs`.
    pub(in super::super) unsafe fn post_recvs(&self, receives: &[Receive]) -> Submitted {
        let mut inner = self.inner();
        for (accepted, receive) in receives.iter().enumerate() {
            // SAFETY: as the caller promises.
            if let Err(refused) = unsafe { post_recv(&mut inner, receive) } {
                let refused = Some(refused);
                return Submitted { accepted, refused };
            }
        }
        Submitted {
            accepted: receives.len(),
            refused: None,
        }
    }

    /// Asks the peer's adapter whether its queue pair is there: nothing else tells who only waits.
    pub(in super::super) fn probe(&self, inner: &mut RcInner) {
        let Some(qp) = &inner.qp else {
            return;
        };
        let mut chain = Chain::new();
        // The last one before the places are all taken says when they are free again.
        chain.push_probe(self.id(), inner.probes + 1 == PROBES);
        // SAFETY: it names no memory.
        if unsafe { qp.post_send(&mut chain) }.is_ok() {
            inner.probes += 1;
        }
    }
}

/// # Safety
///
/// As for `Endpoint::post_recvs`.
unsafe fn post_recv(inner: &mut RcInner, receive: &Receive) -> Result<(), JobError> {
    let &Receive { token, dst, room } = receive;
    if let EndpointState::Error(cause) = inner.state {
        return Err(JobError::flushed(cause));
    }
    let mut sges = ArrayVec::<ibv_sge, LIST>::new();
    // No message is longer.
    let mut left = room.min(1 << 31);
    for segment in dst.as_slice().iter().filter(|segment| segment.len() > 0) {
        let part = segment.len().min(left);
        if part == 0 {
            break;
        }
        let sge = ibv_sge {
            addr: segment.addr().addr().get() as u64,
            length: part as u32,
            lkey: lkey(segment.key()),
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
    inner.receives.push_back(Posted { token, room });
    Ok(())
}
