//! Sends that need no poll once they were accepted, for streams of bytes and for sinks
//! ([`super::sink`], which accepts messages by its own rules).
//!
//! Invariant: a send that was accepted belongs to the device, and waits in no line. The thread that
//! reaps its completion frees its slot and counts it as ended. So the sends that a stream has
//! accepted continue, and delay no other task, while the tasks of the stream do something else.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};

use futures::task::AtomicWaker;

use super::Rdma;
use super::request::RdmaRequest;
use crate::device::Verb;
use crate::error::{JobError, Reason};
use crate::mem::Buf;
use crate::ops::op::{Request, prepare};
use crate::reactor::{Completions, Outcome, Prepared, Run, RunWaiter, StreamSlotWaiter, budget};
use crate::sync::wake;

/// The sends of one stream of bytes.
pub(crate) struct Sends {
    /// The wait until streams may hold one more Slot. After it, `line` waits for a free Slot.
    share: Pin<Box<StreamSlotWaiter>>,
    line: Pin<Box<RunWaiter>>,
    ends: Arc<Ends>,
    rdma: Rdma,
    /// The number of sends that a device has, or whose ends were not taken.
    in_flight: usize,
    /// The number of sends that were accepted, modulo 2^32. `inline` counts those of them that the
    /// device finished inline.
    accepted: u32,
    inline: u32,
}

/// Counts of the completed sends of one stream or sink, and the waker of its task.
pub(super) struct Ends {
    /// The number of sends that have ended since the last [`take`](Ends::take).
    ended: AtomicU32,
    /// The number of sends that have succeeded, modulo 2^32.
    succeeded: AtomicU32,
    /// The error of the first send that failed.
    error: OnceLock<JobError>,
    waker: AtomicWaker,
    is_stream: bool,
}

impl Ends {
    /// Returns counts of 0. `is_stream` is true for a stream of bytes: each send then takes a Slot
    /// of the streams' share.
    pub(super) fn new(is_stream: bool) -> Arc<Ends> {
        Arc::new(Ends {
            ended: AtomicU32::new(0),
            succeeded: AtomicU32::new(0),
            error: OnceLock::new(),
            waker: AtomicWaker::new(),
            is_stream,
        })
    }

    /// Returns how many sends have ended since the last call.
    pub(super) fn take(&self) -> usize {
        self.ended.swap(0, Ordering::Acquire) as usize
    }

    pub(super) fn succeeded(&self) -> u32 {
        self.succeeded.load(Ordering::Acquire)
    }

    pub(super) fn error(&self) -> Option<JobError> {
        self.error.get().copied()
    }
}

impl Run for Ends {
    fn completed(&self, _send: u32, outcome: Outcome) {
        match outcome {
            Ok(_) => _ = self.succeeded.fetch_add(1, Ordering::Release),
            Err(error) => _ = self.error.set(error),
        }
        self.ended.fetch_add(1, Ordering::Release);
        self.waker.take().into_iter().for_each(wake);
    }

    fn is_stream(&self) -> bool {
        self.is_stream
    }
}

impl Completions for Ends {
    fn any(&self) -> bool {
        self.ended.load(Ordering::Acquire) > 0
    }

    fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }
}

fn request<'a>(rdma: &'a Rdma, message: &'a Buf) -> RdmaRequest<&'a Rdma, &'a Buf, ()> {
    RdmaRequest::new(rdma, Verb::Send(None), message, ())
}

impl Sends {
    pub(crate) fn new(rdma: &Rdma) -> Sends {
        Sends {
            share: Box::pin(StreamSlotWaiter::new(rdma.workq())),
            line: Box::pin(RunWaiter::new(rdma.workq())),
            ends: Ends::new(true),
            rdma: rdma.clone(),
            in_flight: 0,
            accepted: 0,
            inline: 0,
        }
    }

    /// Returns how many sends are on their way.
    pub(crate) fn in_flight(&mut self) -> usize {
        self.in_flight -= self.ends.take();
        self.in_flight
    }

    /// Returns how many sends were accepted so far, modulo 2^32.
    pub(crate) fn accepted(&self) -> u32 {
        self.accepted
    }

    /// Returns true if the peer has the first `first` accepted sends. Sends end in order, so that
    /// the sends that succeed come before those that fail.
    pub(crate) fn has_delivered(&self, first: u32) -> bool {
        let succeeded = self.ends.succeeded();
        succeeded.wrapping_add(self.inline).wrapping_sub(first) as i32 >= 0
    }

