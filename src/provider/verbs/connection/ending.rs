//! Ends a connection in two parts. Between them, the caller takes the connection's queue pair from
//! the adapter.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::local_endpoints;
use super::rc::{Dying, Posted, RcConnection, RcInner};
use crate::device::{Completion, EndpointState};
use crate::error::{JobError, Reason};

impl RcConnection {
    /// Begins to end the connection, so that nothing more is posted. The caller has polled all
    /// completions. It quiesces the returned queue pair, and then calls
    /// [`finish_end`](RcConnection::finish_end), which ends the remaining Jobs and receives.
    /// Completions of the queue pair belong to this connection until then.
    ///
    /// If the connection is ending already, returns the queue pair that was left to a thread that
    /// has not begun, or `None`.
    pub(in super::super) fn begin_end(&self, inner: &mut RcInner) -> Option<Dying> {
        if inner.dying {
            return inner.left.take();
        }
        inner.dying = true;
        local_endpoints::remove(&inner.origin);
        if !matches!(inner.state, EndpointState::Error(_)) {
            self.set_state(inner, EndpointState::Error(JobError::of(Reason::Reset)));
        }
        Some(Dying(inner.qp.take(), inner.link.take()))
    }

    /// Makes the connection usable again after a reset, in the state Init if it has a queue pair.
    pub(in super::super) fn begin_anew(&self, inner: &mut RcInner) {
        if std::mem::take(&mut inner.dying) && inner.qp.is_some() {
            self.set_state(inner, EndpointState::Init);
        }
    }

    /// Ends a copy of the connection that this process has inherited by fork: the state of the copy
    /// becomes Error.
    pub(in super::super) fn give_up(&self) {
        let kept = EndpointState::Error(JobError::memory_kept());
        self.set_state(&mut self.inner(), kept);
    }

    /// Returns true if the connection has begun to end, and has not ended.
    pub(in super::super) fn is_dying(&self) -> bool {
        self.inner().dying
    }

    /// Ends the remaining Jobs and receives of a queue pair that was `quiesced` or is in doubt. The
    /// caller has the lock under which completions are polled, and has polled all of them.
    pub(in super::super) fn finish_end(&self, inner: &mut RcInner, quiesced: bool) {
        if !quiesced {
            self.core.keep_for_ever(self.config.send_queue_size);
            self.core.keep_answers();
            // The queue pair may still use the shared receive queue.
            std::mem::forget(inner.pooled.as_ref().map(|it| Arc::clone(it.srq())));
            inner.doubt = true;
            if inner.state == EndpointState::Error(JobError::of(Reason::Reset)) {
                self.set_state(inner, EndpointState::Error(JobError::memory_kept()));
            }
        }
        let stuck = inner.sinks.clear();
        if !stuck.is_empty() {
            self.core.keep_jobs();
        }
        let (cause, flushed) = match inner.state {
            _ if inner.doubt => (JobError::memory_kept(), JobError::memory_kept()),
            EndpointState::Error(cause) => (cause, JobError::flushed(cause)),
            _ => {
                let cause = JobError::of(Reason::Reset);
                (cause, JobError::flushed(cause))
            }
        };
        let first_failed = inner.first_failed.take();
        for token in inner.sends.take_all() {
            let error = match token {
                _ if stuck.contains(&token) => JobError::memory_kept(),
                _ if first_failed == Some(token) => cause,
                _ => flushed,
            };
            self.core.finish(Completion::new(token, Err(error)));
        }
        for Posted { token, .. } in inner.receives.drain(..) {
            if !inner.retired {
                self.core.finish(Completion::new(token, Err(flushed)));
            }
        }
        inner.pooled = None;
        inner.peer = None;
        inner.probes = 0;
    }

    /// Begins to end a connection whose handle was dropped, as `begin_end` does.
    pub(in super::super) fn retire(&self, inner: &mut RcInner) -> Option<Dying> {
        let dying = self.begin_end(inner)?;
        inner.retired = true;
        self.id.store(0, SeqCst);
        Some(dying)
    }

    /// Returns true if the adapter can no longer touch any memory of the connection.
    pub(in super::super) fn has_ended(&self) -> bool {
        !self.inner().doubt
    }
}
