//! The caller's own loop: it uses select, poll or epoll on the event handle, and posts jobs without
//! futures.
//!
//! A posted job has no future. Its slot keeps the Leases until any thread has collected the
//! completion, and then the result until [`WorkQ::progress`] hands it out. So futures and posted
//! jobs can share a WorkQ, and each may collect completions of the other.
//!
//! ```text
//!   post --> Slot: posted --> collected by progress, clear, an Op's poll, the fan-out
//!                                 | Slot: done, its number in Finished; if armed: signal
//!                                 v
//!                             progress: word and result, Slot free
//! ```
//!
//! `arm` asks the devices to signal *and* leaves a mark, since another thread may collect the
//! completion before it is signalled, or may have collected it and not yet put it into Finished.
//! The loop sets the mark and then checks Finished; the other thread puts the job into Finished and
//! then checks the mark: at least one sees what the other did. While the loop itself collects, it
//! takes the mark away, so as not to signal itself.

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
    /// Returns the descriptor that turns readable when an armed WorkQ has an event, for the
    /// caller's own select, poll or epoll loop, level- or edge-triggered. Only wait for the
    /// descriptor; never read it.
    ///
    /// The descriptor is an epoll descriptor over all devices that are or will be attached. The
    /// first call makes it, and it stays the same while the WorkQ lives. From the first call on,
    /// operations need no runtime in any mode: without a runtime, the loop that calls
    /// [`clear`](WorkQ::clear) wakes them.
    ///
    /// The cycle is: [`arm`](WorkQ::arm), wait, [`clear`](WorkQ::clear),
    /// [`progress`](WorkQ::progress) until it returns 0, and again (DOCA Core guide 3.4.4). Jobs
    /// may be submitted before or after `arm`.
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
    /// `OperatingSystem` if the kernel refuses to make the descriptor, at the first call.
    #[doc(alias = "doca_workq_get_event_handle")]
    #[doc(alias = "doca_pe_get_notification_handle")]
    #[doc(alias = "doca_event_handle_t")]
    #[doc(alias = "doca_notification_handle_t")]
    pub fn event_handle(&self) -> Result<BorrowedFd<'_>> {
        self.0.events.lend()
    }

    /// Requests one event, in any mode: the event handle turns readable once the next job, receive
    /// or wait completes, or at once if a completion or a posted run of a graph waits for
    /// [`progress`](WorkQ::progress). After the event, arm again.
    #[doc(alias = "doca_workq_event_handle_arm")]
    #[doc(alias = "doca_pe_request_notification")]
    pub fn arm(&self) {
        let shared = &self.0;
        shared.own_loop.mark();
        if shared.arm() {
            // Only collecting the completion shows whether it was for the caller.
            shared.turn();
        }
        if !shared.none_finished() {
            shared.fire();
        }
    }

    /// Acknowledges an event: the event handle is not readable until the next event, also in a
    /// level-triggered loop. Wakes operations whose jobs have completed. Call
    /// [`progress`](WorkQ::progress) afterwards, and before the next wait.
    #[doc(alias = "doca_workq_event_handle_clear")]
    #[doc(alias = "doca_pe_clear_notification")]
    pub fn clear(&self) {
        let shared = &self.0;
        shared.events.quiet();
        // An event that was read may have been for Tokio's epoll as well. A turn makes up for that
        // event, and arms for the operations.
        let armed = shared.own_loop.unmark();
        shared.event_turn();
        if armed && shared.none_finished() {
            shared.own_loop.mark();
            if !shared.none_finished() {
                shared.fire();
            }
        }
    }

    /// Collects completions, and calls `handle` with the `user_data` and the result of each
    /// operation that was posted for the caller's own loop and has completed. Returns the number of
    /// calls.
    pub(crate) fn collect(&self, mut handle: impl FnMut(u64, End)) -> usize {
        let shared = &self.0;
        let mut handed = 0;
        let armed = shared.own_loop.unmark();
        shared.turn();
        shared.timer.on_time(&**shared);
        shared.resume_if_due();
        shared.answer_signal();
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
            // A loop that does not sleep may share its CPU with a thread that does the jobs, so it
            // yields now and then.
            shared.misses.add();
        } else {
            // Nothing was handed out, so the loop is still armed.
            shared.own_loop.mark();
            if !shared.none_finished() {
                shared.fire();
            }
        }
        handed
    }

    /// Posts a run of a graph, which the next `collect` begins.
    pub(crate) fn post_run(&self, user_data: u64, run: Pin<Box<dyn PostedRun>>) {
        let entries = self.0.own_loop.entries_or_new();
        entries.add(&self.0, user_data, PostedEntry::Run(run));
    }
}

impl Shared {
    /// Returns true if no posted operation waits for `collect`.
    fn none_finished(&self) -> bool {
        self.core.table.finished().is_empty()
            && self.own_loop.entries().is_none_or(|it| it.none_ready())
    }
}

/// Polls a posted operation that has no slot.
fn poll(entry: &mut PostedEntry, shared: &Arc<Shared>, cx: &mut Context<'_>) -> Poll<End> {
    match entry {
        PostedEntry::Recv(recv) => recv.poll(shared, cx.waker()).map(End::Received),
        PostedEntry::Wait(wait) => wait.poll(shared, cx.waker()).map(End::Waited),
        PostedEntry::Run(run) => {
            let _doing = this_thread::enter_own_loop(&**shared);
            // The loop may run in a task whose budget is spent. This does not stop the run, since
            // the loop would poll it again anyway.
            let run = pin!(unconstrained(poll_fn(|cx| run.as_mut().poll(cx))));
            run.poll(cx).map(End::Run)
        }
    }
}

impl Attachment {
    /// Submits a job whose result `progress` hands out. If the submission fails, the slot is free
    /// again.
    ///
    /// # Errors
    ///
    /// `Again` if the device is full, `Shutdown` after a shutdown, or the error of the device.
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

    /// Stores the outcome of a job that the device has finished inline, so that `progress` hands it
    /// out.
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
        // A shutdown may have seen the slot when it was taken.
        shared.if_drained();
        shared.fire();
    }
}
