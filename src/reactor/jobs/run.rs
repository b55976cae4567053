//! How a run of a graph waits: the run has one waiter in line for all its nodes, and waits for the
//! completions of all its jobs together.
//!
//! A run is one future with many jobs, which it submits one by one. If no slot is free, the run
//! waits in line, like an operation, to submit its next job. The slots notify the run itself
//! ([`Run`]), so that no waker is registered per job.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use arrayvec::ArrayVec;
use pin_project::pin_project;

use crate::device::AsJob;
use crate::error::{JobError, Reason};
use crate::reactor::mode::{LOOKS, Policy};
use crate::reactor::slots::{Run, Target};
use crate::reactor::spin::Spin;
use crate::reactor::workq::{Attachment, LaunchError, Prepared, Shared, WorkQ};
use crate::sync::WaitNode;
use crate::sync::atomic::fence;

/// The completions of a run's jobs that the run was notified of.
pub(crate) trait Completions {
    /// Returns true if the run was notified of completions that it has not taken yet.
    fn any(&self) -> bool;

    /// Registers the waker to wake at the next completion. The caller must check
    /// [`Completions::any`] once more afterwards.
    fn register(&self, waker: &Waker);
}

/// The waiter of a graph's run on its WorkQ, pinned in the run's future.
#[pin_project]
pub(crate) struct RunWaiter {
    // The lists of both nodes lie in the WorkQ, whose handle is dropped after them.
    #[pin]
    node: WaitNode,
    /// The node in the list of sleeping runs, by which a change of mode wakes them.
    #[pin]
    asleep: WaitNode,
    workq: WorkQ,
    /// The spin of the wait for a slot, and the spin of the wait for completions.
    spins: [Spin; 2],
}

impl RunWaiter {
    pub(crate) fn new(workq: WorkQ) -> RunWaiter {
        RunWaiter {
            node: WaitNode::new(),
            asleep: WaitNode::new(),
            workq,
            spins: [Spin::default(); 2],
        }
    }

    /// Registers the event handle with this thread's runtime, so that completions wake it, unless
    /// the WorkQ is busy-polled. `heard` is set once this was done in the present poll: the next
    /// poll may be on another runtime.
    fn register_once(heard: &mut bool, shared: &Arc<Shared>) -> Result<(), JobError> {
        // In busy mode no runtime needs events. But `heard` stays false, since another mode may be
        // set before this very poll waits.
        if !*heard && !shared.policy().is_busy() {
            shared.events.register(shared)?;
            *heard = true;
        }
        Ok(())
    }

    /// Submits a job of a run; its completion notifies the run. Returns false, and gives the job's
    /// Leases back, if the job must wait for a slot.
    pub(crate) fn launch<J: AsJob>(
        at: &Attachment,
        heard: &mut bool,
        mut prepared: Prepared<J>,
        run: Arc<dyn Run>,
        node: u32,
    ) -> Result<bool, JobError> {
        let shared = &at.shared;
        // Registered before the job is submitted: without a runtime no thread would notice that it
        // completes.
        RunWaiter::register_once(heard, shared)?;
        if !shared.waiters.is_empty() {
            return Ok(false);
        }
        let Some(slot) = shared.core.table.take() else {
            return Ok(false);
        };
        match at.launch(slot, &mut prepared, Some(Target::Run(run, node))) {
            Ok(_) => Ok(true),
            // The node waits in line, and is submitted again from there.
            Err(LaunchError::Full(_)) => Ok(false),
            Err(LaunchError::Error(error)) => Err(error),
        }
    }

    /// Submits at most `N` jobs together, as `launch` does. Returns the number of jobs that the
    /// device has accepted. The Leases of the others are given back when they are dropped.
    pub(crate) fn launch_all<J: AsJob, const N: usize>(
        at: &Attachment,
        batch: &mut [Prepared<J>],
        run: &Arc<dyn Run>,
    ) -> (usize, Result<(), JobError>) {
        let shared = &at.shared;
        if let Err(error) = RunWaiter::register_once(&mut false, shared) {
            return (0, Err(error));
        }
        if !shared.waiters.is_empty() {
            return (0, Ok(()));
        }
        let target = || Some(Target::Run(Arc::clone(run), 0));
        let batch = batch
            .iter_mut()
            .map_while(|job| Some((shared.core.table.take()?, job, target())));
        let mut tokens = ArrayVec::<_, N>::new();
        let refused = match at.launch_all(batch, &mut tokens) {
            // The refused node and those behind it wait in line, and are submitted again from
            // there.
            None | Some(LaunchError::Full(_)) => Ok(()),
            Some(LaunchError::Error(error)) => Err(error),
        };
        (tokens.len(), refused)
    }

