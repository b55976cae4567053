//! Copies: writes of a queue pair that is connected to itself, in a protection domain that no peer
//! can reach.
//!
//! A copy that fails breaks the queue pair. Another queue pair replaces the broken one, and repeats
//! the other copies. Doing a copy twice is harmless, since its source and destination are leased.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::sync::Arc;
use std::time::Duration;

use super::super::adapter::{Address, REQUESTS, Wish, random_psn};
use super::super::ffi::*;
use super::super::transport::{
    Chain, Core, PostFailure, Qp, QpCaps, Retry, Route, Sends, UNNAMED, Work, status,
};
use crate::device::{Completion, CopyJob, Submitted, Token, Transport};
use crate::error::{Error, ErrorKind, JobError, Result};

pub(super) struct Copies {
    core: Arc<Core>,
    /// The capacity of the send queue.
    capacity: u32,
    /// The queue pair of the copies. The thread that takes it out quiesces it outside of the lock.
    pub(super) qp: Option<Arc<Qp>>,
    sends: Sends<CopyJob>,
    /// Set if the queue pair is broken: the cause, and the Job that fails with it. There is no Job
    /// if the adapter had none.
    broken: Option<(JobError, Option<Token>)>,
    /// True if the queue pair broke because the adapter does not reach itself. All copies then fail
    /// together: one after the other, each would take the adapter's time limit to fail.
    unreachable: bool,
    /// Set while [`Shared`](super::shared::Shared) replaces the queue pair, outside of all locks:
    /// the number of Jobs that the adapter may have seen, which is the number of all Jobs when that
    /// began.
    renewing: Option<usize>,
}

/// The time limit for a request of the adapter to itself.
const PATIENCE: Duration = Duration::from_secs(2);

impl Work for CopyJob {
    /// The maximum number of pieces in one request.
    type Context = usize;
    /// The Job is kept, since another queue pair repeats it if this one breaks.
    type Posted = CopyJob;

    #[inline(always)]
    fn posted(&self) -> CopyJob {
        *self
    }

    /// Cutting both lists at each other's boundaries gives at most this many pieces, since each
    /// piece ends at the end of a segment of either list.
    #[inline(always)]
    fn most(&self) -> usize {
        (self.src.as_slice().len() + self.dst.as_slice().len()).clamp(1, REQUESTS)
    }

    #[inline(always)]
    fn push(&self, token: Token, chain: &mut Chain, max_sge: &usize) {
        chain.push_copy(token, self, *max_sge);
    }
}

impl Copies {
    pub(in super::super) fn open(core: &Arc<Core>, depth: u32) -> Result<Copies> {
        let qp = Copies::connect(core, depth)?;
        let mut sends = Sends::new(depth);
        sends.set_capacity(qp.sends());
        Ok(Copies {
            core: Arc::clone(core),
            capacity: core.context.traits.copy_requests(depth),
            qp: Some(Arc::new(qp)),
            sends,
            broken: None,
            unreachable: false,
            renewing: None,
        })
    }

    /// Makes a queue pair that is connected to itself.
    pub(super) fn connect(core: &Arc<Core>, depth: u32) -> Result<Qp> {
        let context = &core.context;
        let Some(pd) = context.copies_pd() else {
            let text = format!("{} does no copies", context.name);
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        };
        let caps = QpCaps {
            sends: context.traits.copy_requests(depth),
            least_sends: REQUESTS as u32,
            send_sges: context.traits.sges(),
            receives: 1,
            receive_sges: 1,
            inline: 0,
        };
        let remote =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let id = Qp::next_id();
        core.set_copies(id);
        let qp = Qp::create((&core.cq, None), pd, id, caps, remote, 0)?;
        let transport = Transport::default();
        let (port, gid) = (context.port()?, context.best_gid(&Wish::default())?);
        let psn = random_psn();
        qp.connect(&Route {
            peer: Address {
                lid: port.lid,
                qpn: qp.num(),
                psn,
                gid: gid.addr.octets(),
                mtu: None,
            },
            psn,
            gid_index: gid.index,
            mtu: port.mtu,
            needs_grh: port.needs_grh,
            rd_atomics: [0, 0],
            retry: Retry::within(PATIENCE, &transport),
            transport,
            resolved: None,
        })
        .map_err(|(_, error)| error)?;
        Ok(qp)
    }

    /// Returns true if a completion belongs to this queue pair.
    #[inline(always)]
    pub(super) fn has(&self, qp_num: u32) -> bool {
        self.qp.as_ref().is_some_and(|qp| qp.num() == qp_num)
    }

