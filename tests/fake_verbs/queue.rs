//! One WorkQ's half of an adapter: a completion queue with its channel, and a loopback queue pair for Dma.
//!
//! Credits count work requests: a Job takes as many as it is made of, and its completion gives them back. A completion
//! queue has room for every request, since all complete when they are flushed. The man pages' order holds: ask for
//! notification, then empty the queue (`ibv_get_cq_event(3)`).

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_doca::device::{Armed, Completion, Job, Keep, Queue, QueueConfig, Submitted, Token};
use tokio_doca::{Error, ErrorKind, JobError, Result};

use super::provider::Context;
use super::table::*;
use super::wr::{CHAINED, Chain, REQUESTS, failure, refusal};

/// Completions that are polled at once.
const BATCH: usize = 16;
/// Asked so often without a `clear`, the channel is read: a WorkQ that polls never does, and events would pile up.
const UNREAD: u32 = 64;

pub(super) struct VerbsQueue {
    context: Arc<Context>,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    credits: AtomicU32,
    jobs: Box<[Posted]>,
    /// The first failure: what is flushed behind it says so too.
    cause: OnceLock<JobError>,
    asked: AtomicU32,
    destroyed: AtomicBool,
}

/// What a completion does not say.
#[derive(Default)]
struct Posted {
    requests: AtomicU32,
    len: AtomicU64,
}

// SAFETY: libibverbs may be called from any thread on any object; these are destroyed once, by `retire` or by drop.
unsafe impl Send for VerbsQueue {}
// SAFETY: as above.
unsafe impl Sync for VerbsQueue {}

impl VerbsQueue {
    pub(super) fn open(context: &Arc<Context>, config: &QueueConfig) -> Result<VerbsQueue> {
        let table = context.table;
        let requests = context.options.send_queue.max(REQUESTS as u32);
        // SAFETY: no arguments.
        let channel = unsafe { (table.create_comp_channel)() };
        // SAFETY: the channel is destroyed after the queue.
        let cq = unsafe { (table.create_cq)(requests as i32, ptr::null_mut(), channel) };
        let mut attr = ibv_qp_init_attr {
            send_cq: cq,
            max_send_wr: requests,
            max_send_sge: context.options.max_sge,
            sq_sig_all: 0,
        };
        // SAFETY: the domain is the context's, and the completion queue is destroyed after the queue pair.
        let qp = unsafe { (table.create_qp)(context.pd, &mut attr) };
        if channel.is_null() || cq.is_null() || qp.is_null() {
            let text = "the adapter has no queue left";
            return Err(Error::new(ErrorKind::NoMemory, "open_queue", text));
        }
        Ok(VerbsQueue {
            context: Arc::clone(context),
            channel,
            cq,
            qp,
            credits: AtomicU32::new(requests),
            jobs: (0..config.depth).map(|_| Posted::default()).collect(),
            cause: OnceLock::new(),
            asked: AtomicU32::new(0),
            destroyed: AtomicBool::new(false),
        })
    }

    fn take_credits(&self, count: u32) -> bool {
        let take = |credits: u32| credits.checked_sub(count);
        self.credits
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, take)
            .is_ok()
    }

    fn give_credits(&self, count: u32) {
        self.credits.fetch_add(count, Ordering::AcqRel);
    }

    /// Posts whole Jobs. How many were accepted, and why the next was not.
    fn post(&self, chain: &mut Chain, jobs: &[(Token, Job)]) -> (usize, Option<JobError>) {
        let mut bad = ptr::null_mut();
        let first = chain.link();
        // SAFETY: a list in `chain`, whose Segments the caller of `submit` lends; the queue pair is alive.
        let errno = unsafe { (self.context.table.post_send)(self.qp, first, &mut bad) };
        if errno == 0 {
            return (jobs.len(), None);
        }
        let mut posted = (bad.addr() - first.addr()) as u32 / size_of::<ibv_send_wr>() as u32;
        for (accepted, (token, _)) in jobs.iter().enumerate() {
            let of_job = self.jobs[token.index() as usize]
                .requests
                .load(Ordering::Relaxed);
            if posted >= of_job {
                posted -= of_job;
                continue;
            }
            // Cut in two: the adapter has seen it, so it is accepted, and must complete.
            let half = posted > 0;
            let refused = accepted + usize::from(half);
            for (token, _) in &jobs[refused..] {
                self.give_credits(
                    self.jobs[token.index() as usize]
                        .requests
                        .load(Ordering::Relaxed),
                );
            }
            if half {
                self.fail_half_posted(*token);
            }
            return (refused, Some(refusal(errno)));
        }
        (jobs.len(), None)
    }

    /// Ends a Job of which only some requests were posted: the queue pair is put into the error state, and one more
    /// request, which is flushed behind them, completes it.
    fn fail_half_posted(&self, token: Token) {
        let _ = self.cause.set(JobError::device(ErrorKind::IoFailed, 0));
        // SAFETY: the queue pair is alive.
        unsafe { (self.context.table.modify_qp_to_err)(self.qp) };
        let mut last = Chain::new().wrs[0];
        (last.wr_id, last.send_flags) = (token.as_raw(), IBV_SEND_SIGNALED);
        let mut bad = ptr::null_mut();
        // SAFETY: as above; it has no Segments. There is room: the Job has one credit more than it has used.
        let errno = unsafe { (self.context.table.post_send)(self.qp, &mut last, &mut bad) };
        assert_eq!(
            errno, 0,
            "a queue pair in the error state takes requests, and flushes them"
        );
    }

    fn completion(&self, wc: &ibv_wc) -> Option<Completion> {
        let failed = (wc.status != IBV_WC_SUCCESS).then(|| {
            let own = failure(wc.status, wc.vendor_err);
            *self.cause.get_or_init(|| own)
        });
        // A request in the middle of a Job failed: its last one follows, flushed.
        if wc.wr_id == CHAINED {
            return None;
        }
        let token = Token::from_raw(wc.wr_id);
        // What an adapter says is checked.
        let job = self.jobs.get(token.index() as usize)?;
        self.give_credits(job.requests.load(Ordering::Relaxed));
        self.context.jobs.fetch_add(1, Ordering::Relaxed);
        // `byte_len` is not valid for a write.
        let result = failed.map_or_else(|| Ok(job.len.load(Ordering::Relaxed)), Err);
        Some(Completion::new(token, result))
    }

    /// Reads the channel until there is nothing more, and acknowledges in one call.
    fn read_channel(&self) {
        let mut events = 0;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive.
        while unsafe { (self.context.table.get_cq_event)(self.channel, &mut cq, &mut context) } == 0
        {
            events += 1;
        }
        if events > 0 {
            // SAFETY: the channel has one completion queue, which is alive.
            unsafe { (self.context.table.ack_cq_events)(self.cq, events) };
        }
        self.asked.store(0, Ordering::Relaxed);
    }

    /// False: something could not be destroyed, and may be at work.
    fn destroy(&self) -> bool {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return true;
        }
        let table = self.context.table;
        // SAFETY: nobody uses the queue any more. When this has returned no memory is touched.
        if unsafe { (table.destroy_qp)(self.qp) } != 0 {
            return false;
        }
        // An event that nobody read blocks `ibv_destroy_cq` once it was read, so none may be read and not acknowledged.
        self.read_channel();
        // SAFETY: its queue pair is gone.
        let cq = unsafe { (table.destroy_cq)(self.cq) };
        // SAFETY: its completion queue is gone.
        cq == 0 && unsafe { (table.destroy_comp_channel)(self.channel) } == 0
    }
}

