//! Messages of a connection that receives from a shared queue. They wait until they are taken.
#![expect(unsafe_code, reason = "copies messages to memory that was lent")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::ffi::{IBV_WC_SUCCESS, Wc};
use super::super::transport::{Core, Failed, Srq, status};
use super::outcome::arrival;
use super::rc::{RcConnection, RcInner};
use super::timeouts::LEAST;
use crate::device::{Arrival, EndpointConfig, EndpointState, Segments};
use crate::error::{JobError, Reason, Result};

/// A connection's part of a shared receive queue.
pub(in super::super) struct Pooled {
    srq: Arc<Srq>,
    credits: u32,
    /// The messages that wait, the oldest first.
    messages: VecDeque<Message>,
    /// True if the application is notified of the next message: a caller has found none, or none
    /// has come yet.
    notifies: bool,
    /// Set if the connection has ended: the cause with which it fails once its messages were taken.
    ending: Option<JobError>,
    /// The number of messages that were taken.
    taken: u64,
    /// The time since which the connection has exceeded its credits while no receive was left for
    /// others, and the value of `taken` at that time.
    exceeded: Option<(Instant, u64)>,
}

struct Message {
    /// The number of the receive that holds the message.
    number: u32,
    arrival: Arrival,
    len: usize,
}

impl Pooled {
    /// Joins a shared receive queue, if the connection has a pool.
    pub(super) fn join(core: &Core, config: &EndpointConfig) -> Result<Option<Pooled>> {
        let Some(capacity) = config.pooled_len else {
            return Ok(None);
        };
        let credits = config.recv_queue_size;
        Ok(Some(Pooled {
            srq: core.srq(capacity, credits)?,
            credits,
            messages: VecDeque::with_capacity(credits as usize),
            notifies: true,
            ending: None,
            taken: 0,
            exceeded: None,
        }))
    }

    pub(super) fn srq(&self) -> &Arc<Srq> {
        &self.srq
    }

    pub(super) fn ending(&self) -> Option<JobError> {
        self.ending
    }

    /// Ends the connection later, with `cause`, if there are messages to be taken first. Returns
    /// false if there are none.
    pub(super) fn end_later(&mut self, cause: JobError) -> bool {
        if self.messages.is_empty() {
            return false;
        }
        self.ending.get_or_insert(cause);
        true
    }

    /// Checks whether the connection keeps other connections from their credits: it has more
    /// messages than its own credits, no receive is left, and its messages are not taken. Returns
    /// after how long to check again, and true if this state has lasted for `limit`.
    pub(super) fn check_credits(
        &mut self,
        now: Instant,
        limit: Duration,
    ) -> (Option<Duration>, bool) {
        if self.messages.len() <= self.credits as usize || !self.srq.is_drained() {
            self.exceeded = None;
            return (None, false);
        }
        let since = match self.exceeded {
            Some((since, taken)) if taken == self.taken => since,
            _ => now,
        };
        self.exceeded = Some((since, self.taken));
        let waited = now.saturating_duration_since(since);
        (Some((limit / 2).max(LEAST)), waited >= limit)
    }
}

impl Drop for Pooled {
    /// Gives the receives back, with the messages that were not taken. The queue pair is gone.
    fn drop(&mut self) {
        let untaken = self.messages.drain(..).map(|it| it.number);
        self.srq.leave(self.credits, untaken);
    }
}

impl RcConnection {
    pub(in super::super) fn is_pooled(&self) -> bool {
        self.config.pooled_len.is_some()
    }

    pub(in super::super) fn has_message(&self) -> bool {
        let mut inner = self.inner();
        let is_error = matches!(inner.state, EndpointState::Error(_));
        let Some(pooled) = inner.pooled.as_mut().filter(|_| !is_error) else {
            return false;
        };
        pooled.notifies = pooled.messages.is_empty();
        !pooled.notifies
    }

    /// Copies the oldest message to `dst`, which has `capacity` bytes.
    ///
    /// # Safety
    ///
    /// As for `Endpoint::take_message`.
    pub(in super::super) unsafe fn take_message(
        self: &Arc<Self>,
        dst: &Segments,
        capacity: usize,
    ) -> Result<Option<(Arrival, usize)>, JobError> {
        let mut inner = self.inner();
        let is_error = matches!(inner.state, EndpointState::Error(_));
        let Some(pooled) = inner.pooled.as_mut().filter(|_| !is_error) else {
            return Ok(None);
        };
        let Some(oldest) = pooled.messages.front() else {
            return Ok(None);
        };
        let has_data = !matches!(oldest.arrival, Arrival::WriteImm(_));
        if has_data && oldest.len > capacity {
            let (len, capacity) = (oldest.len as u64, capacity as u64);
            return Err(JobError::new(Reason::ReceiveTooSmall, len, capacity));
        }
        let message = pooled.messages.pop_front();
        let srq = Arc::clone(&pooled.srq);
        pooled.taken += 1;
        let ended = pooled.ending.filter(|_| pooled.messages.is_empty());
        let tell = ended.is_some_and(|cause| self.fail(&mut inner, cause));
        // Other threads can use the connection during the copy.
        drop(inner);
        let taken = message.map(
            |Message {
                 number,
                 arrival,
                 len,
             }| {
                if has_data {
                    // SAFETY: once the receive has left `messages`, only this function uses it. The
                    // caller promises that `dst` is valid, and has `capacity` bytes.
                    unsafe { srq.copy(number, len, dst) };
                }
                srq.give_back([number]);
                (arrival, len)
            },
        );
        if tell {
            self.notify();
        }
        Ok(taken)
    }

    /// Handles the end of a receive of a shared queue. Returns true if the caller must notify the
    /// application, as `completed` does.
    #[inline(never)]
    pub(super) fn arrived(self: &Arc<Self>, inner: &mut RcInner, wc: &Wc) -> bool {
        let is_error = matches!(inner.state, EndpointState::Error(_));
        let Some(pooled) = inner.pooled.as_mut().filter(|it| it.srq.has(wc.wr_id)) else {
            self.core.stray(wc.wr_id);
            return false;
        };
        let Some(number) = pooled.srq.ended(wc.wr_id) else {
            return false;
        };
        let capacity = pooled.srq.capacity();
        if wc.status != IBV_WC_SUCCESS || is_error {
            pooled.srq.give_back([number]);
            if is_error {
                return false;
            }
            return match status::cause(
                Failed::Receive(capacity),
                wc.status,
                wc.vendor_err,
                &self.patience,
            ) {
                Some(cause) => self.fail(inner, cause),
                None => self.fail_later(inner, self.patience.flushed()),
            };
        }
        let (arrival, len) = arrival(wc, capacity);
        pooled.messages.push_back(Message {
            number,
            arrival,
            len,
        });
        std::mem::take(&mut pooled.notifies)
    }

    /// Fails the connection for a cause other than a Job of this side, once the messages that have
    /// come were taken. The caller has polled all completions. Returns true as `fail` does.
    pub(super) fn fail_later(self: &Arc<Self>, inner: &mut RcInner, cause: JobError) -> bool {
        let later = |pooled: &mut Pooled| pooled.end_later(cause);
        let connected = inner.state == EndpointState::Connected;
        match connected && inner.pooled.as_mut().is_some_and(later) {
            true => false,
            false => self.fail(inner, cause),
        }
    }
}
