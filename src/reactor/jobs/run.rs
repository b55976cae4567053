//! How a run of a graph waits: one place in line for all its nodes, and one look for all their
//! ends.
//!
//! A run is one future with many Jobs. It submits them one by one; with no Slot free it waits in
//! line like an Op, for whichever Job is next. Their Slots notify the run itself ([`Run`]), so that
//! nothing is registered per Job.

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

/// What a run knows of the ends of its Jobs.
pub(crate) trait Completions {
    /// Returns true if the run was notified of some that it has not taken yet.
    fn any(&self) -> bool;

    /// The next end wakes this. [`Completions::any`] must be asked once more afterwards.
    fn register(&self, waker: &Waker);
}

/// A run's place on its WorkQ. Pinned in the run's future.
#[pin_project]
pub(crate) struct RunWaiter {
    // The lists of both nodes lie in the WorkQ, whose handle is dropped after them.
    #[pin]
    node: WaitNode,
    /// Among the runs that sleep: a change of mode wakes them.
    #[pin]
    asleep: WaitNode,
    workq: WorkQ,
    /// Of the place in line, and of the wait for ends.
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

    /// Somebody must hear of the ends of Jobs: the runtime, or whoever polls busily. `heard` is
    /// whether somebody does in this poll: the next may be on another runtime.
    fn hear(heard: &mut bool, shared: &Arc<Shared>) -> Result<(), JobError> {
        // Busily nobody needs to: but another mode may be set before this very poll comes to wait.
        if !*heard && !shared.policy().is_busy() {
            shared.events.register(shared)?;
            *heard = true;
        }
        Ok(())
    }

    /// Submits a Job of whose end the run is notified; false if it must wait for a Slot, and its
    /// Leases have gone back.
    pub(crate) fn launch<J: AsJob>(
        at: &Attachment,
        heard: &mut bool,
        mut prepared: Prepared<J>,
        run: Arc<dyn Run>,
        node: u32,
    ) -> Result<bool, JobError> {
        let shared = &at.shared;
        // Before the Job is the device's: without a runtime nobody would hear of its end.
        RunWaiter::hear(heard, shared)?;
        if !shared.waiters.is_empty() {
            return Ok(false);
        }
        let Some(slot) = shared.core.table.take() else {
            return Ok(false);
        };
        match at.launch(slot, &mut prepared, Some(Target::Run(run, node))) {
            Ok(_) => Ok(true),
            // The node waits in line, and asks once more from there.
            Err(LaunchError::Full(_)) => Ok(false),
            Err(LaunchError::Error(error)) => Err(error),
        }
    }

    /// As `launch`, for several jobs that the device is given together: `N` at most. Returns how
    /// many it has; the Leases of the others go back when they are dropped.
    pub(crate) fn launch_all<J: AsJob, const N: usize>(
        at: &Attachment,
        batch: &mut [Prepared<J>],
        run: &Arc<dyn Run>,
    ) -> (usize, Result<(), JobError>) {
        let shared = &at.shared;
        if let Err(error) = RunWaiter::hear(&mut false, shared) {
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
            // Those behind it wait in line, and ask once more from there.
            None | Some(LaunchError::Full(_)) => Ok(()),
            Some(LaunchError::Error(error)) => Err(error),
        };
        (tokens.len(), refused)
    }

    /// Waits for a Slot and submits; `prepare` takes the Leases once there is one.
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

    /// Returns whether the run waits in line for a Slot.
    pub(crate) fn is_in_line(&self) -> bool {
        self.node.is_linked()
    }

    /// Has the end of a job heard that was just submitted, though its run does not wait for it: by
    /// an event, if there is a runtime, also where everybody who waits is busy. Without one the
    /// next operation that waits hears of it.
    pub(crate) fn attend(at: &Attachment) {
        let shared = &at.shared;
        if shared.policy().is_busy() {
            shared.look(&at.queue, LOOKS);
        }
        // It may have been submitted from the line, by a task of another runtime than before.
        if shared.events.try_register(shared) {
            shared.arm_for_orphans(true);
        }
    }

    /// Returns whether a run that waits here hears of the ends of its jobs.
    pub(crate) fn hears(at: &Attachment) -> bool {
        let shared = &at.shared;
        shared.policy().is_busy() || shared.events.try_register(shared)
    }

    /// The run wants no Slot any more: if it was notified, the next in line is instead.
    pub(crate) fn leave(self: Pin<&mut Self>) {
        let this = self.project();
        let node = this.node.as_ref();
        if node.is_linked() {
            this.workq.0.waiters.leave(node);
            let shared = &*this.workq.0;
            shared.notify_line(shared, false);
        }
    }

    /// Waits until the run was notified of ends of its Jobs.
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
        if look(shared, ends) {
            shared.spun(policy, &this.spins[1]);
            this.spins[1] = Spin::default();
            return Poll::Ready(Ok(()));
        }
        shared.misses.add();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The run is gone, its Jobs may not be: somebody must hear of their ends, or their memory
    /// stays leased.
    pub(crate) fn abandon(self: Pin<&mut Self>) {
        let shared = &self.project().workq.0;
        // As for an Op that is dropped.
        let heard = shared.events.try_register(shared);
        shared.arm_for_orphans(heard);
    }
}

/// Waits as [`Attachment::poll_event`] does, with all Jobs of the run for one.
fn poll_event(
    shared: &Arc<Shared>,
    asleep: Pin<&WaitNode>,
    heard: &mut bool,
    policy: Policy,
    cx: &mut Context<'_>,
    ends: &impl Completions,
) -> Poll<Result<(), JobError>> {
    if RunWaiter::hear(heard, shared).is_err() {
        return Poll::Ready(Err(JobError::of(Reason::CannotWake)));
    }
    // Look first: what has completed need not ring. Not if an event will come: that looks for all
    // at once.
    if !shared.expected.load(Ordering::Relaxed) && shared.ready() {
        shared.turn();
        if ends.any() {
            return Poll::Ready(Ok(()));
        }
    }
    ends.register(cx.waker());
    shared.enqueue_run(asleep, cx.waker());
    // Arm, then look. Its Slots are seen asleep from the submission on, so that whoever turns for
    // an event arms again.
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

/// Looks for a while.
fn look(shared: &Shared, ends: &impl Completions) -> bool {
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
