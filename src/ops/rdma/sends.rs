//! Sends that need no poll once they were accepted: those of a stream of bytes, and those of a sink
//! ([`super::sink`], which has its own rules for what it accepts).
//!
//! Invariant: a send that was accepted belongs to the device. It waits in no line, and the thread
//! that reaps frees its slot and counts it as ended. So whatever a stream has accepted continues,
//! and delays no other task, although the tasks of the stream do something else.

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

/// The sends of one stream.
pub(crate) struct Sends {
    /// Waits for one of the Slots that streams may hold, and then for a free one.
    share: Pin<Box<StreamSlotWaiter>>,
    line: Pin<Box<RunWaiter>>,
    ends: Arc<Ends>,
    rdma: Rdma,
    /// Sends that a device has, or whose ends were not taken.
    in_flight: usize,
    /// Sends that were accepted, and of them those that the device finished inline.
    accepted: u32,
    inline: u32,
}

/// What has ended of the sends of one task.
pub(super) struct Ends {
    /// Since they were taken last.
    ended: AtomicU32,
    /// The number of sends that have succeeded, modulo 2^32.
    succeeded: AtomicU32,
    /// Why the first one failed that did.
    error: OnceLock<JobError>,
    waker: AtomicWaker,
    is_stream: bool,
}

impl Ends {
    /// `is_stream`: each of the sends has one of the Slots that streams of bytes may hold.
    pub(super) fn new(is_stream: bool) -> Arc<Ends> {
        Arc::new(Ends {
            ended: AtomicU32::new(0),
            succeeded: AtomicU32::new(0),
            error: OnceLock::new(),
            waker: AtomicWaker::new(),
            is_stream,
        })
    }

    /// Returns how many have ended since the last call.
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

    /// Returns how many are on their way.
    pub(crate) fn in_flight(&mut self) -> usize {
        self.in_flight -= self.ends.take();
        self.in_flight
    }

    /// Returns how many sends were accepted so far, modulo 2^32.
    pub(crate) fn accepted(&self) -> u32 {
        self.accepted
    }

    /// Returns true if the peer has the first `first` of the accepted sends. Sends end in order, so
    /// that those that succeed are the first ones.
    pub(crate) fn has_delivered(&self, first: u32) -> bool {
        let succeeded = self.ends.succeeded();
        succeeded.wrapping_add(self.inline).wrapping_sub(first) as i32 >= 0
    }

    /// Returns why one of them failed.
    pub(crate) fn error(&self) -> Option<JobError> {
        self.ends.error()
    }

    /// Sends a message now, inline or by a free Slot; false if there is none.
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

    /// Sends a message of these pieces now, inline and without a Buf; false if that cannot be done.
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

    /// Sends a message, or waits in line for a Slot. `message` makes it once it can be sent, and is
    /// asked again later if this is pending.
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
        // The stream keeps no Slot without a job after this call, since it may not be polled for
        // long.
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
            // Another stream was faster, while this one waited in line for a free Slot.
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

    /// A send was submitted: its end must notify the stream, whichever task polls.
    fn launched(&mut self) {
        self.in_flight += 1;
        self.accepted = self.accepted.wrapping_add(1);
        RunWaiter::attend(self.rdma.attachment());
    }

    /// Waits until a send has ended. Meanwhile it polls for the whole WorkQ, as the mode demands.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let line = self.line.as_mut();
        line.poll_ends(cx, &mut false, &*self.ends)
    }

    /// Returns true if the ends of sends notify the task that polls now.
    pub(crate) fn is_notified_here(&self) -> bool {
        RunWaiter::is_notified_here(self.rdma.attachment())
    }

    /// Returns true if a send waits in line.
    pub(crate) fn is_in_line(&self) -> bool {
        self.line.is_in_line() || self.share.is_in_line()
    }

    /// Takes a send that was not accepted out of the line.
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