    /// Waits for a slot and submits a job. `prepare` takes the job's Leases once there is a slot.
    pub(crate) fn poll_launch<J: AsJob>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        at: &Attachment,
        run: &Arc<dyn Run>,
        node: u32,
        prepare: &impl Fn() -> Result<Prepared<J>, JobError>,
    ) -> Poll<Result<(), JobError>> {
        let this = self.project();
        assert!(
            at.is_on(&*this.workq),
            "all contexts of an instance are on its WorkQ"
        );
        let prepare = || Ok((prepare()?, Some(Target::Run(Arc::clone(run), node))));
        let line = this.node.as_ref();
        let launched = at.poll_queued(line, &mut this.spins[0], cx, &prepare);
        if launched.is_ready() {
            this.spins[0] = Spin::default();
        }
        launched.map(|launched| launched.map(|_| ()))
    }

    /// Returns true if the run waits in line for a slot.
    pub(crate) fn is_in_line(&self) -> bool {
        self.node.is_linked()
    }

    /// Makes sure that the completion of a job is collected although its run does not wait for it.
    /// The job was just submitted. If this thread has a runtime, arms for an event, even if all
    /// waiters poll busily. Without a runtime, the next operation that waits collects the
    /// completion.
    pub(crate) fn attend(at: &Attachment) {
        let shared = &at.shared;
        if shared.policy().is_busy() {
            shared.poll_queue(&at.queue, LOOKS);
        }
        // This thread's runtime is registered: if the job has waited in line, the run may have been
        // polled on another runtime when it entered the line.
        if shared.events.try_register(shared) {
            shared.arm_for_orphans(true);
        }
    }

    /// Returns true if a run that waits on this thread notices the completions of its jobs: the
    /// WorkQ is busy-polled, or the thread has a runtime.
    pub(crate) fn is_notified_here(at: &Attachment) -> bool {
        let shared = &at.shared;
        shared.policy().is_busy() || shared.events.try_register(shared)
    }

    /// Leaves the line, since the run wants no slot any more. If it was notified, the next waiter
    /// in line is notified instead.
    pub(crate) fn leave(self: Pin<&mut Self>) {
        let this = self.project();
        let node = this.node.as_ref();
        if node.is_linked() {
            this.workq.0.waiters.leave(node);
            let shared = &*this.workq.0;
            shared.notify_line(shared, false);
        }
    }

    /// Waits until the run was notified of completions of its jobs.
    pub(crate) fn poll_ends(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        heard: &mut bool,
        ends: &impl Completions,
    ) -> Poll<Result<(), JobError>> {
        let this = self.project();
        let shared = &this.workq.0;
        if ends.any() {
            this.spins[1] = Spin::default();
            return Poll::Ready(Ok(()));
        }
        let policy = shared.policy();
        let asleep = this.asleep.as_ref();
        if !shared.spins(policy, &mut this.spins[1]) {
            let polled = poll_event(shared, asleep, heard, policy, cx, ends);
            if polled.is_ready() {
                this.spins[1] = Spin::default();
            }
            return polled;
        }
        if poll_devices(shared, ends) {
            shared.spun(policy, &this.spins[1]);
            this.spins[1] = Spin::default();
            return Poll::Ready(Ok(()));
        }
        shared.misses.add();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Abandons the jobs of a run that is dropped. They may still be in flight, and a thread must
    /// notice their completions, or their memory stays leased.
    pub(crate) fn abandon(self: Pin<&mut Self>) {
        let shared = &self.project().workq.0;
        // As `Attachment::abandon` does for an operation that is dropped.
        let heard = shared.events.try_register(shared);
        shared.arm_for_orphans(heard);
    }
}

/// Waits as [`Attachment::poll_event`] does, for all jobs of the run together.
fn poll_event(
    shared: &Arc<Shared>,
    asleep: Pin<&WaitNode>,
    heard: &mut bool,
    policy: Policy,
    cx: &mut Context<'_>,
    ends: &impl Completions,
) -> Poll<Result<(), JobError>> {
    if RunWaiter::register_once(heard, shared).is_err() {
        return Poll::Ready(Err(JobError::of(Reason::CannotWake)));
    }
    // Poll before arming: a job that has completed already need not signal. If an event is
    // expected, no poll is needed: the event's turn polls for all waiters at once.
    if !shared.expected.load(Ordering::Relaxed) && shared.ready() {
        shared.turn();
        if ends.any() {
            return Poll::Ready(Ok(()));
        }
    }
    ends.register(cx.waker());
    shared.enqueue_run(asleep, cx.waker());
    // Arm, then poll. The run's slots count as asleep from the submission on, so that each thread
    // that polls because of an event arms the queue again.
    fence(Ordering::SeqCst);
    if !shared.expected.load(Ordering::Relaxed) && shared.arm() {
        shared.turn();
    }
    if ends.any() {
        return Poll::Ready(Ok(()));
    }
    if !shared.is_still(policy) {
        cx.waker().wake_by_ref();
    }
    Poll::Pending
}

/// Polls the devices up to `LOOKS` times. Returns true if the run was notified of a completion.
fn poll_devices(shared: &Shared, ends: &impl Completions) -> bool {
    for _ in 0..LOOKS {
        if shared.ready() {
            shared.turn();
        }
        if ends.any() {
            shared.misses.reset();
            return true;
        }
    }
    false
}
