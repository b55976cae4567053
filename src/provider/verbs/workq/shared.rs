//! The state that the handles of a queue share.
//!
//! Locks are taken in this order: that of the [`Burials`]; that of [`Poll`], under which
//! completions are polled; that of a connection, or of the copies; that of the finished
//! completions. The application is notified of a change outside of all locks.
//!
//! A queue pair is destroyed outside of all locks too, since the driver may take long. Completions
//! are assigned to a queue pair by its number. So a queue pair stays among the owners, or in
//! `dying_copies`, until it was destroyed and the completion queue was drained. No other queue pair
//! of the same number is added before then.
#![expect(unsafe_code, reason = "does jobs whose memory was lent")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

use super::super::adapter::Context;
use super::super::connection::{EventTargets, FailedConnections, RcConnection};
use super::super::ffi::Wc;
use super::super::transport::{Core, Cq, Qp, is_name};
use super::burials::Burials;
use super::computed::Computed;
use super::copies::Copies;
use crate::device::{Armed, Completion, CopyJob, EndpointState, QueueConfig, Submitted, Token};
use crate::error::{ErrorKind, JobError, Reason, Result as SetUp};
use crate::sync::{BriefMutex, Run, lock, try_lock};

/// The maximum number of completions in one poll.
const BATCH: usize = 16;

pub(in super::super) struct Shared {
    pub(in super::super) watched: Arc<EventTargets>,
    pub(in super::super) core: Arc<Core>,
    pub(in super::super) poll: BriefMutex<Poll>,
    pub(super) copies: Option<Mutex<Copies>>,
    pub(super) computed: Computed,
    /// The endpoints that `handle_failures` checks.
    pub(super) failed: Arc<FailedConnections>,
    pub(super) depth: u32,
    /// True if the completion queue has failed, or the device is gone.
    broken: AtomicBool,
    pub(super) retired: AtomicBool,
    pub(super) burials: Arc<Burials>,
    pub(super) me: Weak<Shared>,
}

/// The state that belongs to the holder of the `poll` lock.
#[derive(Default)]
pub(in super::super) struct Poll {
    wcs: [Wc; BATCH],
    /// The completions in `wcs` that `ready` has polled and no thread has taken yet.
    kept: Range<usize>,
    /// The connections, sorted by the numbers of their queue pairs.
    pub(super) owners: Vec<(u32, Arc<RcConnection>)>,
    /// The number of the queue pair of the copies that is being destroyed.
    pub(super) dying_copies: Option<u32>,
    /// The index in `owners` of the last completion's connection. Usually the next completion has
    /// the same connection.
    last: usize,
    /// The functions to call once the lock is released: notifications of the application, and work
    /// for which no thread could be started.
    pub(super) after: Vec<Run>,
}

impl Poll {
    /// Takes up to `most` completions, beginning with those that `ready` has kept. Returns their
    /// range in `wcs`, and true if the completion queue was empty afterwards. Returns `None` if the
    /// completion queue is broken.
    #[inline(always)]
    fn take(&mut self, cq: &Cq, most: usize) -> Option<(Range<usize>, bool)> {
        if self.kept.is_empty() {
            let most = most.min(BATCH);
            let polled = cq.poll(&mut self.wcs[..most])?;
            return Some((0..polled, polled < most));
        }
        let end = self.kept.end.min(self.kept.start + most);
        let taken = self.kept.start..end;
        self.kept.start = end;
        Some((taken, false))
    }

    #[inline(always)]
    fn owner(&mut self, qp_num: u32) -> Option<usize> {
        let last = self.owners.get(self.last);
        if last.is_none_or(|(num, _)| *num != qp_num) {
            let found = self.owners.binary_search_by_key(&qp_num, |(num, _)| *num);
            self.last = found.ok()?;
        }
        Some(self.last)
    }

    /// Adds a connection. Returns false if the queue pair of a dying connection has the same
    /// number: an adapter may use a number again as soon as its queue pair is gone.
    pub(super) fn add(&mut self, conn: &Arc<RcConnection>) -> bool {
        let Some(number) = conn.number() else {
            return true;
        };
        if self.is_dying(number) {
            return false;
        }
        let entry = (number, Arc::clone(conn));
        match self.owners.binary_search_by_key(&number, |(num, _)| *num) {
            Ok(at) => self.owners[at] = entry,
            Err(at) => self.owners.insert(at, entry),
        }
        true
    }

    pub(super) fn remove(&mut self, conn: &Arc<RcConnection>) {
        self.owners.retain(|(_, owner)| !Arc::ptr_eq(owner, conn));
    }
}

impl Shared {
    pub(super) fn open(
        context: &Arc<Context>,
        watched: &Arc<EventTargets>,
        config: &QueueConfig,
    ) -> SetUp<Arc<Shared>> {
        let depth = config.depth;
        let traits = &context.traits;
        // Each Job ends once. All requests of copies end if they are flushed.
        let completions = depth + traits.copy_requests(depth);
        let cq = Cq::create(context, completions, config.completion_vector)?;
        let core = Arc::new(Core::new(context, cq, depth, &config.signal)?);
        // The core is added first, so that a thread which learns of a failure finds it.
        watched.add_core(&core);
        let copies = match context.copies_pd() {
            Some(_) => Some(Mutex::new(Copies::open(&core, depth)?)),
            None => None,
        };
        Ok(Arc::new_cyclic(|me| Shared {
            watched: Arc::clone(watched),
            core,
            poll: BriefMutex::new(Poll::default()),
            copies,
            computed: Computed::new(depth),
            failed: Arc::default(),
            depth,
            broken: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            burials: Arc::default(),
            me: Weak::clone(me),
        }))
    }

