//! The half of an adapter that belongs to one WorkQ, as the layers above see it.
#![expect(unsafe_code, reason = "does jobs whose memory was lent")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::super::adapter::Context;
use super::super::connection::{EventTargets, RcConnection};
use super::computed::INLINE;
use super::endpoint::VerbsEndpoint;
use super::shared::Shared;
use crate::device::{
    Armed, Completion, CpuJob, CpuState, Endpoint, EndpointConfig, Job, KeepAlive, Queue,
    QueueConfig, Submit, Submitted, Token,
};
use crate::error::{Error, JobError, Result as SetUp};
use crate::sync::{discard, lock};

pub(in super::super) struct VerbsQueue(pub(in super::super) Arc<Shared>);

impl VerbsQueue {
    pub(in super::super) fn open(
        context: &Arc<Context>,
        watched: &Arc<EventTargets>,
        config: &QueueConfig,
    ) -> SetUp<VerbsQueue> {
        Shared::open(context, watched, config).map(VerbsQueue)
    }
}

// SAFETY: the duties of `device::contract`:
// 1. The last request of a Job is signalled or flushed, and `Sends::done` takes it once. What is
//    left when a queue pair was destroyed is finished once.
// 2. Requests end in order. Before a queue pair is destroyed, no request of it is finished that did
//    not complete.
// 3. `bad_wr`: a Job that was posted in part is accepted, and fails.
// 4. A job that only the CPU computes is done inline, and nothing of it is kept.
// 5. `arm` calls `ibv_req_notify_cq`, and polls afterwards. Completions from elsewhere signal if a
//    thread armed (`Core::request_reap`).
// 6. `end`.
// 7. Only control calls of libibverbs may take long. What the driver reports is checked.
unsafe impl Submit for VerbsQueue {
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let job = CpuJob::of(job)?;
        // SAFETY: as the caller promises.
        let outcome = unsafe { CpuState::now(&job, INLINE) }?;
        self.0.core.context.jobs.fetch_add(1, SeqCst);
        Some(outcome)
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let mut accepted = 0;
        while let Some((token, job)) = jobs.get(accepted) {
            if let Some(job) = CpuJob::of(*job) {
                self.0.computed.submit(*token, job);
                // Only a reaper does the job, so that a thread which armed must poll.
                self.0.core.raise();
                accepted += 1;
                continue;
            }
            let rest = &jobs[accepted..];
            let copies = rest.iter().map_while(|(token, job)| match job {
                Job::Copy(job) => Some((*token, **job)),
                _ => None,
            });
            if copies.clone().next().is_none() {
                return Submitted {
                    accepted,
                    ..Submitted::unsupported(rest)
                };
            }
            // SAFETY: as the caller promises.
            let submitted = unsafe { self.0.copy(copies) };
            accepted += submitted.accepted;
            if submitted.refused.is_some() {
                return Submitted {
                    accepted,
                    ..submitted
                };
            }
        }
        Submitted {
            accepted,
            refused: None,
        }
    }
}

// SAFETY: as above.
unsafe impl Queue for VerbsQueue {
    fn open_endpoint(&self, config: EndpointConfig) -> SetUp<Arc<dyn Endpoint>> {
        if let Some(why) = self.0.refuses() {
            let text = format!("{why}: attach it to another WorkQ");
            return Err(Error::new(why.kind(), None, text));
        }
        let conn = RcConnection::open(&self.0.core, &self.0.failed, config, self.0.depth)?;
        self.0.watched.add_conn(&conn);
        self.0.enter(&conn);
        let queue = Arc::clone(&self.0);
        Ok(Arc::new(VerbsEndpoint::new(queue, conn)))
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.core.cq.fd())
    }

    fn clear(&self) {
        self.0.core.cq.read_events();
    }

    fn ready(&self) -> bool {
        self.0.ready()
    }

    fn polls_in_reap(&self) -> bool {
        true
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        // SAFETY: as the caller promises.
        unsafe { self.reap_within(out, 1) }
    }

    unsafe fn reap_within(&self, out: &mut [Completion], looks: usize) -> usize {
        let mut poll = lock(&self.0.poll);
        let reaped = self.0.reap(&mut poll, out, looks);
        Shared::unlock(poll);
        reaped
    }

    fn arm(&self) -> Armed {
        self.0.arm()
    }

    unsafe fn retire(&self, keep: KeepAlive, _outstanding: usize) {
        match self.0.end() {
            true => discard(keep),
            false => std::mem::forget(keep),
        }
    }
}

impl Drop for VerbsQueue {
    /// Ends the queue, if no WorkQ has retired it.
    fn drop(&mut self) {
        self.0.end();
    }
}
