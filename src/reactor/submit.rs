//! The calls to the device: the one place where memory is handed over.
#![expect(
    unsafe_code,
    reason = "the Queue must be promised valid, leased memory, and pinned lists"
)]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::flight::Prepared;
use super::full::{Full, Refused};
use super::held::Outcome;
use super::table::Taken;
use super::target::Target;
use super::workq::{Attachment, Shared};
use crate::device::{
    AccelJob, Completion, EventJob, Job, Keep, Queue, RdmaJob, ShaJob, Submitted, Token,
};
use crate::error::{ErrorKind, JobError};
use crate::mem::Leased;
use crate::sync::atomic::fence;
use crate::sync::{Order, WaitNode};

/// What a Slot submits.
pub(crate) enum Work {
    Job(Job),
    Accel(AccelJob),
    Sha(ShaJob),
    /// Of the context's endpoint. That is not here: what a Slot submits is moved, and by more than 128 bytes with a call.
    Rdma(RdmaJob),
    /// Of the context's sync event.
    Event(EventJob),
}

impl From<Job> for Work {
    #[inline(always)]
    fn from(job: Job) -> Work {
        Work::Job(job)
    }
}

impl From<AccelJob> for Work {
    fn from(job: AccelJob) -> Work {
        Work::Accel(job)
    }
}

impl From<ShaJob> for Work {
    fn from(job: ShaJob) -> Work {
        Work::Sha(job)
    }
}

impl From<RdmaJob> for Work {
    #[inline(always)]
    fn from(job: RdmaJob) -> Work {
        Work::Rdma(job)
    }
}

impl From<EventJob> for Work {
    #[inline(always)]
    fn from(job: EventJob) -> Work {
        Work::Event(job)
    }
}

impl Attachment {
    /// Finishes a job now, if the device can.
    #[inline(always)]
    pub(crate) fn finish_inline<L>(&self, begun: &Leased<L, Job>) -> Option<Outcome> {
        // SAFETY: what `mem` has begun holds the Leases of its memory, here during the call.
        unsafe { self.queue.try_inline(begun.job()) }
    }

    /// Finishes a hash now, if the device can.
    pub(crate) fn hash_inline<L>(&self, begun: &Leased<L, ShaJob>) -> Option<Outcome> {
        // SAFETY: as above; the session's Lease is among them.
        unsafe { self.queue.try_inline_sha(begun.job()) }
    }

    /// Makes a taken Slot pending and gives its Job to the device. If that refuses, the Slot is free again and the
    /// Leases have gone back.
    #[inline]
    pub(super) fn launch(
        &self,
        slot: Taken<'_>,
        prepared: Prepared,
        target: Option<Target>,
    ) -> Result<Token, Refused<'_>> {
        let Prepared { job, held } = prepared;
        assert!(slot.is_of(&self.shared.core.table));
        // Before the device is asked: a later completion may have made room.
        let completed = self.shared.counts.collected();
        // Pending before the device can see the Job: its completion may come before `submit` returns.
        let token = slot.fill(held, target);
        // Pairs with the fence of `Shutdown`: either it sees this Slot, or this sees that the WorkQ is closed.
        fence(Ordering::SeqCst);
        if let Err(error) = self.check_open() {
            // SAFETY: filled above, and given to no device.
            return Err(unsafe { self.undo(token, error, completed) });
        }
        let submitted = match job {
            // SAFETY: the Slot holds the Leases of the Job's memory, and keeps them until its completion is reaped, or
            // until the device drops the table (`retire`). A Slot is one Job, and there are as many as the queue's depth.
            Work::Job(job) => unsafe { self.queue.submit(&[(token, job)]) },
            // SAFETY: as above.
            Work::Accel(job) => unsafe { self.queue.submit_accel(&[(token, job)]) },
            // SAFETY: as above; the Slot holds the session's Lease too.
            Work::Sha(job) => unsafe { self.queue.submit_sha(&[(token, job)]) },
            Work::Rdma(job) => match self.endpoint.get() {
                // SAFETY: as for a copy: the endpoint's completions come out of this queue.
                Some(endpoint) => unsafe { endpoint.submit(&[(token, job)]) },
                None => Submitted::none(JobError::device(ErrorKind::NotSupported, 0)),
            },
            Work::Event(job) => match self.event.get() {
                Some(port) => port.submit(&[(token, job)]),
                None => Submitted::none(JobError::device(ErrorKind::NotSupported, 0)),
            },
        };
        if submitted.accepted > 0 {
            return Ok(token);
        }
        let refused = submitted.refused;
        let error = refused.unwrap_or(JobError::device(ErrorKind::Unexpected, 0));
        // SAFETY: filled above, and the device refused the Job: it never saw it (duty 3).
        Err(unsafe { self.undo(token, error, completed) })
    }

    /// A Slot that was filled, and whose Job no device has seen, is free again.
    ///
    /// # Safety
    ///
    /// As for `Table::undo`.
    #[cold]
    unsafe fn undo(&self, token: Token, error: JobError, completed: u64) -> Refused<'_> {
        let shared = &self.shared;
        // SAFETY: as the caller promises.
        unsafe { shared.core.table.undo(token) };
        if error.kind() == ErrorKind::Again {
            // The job counted as in flight.
            shared.if_drained();
            Refused::Full(Full::new(shared, error, completed))
        } else {
            shared.after_free();
            Refused::Error(error)
        }
    }
}

impl Shared {
    /// Reaps. The caller is in the gate.
    pub(super) fn reap_from(queue: &Arc<dyn Queue>, out: &mut [Completion]) -> usize {
        // SAFETY: the gate lets in one at a time, and its exchanges order one after the other; nobody else has the queue.
        unsafe { queue.reap(out) }
    }

    /// Stands in line for a Slot.
    pub(super) fn enqueue(&self, order: Option<&Arc<Order>>, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: Shared is in an Arc, which the Flight that has the node reaches through its context, borrowed or
        // owned, until after the node is dropped (field order in `Flight`, and the borrow). A `Line`
        // owns a handle, which is dropped after its nodes (field order), and stands in line of that
        // WorkQ alone.
        unsafe { self.waiters.enqueue_in(order, node, waker) };
    }

    /// Puts a run that goes to sleep where a nudge finds it.
    pub(super) fn enqueue_run(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: a `Line` has the node, and owns a handle of the WorkQ that it is used with, which is
        // dropped after the node.
        unsafe { self.runs.enqueue(node, waker) };
    }

    /// Stands in line for the end of the last Job.
    pub(super) fn enqueue_drained(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: as above: `Shutdown` owns a handle, and its node is dropped first.
        unsafe { self.drained.enqueue(node, waker) };
    }
}

/// Leaves the Slots to the devices.
impl Drop for Shared {
    fn drop(&mut self) {
        for (number, queue) in self.queues().enumerate() {
            // SAFETY: no handle, context or Op is left, and the devices only keep the table.
            let outstanding = unsafe { self.core.table.outstanding(number as u8) };
            let keep: Keep = Arc::clone(&self.core) as Keep;
            // SAFETY: nobody else reaches queue or table, so that the count is exact; `keep` is the
            // table, whose Slots hold the Leases of those Jobs.
            unsafe { queue.retire(keep, outstanding) };
        }
    }
}

/// What is moved by more than this is moved by a call.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Prepared>() <= 128);
