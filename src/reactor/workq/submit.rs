//! The calls that submit jobs to a device: only this file hands memory to a device.
#![expect(
    unsafe_code,
    reason = "the Queue must be promised valid, leased memory, and pinned lists"
)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::full::{Full, LaunchError};
use super::notify::is_broken;
use super::shared::{Attachment, Shared};
use crate::device::{AsJob, Completion, CopyJob, Job, KeepAlive, Queue, Submitted, Token};
use crate::error::{ErrorKind, JobError};
use crate::mem::{Leased, Leases, OfJob};
use crate::reactor::slots::{JobLeases, Outcome, ReservedSlot, Target};
use crate::sync::{Order, WaitNode};

/// A job and its Leases, ready to be submitted.
pub(crate) struct Prepared<J> {
    job: J,
    /// `None` once the Leases were moved to a slot or given back.
    leases: Option<Leases>,
}

impl<J> Prepared<J> {
    #[inline(always)]
    pub(crate) fn new<L: OfJob>(begun: Leased<L, J>) -> Prepared<J> {
        let (leases, job) = begun.keep().into_parts();
        Prepared::of(job, leases)
    }

    #[inline(always)]
    fn of(job: J, leases: Leases) -> Prepared<J> {
        let leases = Some(leases);
        Prepared { job, leases }
    }

    /// Gives the Leases back, since the job must wait for a slot.
    #[cold]
    pub(in crate::reactor) fn give_back(&mut self) {
        drop(self.leases.take());
    }

    /// Takes the Leases, to be moved to a slot.
    #[inline(always)]
    fn hand_over(&mut self) -> Leases {
        self.leases.take().expect("a job is submitted once")
    }

    /// Returns a job for a loom model, without Leases: the model's device accesses no memory.
    #[cfg(all(test, tokio_doca_loom))]
    pub(in crate::reactor) fn modelled(job: J) -> Prepared<J> {
        Prepared::of(job, Leases::of(None, None))
    }
}

impl Attachment {
    /// Finishes a job inline, if the device can. An `ordered` job finishes inline only while no job
    /// of its context waits in line.
    #[inline(always)]
    pub(crate) fn finish_inline<L, J: AsJob>(
        &self,
        begun: &Leased<L, J>,
        ordered: bool,
    ) -> Option<Outcome> {
        if ordered && self.must_submit() {
            return None;
        }
        // SAFETY: a `Leased` holds the Leases of the job's memory and session, and lives during the
        // call.
        unsafe { self.to.try_inline(begun.job().as_job()) }
    }

    /// Returns true if no job of this ordered context may finish inline now.
    #[inline(always)]
    fn must_submit(&self) -> bool {
        !self.finishes_inline || self.order.as_ref().is_some_and(|order| !order.is_empty())
    }

