//! The effects of completions on an endpoint's Jobs and receives.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::sync::Arc;

use super::super::ffi::*;
use super::super::transport::{Failed, is_name, probe, status};
use super::rc::{Posted, RcConnection, RcInner};
use crate::device::{Arrival, Completion, EndpointState, Token, Verb};
use crate::error::{JobError, Reason};

impl RcConnection {
    /// Applies a completion to the connection, and passes the result to `give`. Returns true if the
    /// caller must notify the application of a change of state.
    #[inline(always)]
    pub(in super::super) fn completed(
        self: &Arc<Self>,
        wc: &Wc,
        give: impl FnOnce(Completion),
    ) -> bool {
        let inner = &mut *self.inner();
        inner.timeouts.heard |= wc.status == IBV_WC_SUCCESS && self.is_of_peer(wc);
        if wc.wr_id as u32 == u32::MAX {
            return wc.wr_id == probe(self.id()) && self.probed(inner, wc);
        }
        let token = Token::from_raw(wc.wr_id);
        if is_name(wc.wr_id) {
            return self.arrived(inner, wc);
        }
        if token.table() != 0 {
            return self.received(inner, token, wc, give);
        }
        let Some((verb, len)) = inner.sends.done(token) else {
            return false;
        };
        self.core.count();
        if verb == Verb::Read && !inner.sinks.remove(token) {
            give(Completion::new(token, Err(JobError::memory_kept())));
            return self.fail(inner, JobError::memory_kept());
        }
        if wc.status != IBV_WC_SUCCESS {
            return self.failed(inner, Failed::Job(verb, len), token, wc, give);
        }
        if !self.core.context.traits.iwarp {
            inner.probes = 0;
        }
        let answer = match verb {
            Verb::CompareSwap { .. } | Verb::FetchAdd(_) => self.core.answers.get(token.index()),
            // `byte_len` is not valid for all operations.
            _ => len as u64,
        };
        give(Completion::new(token, Ok(answer)));
        inner.sends.any_waits() && self.post_waiting(inner)
    }

    /// Returns true if a completion without an error proves that the peer is alive. On iWARP a send
    /// or write does not: it completes once the transport of this side has taken it.
    #[inline(always)]
    fn is_of_peer(&self, wc: &Wc) -> bool {
        !self.core.context.traits.iwarp || !matches!(wc.opcode, IBV_WC_SEND | IBV_WC_RDMA_WRITE)
    }

    /// Posts Jobs that waited for entries of the send queue. Like `completed`, returns true if the
    /// caller must notify the application.
    #[inline(never)]
    fn post_waiting(self: &Arc<Self>, inner: &mut RcInner) -> bool {
        if inner.state != EndpointState::Connected {
            return false;
        }
        // SAFETY: Jobs that wait were submitted, and have not completed.
        match unsafe { self.post(inner) } {
            Ok(()) => false,
            Err(refused) => self.fail_of(inner, refused.at, status::refusal(refused.errno)),
        }
    }

    #[inline(never)]
    fn received(
        self: &Arc<Self>,
        inner: &mut RcInner,
        token: Token,
        wc: &Wc,
        give: impl FnOnce(Completion),
    ) -> bool {
        if inner.receives.front().is_none_or(|it| it.token != token) {
            return false;
        }
        let Some(Posted { len: capacity, .. }) = inner.receives.pop_front() else {
            return false;
        };
        if wc.status != IBV_WC_SUCCESS {
            return self.failed(inner, Failed::Receive(capacity), token, wc, give);
        }
        let (arrival, len) = arrival(wc, capacity);
        give(Completion::received(token, arrival, len));
        inner.got = true;
        std::mem::take(&mut inner.waits) && self.post_waiting(inner)
    }

    #[cold]
    fn failed(
        self: &Arc<Self>,
        inner: &mut RcInner,
        what: Failed,
        token: Token,
        wc: &Wc,
        give: impl FnOnce(Completion),
    ) -> bool {
        let cause = status::cause(what, wc.status, wc.vendor_err, &self.patience);
        // A message that is too long for a receive is the failure of that receive; any other
        // failure is the connection's.
        let own = match what {
            Failed::Receive(_) => {
                cause.is_some_and(|cause| cause.reason() == Reason::ReceiveExceeded)
            }
            _ => true,
        };
        // The kernel flushes the queue pair of an attempt over iWARP that has failed. The event of
        // rdma_cm ends the attempt, and gives the reason.
        let by_cm = self.patience.iwarp && inner.connecting && cause.is_none();
        let news = !by_cm && self.fail(inner, cause.unwrap_or(self.patience.flushed()));
        let is_first = inner.first_failed == Some(token);
        let result = match (inner.state, cause) {
            (EndpointState::Error(first), _) if is_first => first,
            (EndpointState::Error(first), Some(cause)) if news && own && first == cause => cause,
            (EndpointState::Error(first), _) => JobError::flushed(first),
            _ if by_cm => JobError::flushed(self.patience.flushed()),
            _ => JobError::flushed(JobError::of(Reason::Reset)),
        };
        if !(inner.retired && token.table() != 0) {
            give(Completion::new(token, Err(result)));
        }
        news
    }

    #[cold]
    fn probed(self: &Arc<Self>, inner: &mut RcInner, wc: &Wc) -> bool {
        if wc.status == IBV_WC_SUCCESS {
            inner.probes = 0;
            return false;
        }
        let cause = status::cause(Failed::Probe, wc.status, wc.vendor_err, &self.patience);
        self.fail_later(inner, cause.unwrap_or(self.patience.flushed()))
    }
}

/// Returns the kind of the message in a receive of `capacity` bytes, and its length in bytes.
pub(super) fn arrival(wc: &Wc, capacity: usize) -> (Arrival, usize) {
    let with_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    let immediate = if with_imm {
        u32::from_be(wc.imm_data)
    } else {
        0
    };
    let len = wc.byte_len as usize;
    // The driver is not trusted, so the length is limited to that of the receive.
    match (wc.opcode, with_imm) {
        (IBV_WC_RECV_RDMA_WITH_IMM, _) => (Arrival::WriteImm(immediate), len),
        (_, true) => (Arrival::SendImm(immediate), len.min(capacity)),
        (_, false) => (Arrival::Send, len.min(capacity)),
    }
}
