//! Posts an endpoint's Jobs, receives and probes to the adapter.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::sync::Arc;

use super::super::adapter::PROBES;
use super::super::transport::{Chain, PostFailure, Qp, RecvChain, Remote, Work, status};
use super::rc::{Posted, RcConnection, RcInner};
use crate::device::{Access, EndpointState, Job, RdmaJob, Receive, Submitted, Token, Verb};
use crate::error::{ErrorKind, JobError, Reason};

impl Work for RdmaJob {
    type Context = Remote;
    /// The operation, and the number of its bytes.
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
        let (answers, answers_lkey) = self.core.answers.addr_and_key();
        Remote {
            permitted: inner.peer.map_or(Access::empty(), |peer| peer.permissions),
            iwarp: self.core.context.traits.iwarp,
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
            // A queue pair that could not be destroyed may still write its answer to the word that
            // a new atomic operation would get.
            return Submitted::none(JobError::queue_broken());
        }
        let before = inner.sends.len();
        let (mut known, mut no_sink) = (jobs.len(), None);
        // SAFETY: as the caller promises.
        let new = unsafe { self.post_new(&mut inner, jobs) };
        let posted = new.unwrap_or_else(|| {
            // SAFETY: as the caller promises.
            no_sink = unsafe { self.push(&mut inner, jobs) }.err();
            known = inner.sends.len() - before;
            if inner.sinks.any_stuck {
                let (at, cut, errno) = (before, false, 0);
                return Err(PostFailure { at, cut, errno });
            }
            // SAFETY: as the caller promises.
            unsafe { self.post(&mut inner) }
        });
        let rest = Submitted::unsupported(&jobs[known..]);
        let refused_later = no_sink.or(rest.refused);
        let Err(refused) = posted else {
            return Submitted {
                accepted: known,
                refused: refused_later,
            };
        };
        let cause = status::refusal(refused.errno);
        if refused.at >= before && !refused.cut {
            // The adapter has seen none of these jobs, and the peer has not got their keys.
            let unseen = refused.at - before;
            inner.sinks.were_refused(&jobs[unseen..]);
            if !inner.sinks.any_stuck {
                inner.sends.truncate(refused.at);
                return Submitted {
                    accepted: unseen,
                    refused: Some(cause),
                };
            }
        }
        let tell = match inner.sinks.any_stuck {
            // The peer may write to the sink of a job that was not posted. So the jobs are
            // accepted, and end with the connection.
            true => self.fail(&mut inner, JobError::memory_kept()),
            // The refused job was accepted before and waited for an entry of the send queue, or the
            // adapter may have taken it.
            false => self.fail_of(&mut inner, refused.at, cause),
        };
        drop(inner);
        if tell {
            self.notify();
        }
        Submitted {
            accepted: known,
            refused: refused_later,
        }
    }

    /// Adds Jobs to the line, up to the first that is not an RDMA operation, or whose sink cannot
    /// be registered.
    ///
    /// # Safety
    ///
    /// As for `Submit::submit`.
    #[inline(always)]
    unsafe fn push(&self, inner: &mut RcInner, jobs: &[(Token, Job<'_>)]) -> Result<(), JobError> {
        for &(token, job) in jobs {
            let Job::Rdma(&job) = job else { break };
            let job = match self.core.context.traits.iwarp && job.verb == Verb::Read {
                // SAFETY: as the caller promises, until the Job has completed.
                true => unsafe { inner.sinks.add(&self.core.context, token, &job) }?,
                false => job,
            };
            inner.sends.push(token, job);
        }
        Ok(())
    }

    /// Posts Jobs from the slice of the caller, if no other Job waits, and stores only what their
    /// completions need. Returns `None` if the Jobs must go through the line.
    ///
    /// # Safety
    ///
    /// As for `Submit::submit`.
    #[inline(always)]
    unsafe fn post_new<'a>(
        &self,
        inner: &mut RcInner,
        jobs: &[(Token, Job<'a>)],
    ) -> Option<Result<(), PostFailure>> {
        let qp = inner.qp.as_ref().filter(|_| !inner.waits)?;
        let remote = self.remote(inner, qp);
        // A read over iWARP needs a sink: registered memory to which the peer writes.
        let at_once = |job: &RdmaJob| !(remote.iwarp && job.verb == Verb::Read);
        let is_new = |&(token, job): &(Token, Job<'a>)| match job {
            Job::Rdma(job) if at_once(job) => Some((token, job)),
            _ => None,
        };
        if let [job] = jobs {
            let (token, job) = is_new(job)?;
            // SAFETY: as the caller promises.
            return unsafe { inner.sends.post_one(qp, token, job, &remote) };
        }
        let new = jobs.iter().map_while(is_new);
        // SAFETY: as the caller promises.
        unsafe { inner.sends.post_list(qp, new, jobs.len(), &remote) }
    }

    /// # Safety
    ///
    /// The memory of all Jobs that wait is valid, and leased: as for `Submit::submit`.
    #[inline(always)]
    pub(in super::super) unsafe fn post(&self, inner: &mut RcInner) -> Result<(), PostFailure> {
        let Some(qp) = inner.qp.as_ref().filter(|_| !inner.waits) else {
            return Ok(());
        };
        let remote = self.remote(inner, qp);
        // SAFETY: as the caller promises.
        unsafe { inner.sends.post(qp, &remote) }
    }

    /// Posts receives, in lists that are as long as possible.
    ///
    /// # Safety
    ///
    /// As for `Endpoint::post_recvs`.
    pub(in super::super) unsafe fn post_recvs(self: &Arc<Self>, receives: &[Receive]) -> Submitted {
        let mut inner = self.inner();
        let (mut accepted, mut refused, mut tell) = (0, None, false);
        while accepted < receives.len() && refused.is_none() {
            let rest = &receives[accepted..];
            // SAFETY: as the caller promises.
            let posted = unsafe { self.post_list(&mut inner, rest, &mut tell) };
            (accepted, refused) = (accepted + posted.accepted, posted.refused);
        }
        drop(inner);
        if tell {
            self.notify();
        }
        Submitted { accepted, refused }
    }

    /// Posts the first list of `receives`. Sets `tell` if the caller must notify the application.
    ///
    /// # Safety
    ///
    /// As for `Endpoint::post_recvs`.
    #[inline(always)]
    unsafe fn post_list(
        self: &Arc<Self>,
        inner: &mut RcInner,
        receives: &[Receive],
        tell: &mut bool,
    ) -> Submitted {
        if let EndpointState::Error(cause) = inner.state {
            return Submitted::none(JobError::flushed(cause));
        }
        let Some(qp) = &inner.qp else {
            return Submitted::none(JobError::of(Reason::DeviceGone));
        };
        let (mut chain, mut refused) = (RecvChain::new(), None);
        for receive in receives {
            if !chain.has_capacity() {
                break;
            }
            if !chain.push(receive, self.core.context.traits.iwarp) {
                refused = Some(JobError::device(ErrorKind::InvalidValue, 0));
                break;
            }
        }
        let mut accepted = chain.len();
        if accepted > 0
            // SAFETY: as the caller promises.
            && let Err((taken, errno)) = unsafe { qp.post_recvs(&mut chain) }
        {
            let cause = status::refusal(errno);
            match taken {
                Some(taken) => (accepted, refused) = (taken, Some(cause)),
                // The adapter may have taken any of them, so that all end with the connection.
                None => *tell |= self.fail(inner, cause),
            }
        }
        for &Receive { token, len, .. } in &receives[..accepted] {
            inner.receives.push_back(Posted { token, len });
        }
        Submitted { accepted, refused }
    }

    /// Sends a probe, which asks the peer's adapter whether the peer's queue pair exists. A side
    /// that only waits cannot notice the peer's end otherwise.
    pub(in super::super) fn probe(&self, inner: &mut RcInner) {
        let Some(qp) = &inner.qp else {
            return;
        };
        let (mut chain, iwarp) = (Chain::new(), self.core.context.traits.iwarp);
        // The last probe before all entries are taken is signalled, since its completion frees
        // them. On iWARP every probe is signalled, since only the answer proves that the peer is
        // alive.
        let signaled = iwarp || inner.probes + 1 == PROBES;
        chain.push_probe(self.id(), signaled, iwarp);
        // SAFETY: the probe names no memory.
        if unsafe { qp.post_send(&mut chain) }.is_ok() {
            inner.probes += 1;
            if iwarp {
                inner.timeouts.asks();
            }
        }
    }
}
