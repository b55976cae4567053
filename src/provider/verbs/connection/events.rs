//! What the watcher does with a connection: it reports the adapter's events, and the time.
//!
//! It never waits for a connection's lock, whose holder may be waiting for the watcher
//! (`Context::destroy`).

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
    /// The lock of `inner`, if it is free.
    fn try_inner(&self) -> Option<BriefGuard<'_, RcInner>> {
        try_lock(&self.inner)
    }

    /// It has failed, with its device. Who has the lock may be destroying a queue pair, and wait
    /// until whoever calls this has heard that the device is gone: whoever reaps next fails this
    /// one too.
    pub(in super::super) fn fail_now(self: &Arc<Self>, cause: JobError) {
        let Some(mut inner) = self.try_inner() else {
            return;
        };
        let tell = self.fail(&mut inner, cause);
        drop(inner);
        if tell {
            self.tell();
        }
    }

    /// Its queue pair has failed, if it is still the one with this id. As for `fail_now`.
    pub(in super::super) fn fail_queue_pair(self: &Arc<Self>, id: u64, cause: JobError) {
        if self.id() != id {
            return;
        }
        // Messages that came before it are found by who reaps.
        let inner = self.try_inner().filter(|_| !self.is_pooled());
        let Some(mut inner) = inner else {
            let mut failed = lock(&self.failed);
            if failed.is_none_or(|(first, _)| first != id) {
                *failed = Some((id, cause));
            }
            drop(failed);
            self.look_after();
            return;
        };
        let tell = self.id() == id && self.fail(&mut inner, cause);
        drop(inner);
        if tell {
            self.tell();
        }
    }

    /// A message has come before the peer has said that it is ready, which rdma_cm is notified: the
    /// peer's word may be lost. If somebody has the lock, the word is sent again.
    pub(in super::super) fn message_came_first(&self, id: u64) {
        if self.id() != id {
            return;
        }
        let link = self.try_inner().and_then(|inner| inner.link.clone());
        if let Some(link) = link {
            link.handle(CmEvent::CAME_FIRST);
        }
    }

    /// Its port has gone down: it has failed, if it was connected.
    pub(in super::super) fn fail_with_port(self: &Arc<Self>) {
        // Before the state: a reset makes another queue pair, which has no peer.
        let id = self.id();
        if self.state() == EndpointState::Connected {
            self.fail_queue_pair(id, JobError::of(Reason::PortDown));
        }
    }

    /// Looks at the time, for the watcher; whether there is more to look at. If its state has
    /// changed, `changed` gets the call that says so. (Only with a shared receive queue, which no
    /// device has that the application lent: such a call may hold the last handle of a queue.)
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
        let look = inner.timeouts.look(now, front, &self.patience, probe);
        if let Some((waited, (token, verb, _))) = look.overdue.zip(front)
            && inner.overdue.is_none()
        {
            let reason = match takes_receive(verb) {
                true => Reason::NoReceive,
                false => Reason::PeerSilent,
            };
            let cause = JobError::endpoint(reason, status::millis(waited), 0);
            inner.overdue = Some((token, cause));
            // It may have arrived, and nobody has looked since: who reaps knows.
            self.look_after();
        }
        if let Some(silence) = look.silent.filter(|_| inner.silent.is_none()) {
            // As above: the answer may have come.
            let millis = status::millis(silence);
            inner.silent = Some(JobError::endpoint(Reason::PeerSilent, millis, 0));
            self.look_after();
        }
        let ours = inner.peer.is_some_and(|peer| !peer.origin.is_foreign());
        let mut again = look.again;
        let limit = (self.config.rnr_timeout / 4).max(LEAST);
        if let Some((soon, is_over)) = inner.pooled.as_mut().map(|it| it.look(now, limit)) {
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
