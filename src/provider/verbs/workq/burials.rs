//! Ends connections without holding a lock of the data path. Callers can wait for the end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::super::connection::{Dying, RcConnection, RcInner};
use super::super::transport::Qp;
use super::copies::Copies;
use super::shared::{Poll, Shared};
use crate::error::Result;
use crate::sync::{BriefGuard, for_peers, lock, log};

#[derive(Default)]
pub(super) struct Burials {
    /// The number of threads that are destroying a queue pair.
    threads: AtomicUsize,
    /// The number of callers that wait for a change.
    waiting: Mutex<usize>,
    bell: Condvar,
}

/// Counts a thread that destroys a queue pair, until this is dropped.
pub(super) struct UnderWay(Arc<Burials>);

impl Burials {
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.threads.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(self))
    }

    /// Returns true if a thread is destroying a queue pair.
    pub(super) fn any(&self) -> bool {
        self.threads.load(Ordering::SeqCst) > 0
    }

    /// Waits while `is_so` returns true. [`wake_waiting`](Burials::wake_waiting) has the condition
    /// checked again.
    pub(super) fn wait_while(&self, mut is_so: impl FnMut() -> bool) {
        let mut waiting = lock(&self.waiting);
        *waiting += 1;
        let waited = self.bell.wait_while(waiting, |_| is_so());
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    /// Wakes the callers of `wait_while` after a change. They check their condition under the lock
    /// `waiting`, so the caller of this function must hold no lock that a condition takes.
    pub(super) fn wake_waiting(&self) {
        if *lock(&self.waiting) > 0 {
            self.bell.notify_all();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
        self.0.wake_waiting();
    }
}

impl Poll {
    /// Notifies the application of a change of this connection, once the lock of `Poll` is
    /// released.
    #[cold]
    pub(super) fn notify_later(&mut self, conn: Arc<RcConnection>) {
        self.after.push(Box::new(move || conn.notify()));
    }

    /// Returns true if a queue pair of this number is dying: it is being taken from the adapter.
    pub(super) fn is_dying(&self, number: u32) -> bool {
        let owner = self.owners.binary_search_by_key(&number, |(num, _)| *num);
        let dies = owner.is_ok_and(|at| self.owners[at].1.is_dying());
        dies || self.dying_copies == Some(number)
    }
}

impl Shared {
    /// Registers a connection that is new, or that was reset, and makes it usable. Waits while
    /// another connection whose queue pair had the same number is dying.
    pub(super) fn enter(&self, conn: &Arc<RcConnection>) {
        self.burials.wait_while(|| {
            let mut poll = lock(&self.poll);
            let entered = poll.add(conn);
            if entered {
                conn.begin_anew(&mut conn.inner());
            }
            !entered
        });
        self.burials.wake_waiting();
        if let Some(why) = self.refuses() {
            // The queue has failed meanwhile, and the thread that failed its endpoints has not seen
            // this one.
            conn.fail(&mut conn.inner(), why);
        }
    }

    /// Unlocks `poll`, and then runs the functions in `Poll::after`.
    #[inline(always)]
    pub(in super::super) fn unlock(mut poll: BriefGuard<'_, Poll>) {
        if poll.after.is_empty() {
            return;
        }
        let after = std::mem::take(&mut poll.after);
        drop(poll);
        after.into_iter().for_each(|run| run());
    }

    /// Ends a connection for good. The caller then notifies the application of changes.
    pub(super) fn retire(&self, conn: &Arc<RcConnection>) {
        self.take_down(conn, RcConnection::retire);
        self.let_go(conn);
    }

    /// Ends a connection and makes a new queue pair for it. The caller then notifies the
    /// application of changes.
    pub(super) fn reset(&self, conn: &Arc<RcConnection>) {
        self.take_down(conn, RcConnection::begin_end);
        let renewed = conn.renew();
        self.enter(conn);
        log_failed(&renewed, "no queue pair after a reset");
    }

    /// Takes the queue pair of a connection from the adapter, and ends the connection's Jobs and
    /// receives. `begin` marks the connection as dying. If another thread ends or resets the
    /// connection, waits until that thread is done. When this returns, the mark is still set, and
    /// only the caller may change the connection and clear the mark. No application is notified
    /// meanwhile, since its waker might call this function again.
    fn take_down(
        &self,
        conn: &Arc<RcConnection>,
        begin: fn(&RcConnection, &mut RcInner) -> Option<Dying>,
    ) {
        let mut dying = None;
        self.burials.wait_while(|| {
            let mut poll = lock(&self.poll);
            self.drain(&mut poll);
            dying = begin(conn, &mut conn.inner());
            dying.is_none()
        });
        let quiesced = dying.is_none_or(Dying::quiesce);
        self.bury(&mut lock(&self.poll), conn, quiesced);
    }

    /// Removes a connection whose queue pair is gone. If `quiesced` is false, the adapter may still
    /// use its memory.
    fn bury(&self, poll: &mut Poll, conn: &Arc<RcConnection>, quiesced: bool) {
        // Completions of the gone queue pair still belong to the connection. Its receives of a
        // shared queue are posted again.
        self.drain(poll);
        conn.finish_end(&mut conn.inner(), quiesced);
        poll.remove(conn);
    }

    /// Lets other threads change the connection again.
    fn let_go(&self, conn: &RcConnection) {
        conn.inner().dying = false;
        self.burials.wake_waiting();
    }

    /// Ends a connection that has begun to end, on another thread, since the reaper has other
    /// tasks. If there is no queue pair to wait for, ends the connection on this thread.
    pub(super) fn bury_elsewhere(&self, poll: &mut Poll, conn: &Arc<RcConnection>, dying: Dying) {
        if !dying.is_some() {
            self.bury(poll, conn, dying.quiesce());
            // `poll` was locked throughout, so that no other thread has seen the connection dying.
            conn.inner().dying = false;
            return;
        }
        conn.inner().left = Some(dying);
        let conn = Arc::clone(conn);
        self.do_elsewhere(poll, move |this| {
            let left = conn.inner().left.take();
            // If `left` is empty, a thread that waits for the connection's end has taken the
            // `Dying`, and ends the connection.
            let Some(dying) = left else { return };
            let quiesced = dying.quiesce();
            this.bury(&mut lock(&this.poll), &conn, quiesced);
            this.let_go(&conn);
        });
    }

    /// Takes the broken queue pair of the copies from the adapter and makes another one, on another
    /// thread, since the reaper has other tasks.
    pub(super) fn renew_broken_copies(&self, poll: &mut Poll) {
        let Some(copies) = &self.copies else { return };
        let mut guard = lock(copies);
        if !guard.begin_end(self.gone()) {
            return;
        }
        poll.dying_copies = guard.qp.as_ref().map(|qp| qp.num());
        drop(guard);
        self.do_elsewhere(poll, |this| {
            // If the queue was retired, `end` ends the queue pair. `end` sets `retired` first, and
            // then checks whether a thread has begun.
            if let Some(copies) = &this.copies
                && !this.retired.load(Ordering::SeqCst)
            {
                this.renew(copies);
            }
        });
    }

    /// Calls `run` on another thread. Afterwards the reaper notifies the application of changes. If
    /// no thread can be started, the caller calls `run` once it has unlocked `poll`.
    fn do_elsewhere(&self, poll: &mut Poll, run: impl FnOnce(&Shared) + Send + 'static) {
        let this = self.me.upgrade().expect("its caller has the queue");
        let run = move || {
            // The guard is dropped last, after this thread has released its handle of the queue:
            // once a queue has ended, no thread holds the device.
            let _under_way = this.burials.begin();
            let this = this;
            run(&this);
            // A thread that holds a queue must not notify the application itself.
            this.core.request_reap();
        };
        if let Err((_, run)) = for_peers().run(Box::new(run)) {
            poll.after.push(run);
        }
    }

    /// Replaces the queue pair of the copies. The caller holds no lock.
    fn renew(&self, copies: &Mutex<Copies>) {
        let qp = lock(copies).qp.take();
        let quiesced = qp.is_none_or(Qp::quiesce);
        let mut poll = lock(&self.poll);
        self.drain(&mut poll);
        poll.dying_copies = None;
        let goes_on = lock(copies).finish_end(quiesced, self.gone());
        drop(poll);
        self.burials.wake_waiting();
        if goes_on {
            let made = Copies::connect(&self.core, self.depth);
            log_failed(&made, "no queue pair for copies");
            let number = made.as_ref().ok().map(Qp::num);
            let dies = || number.is_some_and(|it| lock(&self.poll).is_dying(it));
            self.burials.wait_while(dies);
            lock(copies).begin_anew(made);
        }
    }

    /// Ends all connections of a queue that is no longer polled. Waits until no thread is
    /// destroying a queue pair.
    pub(super) fn end_all(&self) {
        let owners = lock(&self.poll).owners.clone();
        owners.iter().for_each(|(_, conn)| self.retire(conn));
        // This comes last. The end of one connection may find that another one has failed, and a
        // retired connection is not added to this list, which would keep it alive.
        self.failed.take().iter().for_each(|conn| self.retire(conn));
        self.burials.wait_while(|| self.burials.any());
    }
}

/// Logs that a queue pair could not be made. The caller holds no lock.
fn log_failed<T>(made: &Result<T>, text: &str) {
    if let Err(error) = made {
        log(|| tracing::error!(target: "tokio_doca::verbs", %error, "{text}"));
    }
}