    /// Submits copies.
    ///
    /// # Safety
    ///
    /// As for `Submit::submit`.
    pub(super) unsafe fn copy(&self, jobs: impl Iterator<Item = (Token, CopyJob)>) -> Submitted {
        let Some(copies) = &self.copies else {
            return Submitted::none(JobError::device(ErrorKind::NotSupported, 0));
        };
        let mut copies = lock(copies);
        // This is checked under the lock: a thread that finds the queue broken first sets `broken`,
        // and then ends all copies.
        if let Some(why) = self.refuses() {
            return Submitted::none(why);
        }
        // SAFETY: as the caller promises.
        unsafe { copies.submit(jobs) }
    }

    /// Applies one completion of the adapter.
    #[inline(always)]
    fn dispatch(&self, poll: &mut Poll, at: usize, give: impl FnOnce(Completion)) {
        match poll.owner(poll.wcs[at].qp_num) {
            Some(owner) => {
                if poll.owners[owner].1.completed(&poll.wcs[at], give) {
                    let conn = Arc::clone(&poll.owners[owner].1);
                    poll.notify_later(conn);
                }
            }
            None => self.copied(&poll.wcs[at], give),
        }
    }

    /// Applies a completion that belongs to the copies, or to a queue pair that is gone.
    #[inline(never)]
    fn copied(&self, wc: &Wc, give: impl FnOnce(Completion)) {
        if is_name(wc.wr_id) {
            return self.core.stray(wc.wr_id);
        }
        if let Some(copies) = &self.copies {
            let mut copies = lock(copies);
            if copies.has(wc.qp_num) {
                copies.completed(wc, give);
            }
        }
    }

    /// Polls all completions, and keeps them for the next reap.
    pub(in super::super) fn drain(&self, poll: &mut Poll) {
        // The number of polls is limited, since a broken driver might report completions without
        // end. The limit suffices for all completions that exist now.
        for _ in 0..=self.core.context.traits.max_cqe as usize / BATCH + 1 {
            let Some((taken, empty)) = poll.take(&self.core.cq, BATCH) else {
                if !self.broken.swap(true, SeqCst) {
                    self.core.request_reap();
                }
                break;
            };
            for at in taken {
                self.dispatch(poll, at, |completion| self.core.finish(completion));
            }
            if empty {
                break;
            }
        }
    }

    /// Polls for a caller that has found no message. Returns false if another thread is polling.
    pub(super) fn poll_now(&self) -> bool {
        let Some(mut poll) = try_lock(&self.poll) else {
            return false;
        };
        self.drain(&mut poll);
        Shared::unlock(poll);
        true
    }

    /// Returns true if `handle_failures` would find something.
    #[cold]
    fn has_failures(&self) -> bool {
        let core = &self.core;
        let copies = self.copies.as_ref().is_some_and(|it| lock(it).is_broken());
        copies
            || self.failed.any()
            || core.have_copies_failed()
            || core.context.is_dead()
            || core.cq.is_broken()
    }

    /// Handles failures of the queue, its connections and the copies. The caller has polled all
    /// completions.
    #[cold]
    fn handle_failures(&self, poll: &mut Poll) {
        if self.core.context.is_dead() || self.core.cq.is_broken() {
            self.broken.store(true, SeqCst);
        }
        if self.broken.load(SeqCst) {
            let cause = self.cause();
            for at in 0..poll.owners.len() {
                let conn = Arc::clone(&poll.owners[at].1);
                let news = conn.fail(&mut conn.inner(), cause);
                if news {
                    poll.notify_later(conn);
                }
            }
        }
        for conn in self.failed.take() {
            let mut inner = conn.inner();
            if conn.check_failures(&mut inner) {
                poll.notify_later(Arc::clone(&conn));
            }
            let failed = matches!(inner.state, EndpointState::Error(_));
            let dying = failed.then(|| conn.begin_end(&mut inner)).flatten();
            drop(inner);
            if let Some(dying) = dying {
                self.bury_elsewhere(poll, &conn, dying);
            }
        }
        self.renew_broken_copies(poll);
    }

    /// Returns the cause if the queue is broken. A broken queue does nothing any more.
    pub(super) fn gone(&self) -> Option<JobError> {
        self.broken.load(SeqCst).then(|| self.cause())
    }

    fn cause(&self) -> JobError {
        match self.core.context.is_dead() {
            true => JobError::of(Reason::DeviceGone),
            false => JobError::queue_failed(),
        }
    }

    pub(super) fn refuses(&self) -> Option<JobError> {
        self.broken
            .load(SeqCst)
            .then(|| match self.core.context.is_dead() {
                true => JobError::of(Reason::DeviceGone),
                false => JobError::queue_broken(),
            })
    }