    /// Returns true if the queue pair is broken, and is not being replaced yet.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some() && self.renewing.is_none()
    }

    /// # Safety
    ///
    /// As for `Submit::submit`.
    pub(super) unsafe fn submit(
        &mut self,
        jobs: impl Iterator<Item = (Token, CopyJob)>,
    ) -> Submitted {
        if self.qp.is_none() && self.broken.is_none() {
            // The last attempt to make a queue pair has failed.
            self.broken = Some((JobError::queue_failed(), None));
            self.core.request_reap();
        }
        let mut before = self.sends.len();
        jobs.for_each(|(token, job)| self.sends.push(token, job));
        let jobs = self.sends.len() - before;
        // SAFETY: as the caller promises, and as the callers before have promised.
        let Some(refused) = (unsafe { self.post(&mut before) }) else {
            return Submitted {
                accepted: jobs,
                refused: None,
            };
        };
        // The adapter has seen a part of a copy that was cut in two. So the copy is accepted, and
        // fails.
        let accepted = refused.at.saturating_sub(before) + usize::from(refused.cut);
        self.sends.truncate(before + accepted);
        let why = status::refusal(refused.errno);
        Submitted {
            accepted,
            refused: (accepted < jobs).then_some(why),
        }
    }

    /// Posts copies as long as the send queue has free entries. A copy that is refused among the
    /// first `accepted` fails alone and is removed, which decreases `accepted`.
    ///
    /// # Safety
    ///
    /// The memory of all Jobs is valid, and leased.
    unsafe fn post(&mut self, accepted: &mut usize) -> Option<PostFailure> {
        let max_sge = self.core.context.traits.sges() as usize;
        loop {
            let qp = self.qp.as_ref().filter(|_| self.broken.is_none())?;
            // SAFETY: as the caller promises.
            let refused = unsafe { self.sends.post(qp, &max_sge) }.err()?;
            let why = status::refusal(refused.errno);
            if refused.cut {
                self.broken = Some((why, self.sends.token(refused.at)));
                self.core.request_reap();
            }
            if refused.at >= *accepted {
                return Some(refused);
            }
            if refused.cut {
                return None;
            }
            if let Some(token) = self.sends.remove(refused.at) {
                self.core.finish(Completion::new(token, Err(why)));
                *accepted -= 1;
            }
        }
    }

    /// Applies a completion to the copies.
    #[inline(always)]
    pub(in super::super) fn completed(&mut self, wc: &Wc, give: impl FnOnce(Completion)) {
        if self.broken.is_some() {
            // This completion is a flush, and the copy will be repeated.
            return;
        }
        if wc.status != IBV_WC_SUCCESS {
            let cause = status::device(wc.status, wc.vendor_err);
            self.broken = Some((cause, self.sends.token(0)));
            self.unreachable = wc.status == IBV_WC_RETRY_EXC_ERR;
            self.core.request_reap();
            return;
        }
        if wc.wr_id == UNNAMED {
            return;
        }
        let token = Token::from_raw(wc.wr_id);
        if let Some(CopyJob { len, .. }) = self.sends.done(token) {
            self.core.count();
            give(Completion::new(token, Ok(len as u64)));
            // SAFETY: all Jobs were submitted, and have not completed.
            unsafe { self.post(&mut { usize::MAX }) };
        }
    }

    /// Marks the queue pair as broken, because the adapter has reported that it failed.
    fn break_off(&mut self) {
        let cause = JobError::device(ErrorKind::Driver, IBV_EVENT_QP_FATAL.into());
        let oldest = self.sends.token(0).filter(|_| self.sends.any_posted());
        self.broken.get_or_insert((cause, oldest));
    }

    /// Begins to replace a broken queue pair, or to end it if the queue is `gone`. Nothing is
    /// posted until [`begin_anew`](Copies::begin_anew). Returns false if the queue pair is not
    /// broken, or is being replaced already.
    pub(super) fn begin_end(&mut self, gone: Option<JobError>) -> bool {
        if self.renewing.is_some() {
            return false;
        }
        if self.qp.is_some() {
            if self.core.take_copies_failed() {
                self.break_off();
            }
            if let Some(cause) = gone {
                self.broken.get_or_insert((cause, None));
            }
        }
        self.renewing = self.broken.map(|_| self.sends.len());
        self.renewing.is_some()
    }

    /// Ends the broken queue pair. It was `quiesced`, and the caller has polled all its
    /// completions; or it is in doubt, which the core records. The Job that broke the queue pair
    /// fails. If in doubt, all Jobs that the adapter may have seen fail. If the queue is `gone`,
    /// all Jobs fail. Returns true if another queue pair shall do the remaining Jobs, by
    /// `begin_anew`.
    pub(super) fn finish_end(&mut self, quiesced: bool, gone: Option<JobError>) -> bool {
        self.sends.unpost();
        if !quiesced {
            // Each of its requests may still be flushed.
            self.core.keep_for_ever(self.capacity);
            let seen = self.renewing.unwrap_or(self.sends.len());
            self.finish_first(seen, JobError::memory_kept());
        }
        if let Some(cause) = gone {
            self.fail(cause);
        }
        let Some((cause, first_failed)) = self.broken else {
            return false;
        };
        if std::mem::take(&mut self.unreachable) {
            self.finish_first(self.sends.len(), cause);
        }
        let index = first_failed.and_then(|token| self.sends.index_of(token));
        if let Some(token) = index.and_then(|index| self.sends.remove(index)) {
            self.core.count();
            self.core.finish(Completion::new(token, Err(cause)));
        }
        true
    }

    /// Posts the remaining Jobs to this queue pair. If there is none, the Jobs fail.
    pub(super) fn begin_anew(&mut self, made: Result<Qp>) {
        let qp = match made {
            Ok(qp) => qp,
            Err(error) => return self.fail(JobError::device(error.kind(), 0)),
        };
        self.sends.set_capacity(qp.sends());
        self.qp = Some(Arc::new(qp));
        (self.broken, self.renewing) = (None, None);
        // SAFETY: all Jobs were submitted, and have not completed.
        unsafe { self.post(&mut { usize::MAX }) };
    }

    /// Fails all Jobs, of which none is posted.
    fn fail(&mut self, cause: JobError) {
        (self.broken, self.unreachable, self.renewing) = (None, false, None);
        self.finish_first(self.sends.len(), cause);
    }

    /// Fails the oldest `count` Jobs, of which none is posted.
    fn finish_first(&mut self, count: usize, cause: JobError) {
        let failed = (0..count).map_while(|_| self.sends.remove(0));
        failed.for_each(|token| self.core.finish(Completion::new(token, Err(cause))));
    }
}