// SAFETY: the duties:
// 1. The last request of a Job is signalled, or flushed: it completes once, and alone carries the Token.
// 2. Requests of a queue pair end in order. 3. `bad_wr`; a Job that was cut in two is accepted, and fails.
// 4. Nothing is answered inline. 5. `ibv_req_notify_cq`, and an answer that makes the caller look. 6. `destroy`.
// 7. Nothing blocks; indices are checked.
unsafe impl Queue for VerbsQueue {
    unsafe fn submit(&self, jobs: &[(Token, Job)]) -> Submitted {
        let mut accepted = 0;
        while accepted < jobs.len() {
            if let Some(&cause) = self.cause.get() {
                return Submitted {
                    accepted,
                    refused: Some(cause),
                };
            }
            let mut chain = Chain::new();
            let (mut count, mut full) = (0, false);
            for (token, job) in &jobs[accepted..] {
                let mark = chain.mark();
                if !chain.has_room() {
                    break;
                }
                let max_sge = self.context.options.max_sge as usize;
                chain.push(token.as_raw(), job, max_sge);
                let requests = (chain.len() - mark.0) as u32;
                full = !self.take_credits(requests);
                if full {
                    chain.truncate(mark);
                    break;
                }
                let Job::Copy { len, .. } = job else { break };
                let posted = &self.jobs[token.index() as usize];
                posted.requests.store(requests, Ordering::Relaxed);
                posted.len.store(*len as u64, Ordering::Relaxed);
                count += 1;
            }
            if count > 0 {
                let (posted, refused) = self.post(&mut chain, &jobs[accepted..accepted + count]);
                accepted += posted;
                if refused.is_some() && accepted < jobs.len() {
                    return Submitted { accepted, refused };
                }
            }
            if full {
                let refused = Some(JobError::device(ErrorKind::Again, 0));
                return Submitted { accepted, refused };
            }
        }
        Submitted {
            accepted,
            refused: None,
        }
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let nothing = ibv_wc {
            wr_id: CHAINED,
            status: 0,
            opcode: 0,
            vendor_err: 0,
            byte_len: 0,
            qp_num: 0,
        };
        let mut wcs = [nothing; BATCH];
        let mut reaped = 0;
        while reaped < out.len() {
            let ask = BATCH.min(out.len() - reaped);
            // SAFETY: room for `ask`; the completion queue is alive.
            let polled =
                unsafe { (self.context.table.poll_cq)(self.cq, ask as i32, wcs.as_mut_ptr()) };
            let polled = usize::try_from(polled)
                .expect("the completion queue was overrun")
                .min(ask);
            for completion in wcs[..polled].iter().filter_map(|wc| self.completion(wc)) {
                out[reaped] = completion;
                reaped += 1;
            }
            if polled < ask {
                break;
            }
        }
        reaped
    }

    fn arm(&self) -> Armed {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= UNREAD {
            self.read_channel();
        }
        // SAFETY: the completion queue is alive.
        let errno = unsafe { (self.context.table.req_notify_cq)(self.cq, 0) };
        debug_assert_eq!(errno, 0, "ibv_req_notify_cq");
        // Whether completions came before is not to be known without taking them: the caller looks.
        Armed::Ready
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the channel, and so its descriptor, stays open while the queue is used.
        let fd = unsafe { (*self.channel).fd };
        // SAFETY: as above.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn clear(&self) {
        self.read_channel();
    }

    unsafe fn retire(&self, keep: Keep, _outstanding: usize) {
        match self.destroy() {
            true => drop(keep),
            // In doubt the memory is kept.
            false => std::mem::forget(keep),
        }
    }
}

impl Drop for VerbsQueue {
    fn drop(&mut self) {
        self.destroy();
    }
}