    /// Moves completions to `out`, and returns their number. Polls up to `looks` times, until there
    /// is something to do.
    pub(super) fn reap(&self, poll: &mut Poll, out: &mut [Completion], looks: usize) -> usize {
        let mut attention = self.core.take_attention();
        if !attention && poll.kept.is_empty() && !self.computed.pending() {
            // The loop below does the last poll.
            for _ in 1..looks {
                let polled = self.core.cq.poll(&mut poll.wcs);
                poll.kept = 0..polled.unwrap_or(0);
                if polled != Some(0) {
                    break;
                }
            }
        }
        let mut reaped = if attention {
            self.take_finished(out)
        } else {
            0
        };
        let mut emptied = false;
        while reaped < out.len() {
            let was_kept = !poll.kept.is_empty();
            let Some((taken, empty)) = poll.take(&self.core.cq, out.len() - reaped) else {
                self.broken.store(true, SeqCst);
                // The queue yields no more completions, so that all that is left ends now.
                (attention, emptied) = (true, true);
                break;
            };
            for at in taken {
                self.dispatch(poll, at, |completion| {
                    out[reaped] = completion;
                    reaped += 1;
                });
            }
            emptied = empty;
            // The completions that `ready` has kept are the result of this reap, for which the
            // queue is not polled a second time. Later completions signal if a thread armed, and
            // the next reap finds them. But if attention was requested, this polls on: `arm` may
            // have taken the kept completions, and not those that came before it requested an
            // event.
            if empty || was_kept && !attention {
                break;
            }
        }
        if self.computed.pending()
            && reaped < out.len()
            && let Some(completion) = self.computed.work()
        {
            out[reaped] = completion;
            reaped += 1;
        }
        if self.computed.pending() {
            // A thread that armed, and found no completion of its own, sleeps now.
            self.core.raise();
        }
        if attention {
            if !emptied && self.has_failures() {
                // Failures must not wait until the queue is empty, which may never happen.
                self.drain(poll);
                emptied = true;
            }
            if emptied {
                self.handle_failures(poll);
                reaped += self.take_finished(&mut out[reaped..]);
            }
            if !emptied || !self.core.finished().is_empty() {
                self.core.request_reap();
            }
        }
        reaped
    }

    /// Polls once, and keeps the completions for the next reap. This never waits for the lock: the
    /// thread that holds it polls, and finds the completions.
    pub(super) fn ready(&self) -> bool {
        if self.core.needs_attention() || self.computed.pending() {
            return true;
        }
        let Some(mut guard) = try_lock(&self.poll) else {
            return false;
        };
        let poll = &mut *guard;
        if poll.kept.is_empty() {
            match self.core.cq.poll(&mut poll.wcs) {
                Some(polled) => poll.kept = 0..polled,
                // The failure is reported once, as in `arm`.
                None => return !self.broken.load(SeqCst),
            }
        }
        !poll.kept.is_empty()
    }

    /// Requests one event for the next completion.
    pub(super) fn arm(&self) -> Armed {
        self.core.set_armed(true);
        self.core.cq.notify();
        let mut guard = lock(&self.poll);
        let poll = &mut *guard;
        if self.core.cq.is_broken() && !self.broken.load(SeqCst) {
            self.core.request_poll();
        }
        // Completions that came before the request cause no event, so that they are kept here for
        // the next reap.
        if let Some((taken, empty)) = poll.take(&self.core.cq, BATCH) {
            for at in taken {
                self.dispatch(poll, at, |completion| self.core.keep(completion));
            }
            if !empty {
                // There may be more completions than those taken here.
                self.core.request_poll();
            }
        } else if !self.broken.swap(true, SeqCst) {
            // The failure is reported once: the queue yields no more completions, and a thread that
            // armed for other devices of the WorkQ would be woken without end.
            self.core.request_reap();
        }
        Shared::unlock(guard);
        // The reaper computes the jobs of the CPU, a part in each turn, so that others have their
        // turn in between.
        match self.core.needs_attention() || self.computed.pending() {
            true => Armed::Ready,
            false => Armed::Armed,
        }
    }

    /// Moves completions that were finished before to `out`.
    fn take_finished(&self, out: &mut [Completion]) -> usize {
        let mut finished = self.core.finished();
        let count = out.len().min(finished.len());
        for (to, from) in out.iter_mut().zip(finished.drain(..count)) {
            *to = from;
        }
        count
    }

    /// Ends the queue, after which no memory is touched. Returns false if in doubt.
    pub(super) fn end(&self) -> bool {
        if self.core.context.is_forked() {
            return false;
        }
        if self.retired.swap(true, SeqCst) {
            return true;
        }
        self.end_all();
        if let Some(copies) = &self.copies {
            let qp = lock(copies).qp.take();
            if !qp.is_none_or(Qp::quiesce) {
                lock(copies).finish_end(false, None);
            }
        }
        self.computed.end();
        // Earlier queue pairs count too: the queue keeps the memory of their Jobs.
        !self.core.is_in_doubt()
    }
}
