//! Jobs of a loop of the caller's own: select, poll or epoll over the event handle, without
//! futures.
//!
//! A Job that is posted has no Op. Its Slot keeps the Leases until the completion was collected, by
//! whomever, and then the result, until [`WorkQ::progress`] hands it out. So Ops and such Jobs
//! share a WorkQ, and each may collect for the other.
//!
//! ```text
//!   post --> Slot: posted --> collected by progress, clear, an Op's poll, the fan-out
//!                                 | Slot: done, its number in Finished; then: armed? ring
//!                                 v
//!                             progress: word and result, Slot free
//! ```
//!
//! `arm` asks the devices to ring *and* leaves a mark, since somebody else may collect the
//! completion before it rang, or have collected it and not yet put into Finished. Mark, then look;
//! put in, then look at the mark: one sees the other. Who is about to collect for the loop takes
//! the mark away meanwhile, or it would ring for itself.

use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::task::unconstrained;

use crate::device::AsJob;
use crate::error::{JobError, Result};
use crate::reactor::events::{Driven, this_thread};
use crate::reactor::jobs::Reserved;
use crate::reactor::slots::{Outcome, ResultKind, Target};
use crate::reactor::tables::{End, PostedEntry, PostedRun};
use crate::reactor::workq::{Attachment, Prepared, Shared, WorkQ};

impl WorkQ {
    /// Returns the descriptor that turns readable when an armed WorkQ has something to say: for a
    /// select, poll or epoll loop of the caller's own, level- or edge-triggered. Only wait for it;
    /// never read it.
    ///
    /// It is an epoll descriptor over all the devices that are or will be attached, made by the
    /// first call, and the same one as long as the WorkQ lives. From that call on Ops need no
    /// runtime in any mode: where there is none, the loop that calls [`clear`](WorkQ::clear) wakes
    /// them.
    ///
    /// The cycle is: [`arm`](WorkQ::arm), wait, [`clear`](WorkQ::clear),
    /// [`progress`](WorkQ::progress) until it answers 0, and again (Core guide 3.4.4). Jobs may be
    /// submitted before or after `arm`.
    ///
    /// ```
    /// use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    /// use tokio_doca::{op::Output, BufPool, Device, Dma, Mmap, WorkQ};
    ///
    /// let device = Device::open_default()?;
    /// let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
    /// let workq = WorkQ::builder().build()?;
    /// let dma = Dma::builder(&device).attach(&workq)?;
    /// let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
    /// src.extend_from_slice(b"hello")?;
    ///
    /// let handle = workq.event_handle()?;
    /// dma.copy(&src, &dst).post(7)?;
    /// let mut done = None;
    /// while done.is_none() {
    ///     workq.arm();
    ///     poll(&mut [PollFd::new(handle, PollFlags::POLLIN)], PollTimeout::NONE)?;
    ///     workq.clear();
    ///     workq.progress(|user_data, result| done = Some((user_data, result)));
    /// }
    /// assert!(matches!(done, Some((7, Ok(Output::Bytes(5))))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if the first call finds no descriptor.
    #[doc(alias = "doca_workq_get_event_handle")]
    #[doc(alias = "doca_pe_get_notification_handle")]
    #[doc(alias = "doca_event_handle_t")]
    #[doc(alias = "doca_notification_handle_t")]
    pub fn event_handle(&self) -> Result<BorrowedFd<'_>> {
        self.0.events.lend()
    }

    /// Asks for one event: the handle turns readable at the next end of a Job, or at once if a
    /// completion waits for [`progress`](WorkQ::progress). Once it has, arm again. In any mode.
    #[doc(alias = "doca_workq_event_handle_arm")]
    #[doc(alias = "doca_pe_request_notification")]
    pub fn arm(&self) {
        let shared = &self.0;
        shared.own_loop.mark();
        if shared.arm() {
            // Whether that was for the caller is known only when it was collected.
            shared.turn();
        }
        if !shared.none_finished() {
            shared.fire();
        }
    }

    /// Acknowledges an event: the handle is quiet until the next one, also in a level-triggered
    /// loop. Wakes Ops whose Jobs have completed. Call [`progress`](WorkQ::progress) afterwards,
    /// and before the next wait.
    #[doc(alias = "doca_workq_event_handle_clear")]
    #[doc(alias = "doca_pe_clear_notification")]
    pub fn clear(&self) {
        let shared = &self.0;
        shared.events.quiet();
        // What was read may have been for Tokio's epoll as well: a turn makes up for it, and arms
        // for the Ops.
        let armed = shared.own_loop.unmark();
        shared.event_turn();
        if armed && shared.none_finished() {
            shared.own_loop.mark();
            if !shared.none_finished() {
                shared.fire();
            }
        }
    }

    /// Collects what has completed, and hands out what was posted for a loop of the caller's own:
    /// the word, and how it ended.
    pub(crate) fn collect(&self, mut handle: impl FnMut(u64, End)) -> usize {
        let shared = &self.0;
        let mut handed = 0;
        let armed = shared.own_loop.unmark();
        shared.turn();
        shared.timer.on_time(&**shared);
        shared.resume_if_due();
        shared.answer_ring();
        while handed < self.depth() as usize
            && let Some((index, user_data, meaning, outcome)) = shared.core.table.take_finished()
        {
            handed += 1;
            shared.give_back(index);
            handle(user_data, End::Job(meaning, outcome));
        }
        if let Some(entries) = shared.own_loop.entries() {
            handed += entries.poll(|entry, cx| poll(entry, shared, cx), &mut handle);
        }
        if handed > 0 {
            shared.misses.reset();
        } else if !armed {
            // A loop that does not sleep may share its CPU with an engine.
            shared.misses.add();
        } else {
            // What was handed out has rung, or was there when the loop armed.
            shared.own_loop.mark();
            if !shared.none_finished() {
                shared.fire();
            }
        }
        handed
    }

    /// Posts a run: the next `collect` begins it.
    pub(crate) fn post_run(&self, user_data: u64, run: Pin<Box<dyn PostedRun>>) {
        let entries = self.0.own_loop.entries_or_new();
        entries.add(&self.0, user_data, PostedEntry::Run(run));
    }
}

