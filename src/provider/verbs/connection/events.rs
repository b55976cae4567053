//! The watcher's calls to a connection, which report events of the adapter and the time.
//!
//! The watcher never waits for a connection's lock, since the thread that holds the lock may be
//! waiting for the watcher (`Context::destroy`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::adapter::PROBES;
use super::super::cm::CmEvent;
use super::super::transport::status;
use super::rc::{RcConnection, RcInner};
use super::timeouts::{LEAST, takes_receive};
use crate::device::EndpointState;
use crate::error::{JobError, Reason};
use crate::sync::{BriefGuard, lock, try_lock};

impl RcConnection {
    /// Locks `inner`, if the lock is free.
    fn try_inner(&self) -> Option<BriefGuard<'_, RcInner>> {
        try_lock(&self.inner)
    }

    /// Fails the connection together with its device. If another thread holds the lock, this does
    /// nothing, and the next reap fails the connection: that thread may be destroying a queue pair,
    /// and may wait until the watcher has learned that the device is gone.
    pub(in super::super) fn fail_now(self: &Arc<Self>, cause: JobError) {
        let Some(mut inner) = self.try_inner() else {
            return;
        };
        let tell = self.fail(&mut inner, cause);
        drop(inner);
        if tell {
            self.notify();
        }
    }

    /// Fails the connection because its queue pair has failed, if the queue pair still has this id.
    /// If another thread holds the lock, or the connection is pooled, the next reap fails the
    /// connection.
    pub(in super::super) fn fail_queue_pair(self: &Arc<Self>, id: u64, cause: JobError) {
        if self.id() != id {
            return;
        }
        // A pooled connection fails in the next reap, which first finds the messages that came
        // before.
        let inner = self.try_inner().filter(|_| !self.is_pooled());
        let Some(mut inner) = inner else {
            let mut failed = lock(&self.failed);
            if failed.is_none_or(|(first, _)| first != id) {
                *failed = Some((id, cause));
            }
            drop(failed);
            self.request_check();
            return;
        };
        let tell = self.id() == id && self.fail(&mut inner, cause);
        drop(inner);
        if tell {
            self.notify();
        }
    }

    /// Notifies rdma_cm that a message has come before the peer's notice that it is ready, since
    /// that notice may have been lost. If another thread holds the lock, this does nothing: the
    /// notice is sent again.
    pub(in super::super) fn message_came_first(&self, id: u64) {
        if self.id() != id {
            return;
        }
        let link = self.try_inner().and_then(|inner| inner.link.clone());
        if let Some(link) = link {
            link.handle(CmEvent::CAME_FIRST);
        }
    }

    /// Fails the connection, if it is connected, because its port has gone down.
    pub(in super::super) fn fail_with_port(self: &Arc<Self>) {
        // The id is read before the state, since a reset makes another queue pair, which has no
        // peer.
        let id = self.id();
        if self.state() == EndpointState::Connected {
            self.fail_queue_pair(id, JobError::of(Reason::PortDown));
        }
    }

    /// Checks the time limits for the watcher. Returns after how long to check again, or `None` if
    /// there is nothing to check. If the state of the connection has changed, adds the call that
    /// notifies the application to `changed`. This happens only with a shared receive queue, and so
    /// on no device that the application lent: the call may hold the last handle of a queue.
    pub(super) fn tick(
        self: &Arc<Self>,
        now: Instant,
        changed: &mut Vec<Arc<dyn Fn() + Send + Sync>>,
    ) -> Option<Duration> {
        let Some(mut inner) = self.try_inner() else {
            return Some(LEAST);
        };
        if inner.state != EndpointState::Connected {
            return None;
        }
        let front = inner.sends.front();
        let front = front.map(|(token, (verb, len))| (token, verb, len));
        let probe = self.config.transport.probe_interval;
        if inner.timeouts.heard {
            inner.silent = None;
        }
        let look = inner
            .timeouts
            .check_oldest(now, front, &self.patience, probe);
        if let Some((waited, (token, verb, _))) = look.overdue.zip(front)
            && inner.overdue.is_none()
        {
            let reason = match takes_receive(verb) {
                true => Reason::NoReceive,
                false => Reason::PeerSilent,
            };
            let cause = JobError::endpoint(reason, status::millis(waited), 0);
            inner.overdue = Some((token, cause));
            // The completion may have arrived, and not have been polled yet. The reaper checks
            // that.
            self.request_check();
        }
        if let Some(silence) = look.silent.filter(|_| inner.silent.is_none()) {
            // The peer's answer may have come, and not have been polled yet. The reaper checks
            // that.
            let millis = status::millis(silence);
            inner.silent = Some(JobError::endpoint(Reason::PeerSilent, millis, 0));
            self.request_check();
        }
        let ours = inner.peer.is_some_and(|peer| !peer.origin.is_foreign());
        let mut again = look.again;
        let limit = (self.config.rnr_timeout / 4).max(LEAST);
        if let Some((soon, is_over)) = inner.pooled.as_mut().map(|it| it.check_credits(now, limit))
        {
            again = soon.map_or(again, |soon| soon.min(again));
            if is_over {
                let credits = self.config.recv_queue_size.into();
                let cause = JobError::endpoint(Reason::CreditsExceeded, credits, 0);
                if self.fail(&mut inner, cause) {
                    changed.push(Arc::clone(&self.config.changed));
                }
                return None;
            }
        }
        if look.idle && ours && inner.probes < PROBES && !inner.waits {
            self.probe(&mut inner);
        }
        Some(again)
    }
}
