//! How connections end without a lock of the data path, and who waits until they have.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::super::connection::{Dying, RcConnection, RcInner};
use super::shared::{Poll, Shared};
use crate::sync::{elsewhere, lock};

#[derive(Default)]
pub(super) struct Burials {
    /// Threads that destroy one.
    threads: AtomicUsize,
    changed: Mutex<()>,
    bell: Condvar,
}

/// A thread has what it destroys, until this is dropped.
pub(super) struct UnderWay(Arc<Burials>);

impl Burials {
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.threads.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(self))
    }

    /// Whether a thread has something.
    pub(super) fn any(&self) -> bool {
        self.threads.load(Ordering::SeqCst) > 0
    }

    /// Waits while this is so, which [`tell`](Burials::tell) ends.
    pub(super) fn wait_while(&self, mut is_so: impl FnMut() -> bool) {
        let waited = self.bell.wait_while(lock(&self.changed), |()| is_so());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// One has ended. Pairs with the lock of those who look and then wait: the caller has none that
    /// they take.
    pub(super) fn tell(&self) {
        drop(lock(&self.changed));
        self.bell.notify_all();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
        self.0.tell();
    }
}

impl Shared {
    /// Enters a connection that is new. While another one that had its number is dying, this waits.
    pub(super) fn enter(&self, conn: &Arc<RcConnection>) {
        self.burials.wait_while(|| !lock(&self.poll).add(conn));
        if let Some(why) = self.refuses() {
            // It has failed meanwhile, and whoever saw to its endpoints did not see this one.
            conn.fail(&mut conn.inner(), why);
        }
    }

    /// Ends a connection, as `begin` begins it. If another thread does that already, this waits,
    /// and begins anew.
    pub(super) fn take_down(
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
        Shared::tell(lock(&self.poll));
        let quiesced = dying.is_none_or(Dying::quiesce);
        self.bury(conn, quiesced);
    }

    /// The queue pair is gone, or in doubt.
    fn bury(&self, conn: &Arc<RcConnection>, quiesced: bool) {
        let mut poll = lock(&self.poll);
        // What it had completed is its own still; its receives of a shared queue are posted again.
        self.drain(&mut poll);
        conn.finish_end(&mut conn.inner(), quiesced);
        poll.remove(conn);
        Shared::tell(poll);
        self.burials.tell();
    }

    /// Has a thread end a connection that has begun to end: who reaps has other tasks. If there is
    /// nothing to wait for, or no thread to be had, this does it.
    pub(super) fn bury_elsewhere(&self, poll: &mut Poll, conn: Arc<RcConnection>, dying: Dying) {
        let has_pair = dying.is_some();
        let dying = Arc::new(Mutex::new(Some(dying)));
        if let Some(this) = self.me.upgrade().filter(|_| has_pair) {
            let (conn, dying) = (Arc::clone(&conn), Arc::clone(&dying));
            let run = move || {
                // Dropped last: a queue that has ended has let go of the device.
                let _under_way = this.burials.begin();
                let (this, conn) = (this, conn);
                let dying = lock(&*dying).take();
                this.bury(&conn, dying.is_none_or(Dying::quiesce));
            };
            if elsewhere(Box::new(run)).is_ok() {
                return;
            }
        }
        let dying = lock(&*dying).take();
        let quiesced = dying.is_none_or(Dying::quiesce);
        self.drain(poll);
        conn.finish_end(&mut conn.inner(), quiesced);
        poll.remove(&conn);
    }

    /// Ends all connections of a queue that nobody polls any more, once threads have let go of
    /// theirs.
    pub(super) fn end_all(&self) {
        let is_dying = |(_, conn): &(u32, Arc<RcConnection>)| conn.is_dying();
        let any_dies = || lock(&self.poll).owners.iter().any(is_dying);
        self.burials.wait_while(|| any_dies() || self.burials.any());
        let mut poll = lock(&self.poll);
        let owners = std::mem::take(&mut poll.owners).into_iter();
        for conn in owners.map(|(_, conn)| conn).chain(self.failed.take()) {
            let mut inner = conn.inner();
            if let Some(dying) = conn.retire(&mut inner) {
                conn.finish_end(&mut inner, dying.quiesce());
            }
        }
    }
}