    /// Finishes jobs of an ordered context inline, in order, and stops at the first job that the
    /// device cannot finish or that fails. Returns the outcomes. Finishes no job while another job
    /// of the context waits in line.
    pub(crate) fn finish_inline_all<'a, L: 'a, J: AsJob + 'a, const N: usize>(
        &self,
        begun: impl Iterator<Item = &'a Leased<L, J>>,
    ) -> ArrayVec<Outcome, N> {
        if self.must_submit() {
            return ArrayVec::new();
        }
        let jobs: ArrayVec<Job<'_>, N> = begun.map(|begun| begun.job().as_job()).collect();
        let mut outcomes = ArrayVec::from([Ok(0); N]);
        outcomes.truncate(jobs.len());
        // SAFETY: as in `finish_inline`, for each job; `outcomes` is as long as `jobs`.
        let finished = unsafe { self.to.try_inline_all(&jobs, &mut outcomes) };
        outcomes.truncate(finished);
        outcomes
    }

    /// Submits a job that uses the taken `slot`. If the device refuses the job, the slot is freed
    /// and the Leases are given back.
    #[inline(always)]
    pub(in crate::reactor) fn launch<J: AsJob>(
        &self,
        slot: ReservedSlot<'_>,
        prepared: &mut Prepared<J>,
        target: Option<Target>,
    ) -> Result<Token, LaunchError<'_>> {
        let held = JobLeases::new(prepared.hand_over(), self.index, J::written);
        // SAFETY: a Prepared is a job and its Leases, which `mem` has put together.
        unsafe { self.submit(slot, prepared.job.as_job(), held, target) }
    }

    /// Submits at most `N` jobs together, in order, as `launch` does. Adds the Tokens of the
    /// accepted jobs to `tokens`, which must be empty. If a job was not accepted, returns the
    /// reason.
    #[inline(always)]
    pub(in crate::reactor) fn launch_all<'a, 'j, J: AsJob + 'j, const N: usize>(
        &'a self,
        batch: impl Iterator<Item = (ReservedSlot<'a>, &'j mut Prepared<J>, Option<Target>)>,
        tokens: &mut ArrayVec<Token, N>,
    ) -> Option<LaunchError<'a>> {
        // Read before the device is asked: a later completion may have freed capacity.
        let completed = self.shared.counts.collected();
        let mut jobs = ArrayVec::<(Token, Job<'_>), N>::new();
        for (slot, prepared, target) in batch {
            assert!(slot.is_of(&self.shared.core.table) && !jobs.is_full());
            let held = JobLeases::new(prepared.hand_over(), self.index, J::written);
            jobs.push((slot.fill(held, target), prepared.job.as_job()));
        }
        if jobs.is_empty() {
            return None;
        }
        let submitted = match self.check_open() {
            // SAFETY: as in `submit`, for each job.
            Ok(()) => unsafe { self.to.submit(&jobs) },
            Err(error) => Submitted::none(error),
        };
        let (accepted, rest) = jobs.split_at(submitted.accepted.min(jobs.len()));
        tokens.extend(accepted.iter().map(|&(token, _)| token));
        let refused = submitted.refused;
        let error = refused.unwrap_or(JobError::device(ErrorKind::Unexpected, 0));
        let mut why = None;
        for &(token, _) in rest {
            // SAFETY: the slot was filled above. The device refused the job, so it never saw it
            // (duty 3).
            why.get_or_insert(unsafe { self.undo(token, error, completed) });
        }
        why
    }

    /// Fills a taken slot and submits its job to the device.
    ///
    /// # Safety
    ///
    /// `held` has the Leases of all memory that the job names, and the number of this queue.
    #[inline(always)]
    unsafe fn submit(
        &self,
        slot: ReservedSlot<'_>,
        job: Job<'_>,
        held: JobLeases,
        target: Option<Target>,
    ) -> Result<Token, LaunchError<'_>> {
        assert!(slot.is_of(&self.shared.core.table));
        // Read before the device is asked: a later completion may have freed capacity.
        let completed = self.shared.counts.collected();
        // The slot is filled before the device can see the job: the completion may come before
        // `submit` returns.
        let token = slot.fill(held, target);
        // The slot was taken by a SeqCst exchange. Pairs with `Shutdown`: either the shutdown sees
        // that the slot is taken, and waits, or this thread sees that the WorkQ is closed.
        if let Err(error) = self.check_open() {
            // SAFETY: the slot was filled above, and its job was given to no device.
            return Err(unsafe { self.undo(token, error, completed) });
        }
        // SAFETY: the slot holds the Leases of the job's memory, as the caller promises, and keeps
        // them until its completion is reaped, or until the device drops the table (`retire`). Each
        // slot holds one job, and the number of slots is the queue's depth. The completion comes
        // out of this context's queue.
        let submitted = unsafe { self.to.submit(&[(token, job)]) };
        if submitted.accepted > 0 {
            return Ok(token);
        }
        let refused = submitted.refused;
        let error = refused.unwrap_or(JobError::device(ErrorKind::Unexpected, 0));
        // SAFETY: the slot was filled above. The device refused the job, so it never saw it
        // (duty 3).
        Err(unsafe { self.undo(token, error, completed) })
    }

    /// Frees a slot that was filled and whose job no device has seen. Returns why the job was
    /// refused.
    ///
    /// # Safety
    ///
    /// As for `Table::undo`.
    #[cold]
    unsafe fn undo(&self, token: Token, error: JobError, completed: u64) -> LaunchError<'_> {
        let shared = &self.shared;
        // SAFETY: as the caller promises.
        unsafe { shared.core.table.undo(token) };
        let refused = if error.kind() == ErrorKind::Again {
            // The job counted as in flight until now, so a shutdown may have waited for it.
            shared.if_drained();
            LaunchError::Full(Full::new(shared, error, completed))
        } else {
            shared.after_free();
            LaunchError::Error(error)
        };
        if is_broken(error) {
            shared.log_broken();
        }
        refused
    }
}