    /// Returns the error of the first send that failed, if any did.
    pub(crate) fn error(&self) -> Option<JobError> {
        self.ends.error()
    }

    /// Sends a message now, inline or with a free Slot. Returns false if there is no free Slot.
    pub(crate) fn try_send(&mut self, message: &Buf) -> Result<bool, JobError> {
        let request = request(&self.rdma, message);
        let begun = request.begin()?;
        if let Some(outcome) = request.finish_inline(&begun) {
            budget::spent(begun.end(&outcome));
            outcome?;
            self.finished_inline();
            return Ok(true);
        }
        let (at, run) = (self.rdma.attachment(), self.ends.clone());
        let Some(slot) = at.take_stream_slot(false) else {
            return Ok(false);
        };
        let launched = RunWaiter::launch(at, &mut false, Prepared::new(begun), run, 0)?;
        if launched {
            slot.submitted();
            self.launched();
        }
        Ok(launched)
    }

    /// Sends a message of `pieces` now, inline and without a Buf. Returns false if that cannot be
    /// done.
    pub(crate) fn try_send_bytes(&mut self, pieces: &[&[u8]]) -> Result<bool, JobError> {
        if self.is_in_line() {
            return Ok(false);
        }
        let Some(sent) = self.rdma.port().send_bytes(pieces) else {
            return Ok(false);
        };
        budget::spent(pieces.iter().map(|piece| piece.len()).sum());
        sent?;
        self.finished_inline();
        Ok(true)
    }

    fn finished_inline(&mut self) {
        self.accepted = self.accepted.wrapping_add(1);
        self.inline = self.inline.wrapping_add(1);
    }

    /// Sends a message, or waits in line for a Slot. `message` returns the message, and is called
    /// again in later polls if this is pending.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        message: impl Fn() -> Result<Buf, JobError>,
    ) -> Poll<Result<(), JobError>> {
        if !self.is_in_line() && self.try_send(&message()?)? {
            return Poll::Ready(Ok(()));
        }
        let run: Arc<dyn Run> = self.ends.clone();
        let (rdma, at) = (&self.rdma, self.rdma.attachment());
        // A Slot without a job is released when this call returns, since the stream may not be
        // polled for a long time.
        let (slot, late) = (Cell::new(None), Cell::new(false));
        let prepare = || {
            let Some(taken) = slot.take().or_else(|| at.take_stream_slot(true)) else {
                late.set(true);
                return Err(JobError::of(Reason::PoolEmpty));
            };
            slot.set(Some(taken));
            prepare(&request(rdma, &message()?))
        };
        loop {
            if !self.line.is_in_line() {
                ready!(self.share.as_mut().poll(cx, at))?;
            }
            let sent = self.line.as_mut().poll_launch(cx, at, &run, 0, &prepare);
            // Another stream has taken the last Slot of the streams' share while this one waited in
            // line for a free Slot, so try again.
            if late.replace(false) {
                continue;
            }
            if let (Poll::Ready(Ok(())), Some(slot)) = (&sent, slot.take()) {
                slot.submitted();
                break;
            }
            return sent;
        }
        drop(slot);
        self.launched();
        Poll::Ready(Ok(()))
    }

    /// Counts a send that was submitted. Its end must notify the stream, whichever task polls.
    fn launched(&mut self) {
        self.in_flight += 1;
        self.accepted = self.accepted.wrapping_add(1);
        RunWaiter::attend(self.rdma.attachment());
    }

    /// Waits until a send has ended. Meanwhile the task polls for the whole WorkQ, if the mode
    /// demands it.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let line = self.line.as_mut();
        line.poll_ends(cx, &mut false, &*self.ends)
    }

    /// Returns true if a task that waits on this thread notices that sends have ended.
    pub(crate) fn is_notified_here(&self) -> bool {
        RunWaiter::is_notified_here(self.rdma.attachment())
    }

    /// Returns true if a send waits in line for a Slot.
    pub(crate) fn is_in_line(&self) -> bool {
        self.line.is_in_line() || self.share.is_in_line()
    }

    /// Removes the send that waits in line, if there is one. It was not accepted.
    pub(crate) fn leave(&mut self) {
        self.share.as_mut().leave();
        self.line.as_mut().leave();
    }
}

impl Drop for Sends {
    fn drop(&mut self) {
        if self.in_flight() > 0 {
            self.line.as_mut().abandon();
        }
    }
}
