//! The calls to the device: the one place where memory is handed over.
#![expect(
    unsafe_code,
    reason = "the Queue must be promised valid, leased memory, and pinned lists"
)]

use std::pin::Pin;
use std::task::Waker;

use super::flight::Prepared;
use super::slot::Outcome;
use super::workq::{Attachment, Shared};
use crate::device::{Job, Token};
use crate::error::{ErrorKind, JobError};
use crate::sync::WaitNode;

impl Attachment {
    /// Finishes a Job now, if the device can. The caller holds the Leases of its memory.
    #[inline(always)]
    pub(crate) fn finish_inline(&self, job: &Job) -> Option<Outcome> {
        // SAFETY: Jobs are made from Leases alone (`mem::begin`), which the callers hold during the call.
        unsafe { self.queue.try_inline(job) }
    }

    /// Makes a taken Slot pending and gives its Job to the device. If that refuses, the Slot is free again and the
    /// Leases have gone back.
    #[inline]
    pub(super) fn launch(&self, index: u32, prepared: Prepared) -> Result<Token, JobError> {
        let Prepared { job, held } = prepared;
        let table = &self.shared.core.table;
        // Pending before the device can see the Job: its completion may come before `submit` returns.
        let token = table.fill(index, held, None);
        // SAFETY: the Slot holds the Leases of the Job's memory, and keeps them until its completion is reaped, or
        // until the device drops the table (`retire`). A Slot is one Job, and there are as many as the queue's depth.
        let submitted = unsafe { self.queue.submit(&[(token, job)]) };
        if submitted.accepted > 0 {
            return Ok(token);
        }
        drop(table.slot(token).undo());
        table.free().put(index);
        self.shared.after_free();
        Err(submitted
            .refused
            .unwrap_or(JobError::device(ErrorKind::Unexpected, 0)))
    }
}

impl Shared {
    /// Stands in line for a Slot.
    pub(super) fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: Shared is in an Arc, which the Flight that has the node reaches through its context, borrowed or
        // owned, until after the node is dropped (field order in `Flight`, and the borrow).
        unsafe { self.waiters.enqueue(node, waker) };
    }

    /// Stands in line for the end of the last Job.
    pub(super) fn enqueue_drained(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: as above: `Shutdown` owns a handle, and its node is dropped first.
        unsafe { self.drained.enqueue(node, waker) };
    }
}