impl Shared {
    /// Returns true if `collect` would hand out nothing.
    fn none_finished(&self) -> bool {
        self.core.table.finished().is_empty()
            && self.own_loop.entries().is_none_or(|it| it.none_ready())
    }
}

/// Polls what was posted and has no Slot.
fn poll(entry: &mut PostedEntry, shared: &Arc<Shared>, cx: &mut Context<'_>) -> Poll<End> {
    match entry {
        PostedEntry::Recv(recv) => recv.poll(shared, cx.waker()).map(End::Received),
        PostedEntry::Wait(wait) => wait.poll(shared, cx.waker()).map(End::Waited),
        PostedEntry::Run(run) => {
            let _doing = this_thread::enter_own_loop(&**shared);
            // The loop may be a task's. Where that one's budget is spent, it is the loop that
            // continues.
            let run = pin!(unconstrained(poll_fn(|cx| run.as_mut().poll(cx))));
            run.poll(cx).map(End::Run)
        }
    }
}

impl Attachment {
    /// Submits a Job whose end `progress` tells. The Slot is free again if that fails.
    ///
    /// # Errors
    ///
    /// `Again` if the device is full, `Shutdown`, or what the device says.
    pub(crate) fn post<J: AsJob>(
        &self,
        slot: Reserved<'_>,
        mut prepared: Prepared<J>,
        user_data: u64,
        meaning: ResultKind,
    ) -> Result<(), JobError> {
        self.launch(
            slot.take(),
            &mut prepared,
            Some(Target::Caller(user_data, meaning)),
        )
        .map(drop)
        .map_err(JobError::from)
    }

    /// The device did the Job inline: `progress` tells of it all the same.
    pub(crate) fn settle(
        &self,
        slot: Reserved<'_>,
        user_data: u64,
        meaning: ResultKind,
        outcome: Outcome,
    ) {
        let (shared, slot) = (&self.shared, slot.take());
        assert!(slot.is_of(&shared.core.table));
        slot.settle(user_data, meaning, outcome);
        // A shutdown may have seen the Slot when it was taken.
        shared.if_drained();
        shared.fire();
    }
}