impl Shared {
    /// Reaps completions of `queue`. The caller is in the gate.
    #[inline(always)]
    pub(super) fn reap_from(queue: &Arc<dyn Queue>, out: &mut [Completion], looks: usize) -> usize {
        // SAFETY: the gate lets in one thread at a time, and its exchanges order these threads; no
        // other code reaps the queue.
        let reaped = unsafe { queue.reap_within(out, looks) };
        // The number from a provider is checked: it cannot have filled more than `out` holds.
        reaped.min(out.len())
    }

    /// Puts an operation in line for a slot.
    pub(in crate::reactor) fn enqueue(
        &self,
        order: Option<&Arc<Order>>,
        node: Pin<&WaitNode>,
        waker: &Waker,
    ) {
        // SAFETY: Shared is in an Arc, which the JobFuture that has the node reaches through its
        // context, borrowed or owned, until after the node is dropped (field order in `JobFuture`,
        // and the borrow). A `RunWaiter` owns a handle, which is dropped after its nodes (field
        // order), and waits in line of that WorkQ alone.
        unsafe { self.waiters.enqueue_in(order, node, waker) };
    }

    /// Puts a stream in line for one of the slots that streams may hold.
    pub(in crate::reactor) fn enqueue_stream(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: a `StreamSlotWaiter` has the node, and owns a handle of the WorkQ that it is used
        // with, which is dropped after the node. The node is in no other line.
        unsafe { self.stream_slots.line.enqueue(node, waker) };
    }

    /// Puts a run that goes to sleep into the list `runs`, where `wake_all` finds it.
    pub(in crate::reactor) fn enqueue_run(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: a `RunWaiter` has the node, and owns a handle of the WorkQ that it is used with,
        // which is dropped after the node.
        unsafe { self.runs.enqueue(node, waker) };
    }

    /// Puts a future of `WorkQ::shutdown` into the list `drained`, to be woken when the last job
    /// has completed.
    pub(super) fn enqueue_drained(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: a `Shutdown` has the node, and owns a handle of the WorkQ, which is dropped after
        // the node.
        unsafe { self.drained.enqueue(node, waker) };
    }
}

/// Hands the slots to the devices, which keep them until their last job has completed.
impl Drop for Shared {
    fn drop(&mut self) {
        for (number, queue) in self.queues().enumerate() {
            // SAFETY: no handle, context or operation is left, and the devices only keep the table.
            let outstanding = unsafe { self.core.table.outstanding(number as u8) };
            let keep: KeepAlive = Arc::clone(&self.core) as KeepAlive;
            // SAFETY: no other code reaches the queue or the table, so the count is exact; `keep`
            // has the table, whose slots hold the Leases of these jobs.
            unsafe { queue.retire(keep, outstanding) };
        }
    }
}

/// A value larger than 128 bytes would be moved by a call of `memcpy`.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Prepared<CopyJob>>() <= 128);
