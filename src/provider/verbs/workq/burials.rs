//! How connections end without a lock of the data path, and who waits until they have.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::super::connection::{Dying, RcConnection, RcInner};
use super::super::transport::Qp;
use super::copies::Copies;
use super::shared::{Poll, Shared};
use crate::error::Result;
use crate::sync::{elsewhere, lock, log};

#[derive(Default)]
pub(super) struct Burials {
    /// Threads that destroy one.
    threads: AtomicUsize,
    /// How many wait for a change.
    waiting: Mutex<usize>,
    bell: Condvar,
}

/// A thread has what it destroys, until this is dropped.
pub(super) struct UnderWay(Arc<Burials>);

impl Burials {
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.threads.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(self))
    }

    /// Returns true if a thread has something.
    pub(super) fn any(&self) -> bool {
        self.threads.load(Ordering::SeqCst) > 0
    }

    /// Waits while this is so, which [`tell`](Burials::tell) ends.
    pub(super) fn wait_while(&self, mut is_so: impl FnMut() -> bool) {
        let mut waiting = lock(&self.waiting);
        *waiting += 1;
        let waited = self.bell.wait_while(waiting, |_| is_so());
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    /// One has ended. Pairs with the lock of those who look and then wait: the caller has none that
    /// they take.
    pub(super) fn tell(&self) {
        if *lock(&self.waiting) > 0 {
            self.bell.notify_all();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
        self.0.tell();
    }
}

impl Poll {
    /// Returns whether a queue pair of this number is dying.
    pub(super) fn is_dying(&self, number: u32) -> bool {
        let owner = self.owners.binary_search_by_key(&number, |(num, _)| *num);
        let dies = owner.is_ok_and(|at| self.owners[at].1.is_dying());
        dies || self.dying_copies == Some(number)
    }
}

impl Shared {
    /// Enters a connection that is new, or that was reset, and is not for others before. While
    /// another one that had its number is dying, this waits.
    pub(super) fn enter(&self, conn: &Arc<RcConnection>) {
        self.burials.wait_while(|| {
            let mut poll = lock(&self.poll);
            let entered = poll.add(conn);
            if entered {
                conn.begin_anew(&mut conn.inner());
            }
            !entered
        });
        self.burials.tell();
        if let Some(why) = self.refuses() {
            // It has failed meanwhile, and whoever saw to its endpoints did not see this one.
            conn.fail(&mut conn.inner(), why);
        }
    }

    /// Ends a connection for good. The caller tells of changes.
    pub(super) fn retire(&self, conn: &Arc<RcConnection>) {
        self.take_down(conn, RcConnection::retire);
        self.let_go(conn);
    }

    /// Ends a connection, and makes another one of it. The caller tells of changes.
    pub(super) fn reset(&self, conn: &Arc<RcConnection>) {
        self.take_down(conn, RcConnection::begin_end);
        let renewed = conn.renew();
        self.enter(conn);
        log_failed(&renewed, "no queue pair after a reset");
    }

    /// Takes a connection from the adapter, and ends what is left of it, as `begin` begins it. The
    /// connection is dying still when this returns: it is the caller's alone. While another thread
    /// does that, or resets the connection, this waits. Nobody is notified of changes meanwhile,
    /// who might come here again.
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

    /// The queue pair is gone, or in doubt.
    fn bury(&self, poll: &mut Poll, conn: &Arc<RcConnection>, quiesced: bool) {
        // What it had completed is its own still; its receives of a shared queue are posted again.
        self.drain(poll);
        conn.finish_end(&mut conn.inner(), quiesced);
        poll.remove(conn);
    }

    /// The connection is not this thread's alone any more.
    fn let_go(&self, conn: &RcConnection) {
        conn.inner().dying = false;
        self.burials.tell();
    }

    /// Has a thread end a connection that has begun to end: who reaps has other tasks. If there is
    /// nothing to wait for, or no thread to be had, this does it.
    pub(super) fn bury_elsewhere(
        &self,
        poll: &mut Poll,
        conn: &Arc<RcConnection>,
        mut dying: Dying,
    ) {
        if dying.is_some()
            && let Some(this) = self.me.upgrade()
        {
            conn.inner().left = Some(dying);
            let of_thread = Arc::clone(conn);
            let run = move || {
                // Dropped last: a queue that has ended has let go of the device.
                let _under_way = this.burials.begin();
                let (this, conn) = (this, of_thread);
                let left = conn.inner().left.take();
                // Or another thread, which waits for it, has begun.
                let Some(dying) = left else { return };
                let quiesced = dying.quiesce();
                this.bury(&mut lock(&this.poll), &conn, quiesced);
                this.let_go(&conn);
                // The party that reaps tells of what has changed, and no thread that holds a queue
                // does.
                this.core.request_reap();
            };
            if elsewhere(Box::new(run)).is_ok() {
                return;
            }
            let Some(left) = conn.inner().left.take() else {
                return;
            };
            dying = left;
        }
        self.bury(poll, conn, dying.quiesce());
        // Under the lock of `poll` nobody has seen that it was dying.
        conn.inner().dying = false;
    }

    /// Has a thread take the broken queue pair of the copies from the adapter, and make another
    /// one: who reaps has other tasks. If there is no thread to be had, this does it.
    pub(super) fn renew_broken_copies(&self, poll: &mut Poll) {
        let Some(copies) = &self.copies else { return };
        let mut guard = lock(copies);
        if !guard.begin_end(self.gone()) {
            return;
        }
        poll.dying_copies = guard.qp.as_ref().map(|qp| qp.num());
        drop(guard);
        if let Some(this) = self.me.upgrade() {
            let run = move || {
                // Dropped last, as above.
                let _under_way = this.burials.begin();
                let this = this;
                // Or `end` does it: it looks whether a thread has begun after it has said so.
                if let Some(copies) = &this.copies
                    && !this.retired.load(Ordering::SeqCst)
                {
                    this.renew(copies);
                    this.core.request_reap();
                }
            };
            if elsewhere(Box::new(run)).is_ok() {
                return;
            }
        }
        let qp = lock(copies).qp.take();
        if self.end_copies(poll, copies, qp.is_none_or(Qp::quiesce)) {
            let made = Copies::connect(&self.core, self.depth);
            lock(copies).begin_anew(made);
        }
    }

    /// The caller has no lock.
    fn renew(&self, copies: &Mutex<Copies>) {
        let qp = lock(copies).qp.take();
        let quiesced = qp.is_none_or(Qp::quiesce);
        let goes_on = self.end_copies(&mut lock(&self.poll), copies, quiesced);
        self.burials.tell();
        if goes_on {
            let made = Copies::connect(&self.core, self.depth);
            log_failed(&made, "no queue pair for copies");
            let number = made.as_ref().ok().map(Qp::num);
            let dies = || number.is_some_and(|it| lock(&self.poll).is_dying(it));
            self.burials.wait_while(dies);
            lock(copies).begin_anew(made);
        }
    }

    /// The queue pair of the copies is gone, or in doubt. Returns whether they want another one.
    fn end_copies(&self, poll: &mut Poll, copies: &Mutex<Copies>, quiesced: bool) -> bool {
        self.drain(poll);
        poll.dying_copies = None;
        lock(copies).finish_end(quiesced, self.gone())
    }

    /// Ends all connections of a queue that nobody polls any more, once threads have let go of
    /// theirs.
    pub(super) fn end_all(&self) {
        let owners = lock(&self.poll).owners.clone();
        owners.iter().for_each(|(_, conn)| self.retire(conn));
        // Afterwards: the end of one may have found that another one has failed, and those that
        // are retired do not get into this list, which would keep them.
        self.failed.take().iter().for_each(|conn| self.retire(conn));
        self.burials.wait_while(|| self.burials.any());
    }
}

/// Writes to the log that a queue pair could not be made. The caller has no lock.
fn log_failed<T>(made: &Result<T>, text: &str) {
    if let Err(error) = made {
        log(|| tracing::error!(target: "tokio_doca::verbs", %error, "{text}"));
    }
}
