//! The operations of a [`SyncEvent`]: get, set, add, and waits.

use super::request::EventRequest;
use super::wait::WaitRequest;
use super::{SyncEvent, SyncEventOp, SyncEventWait};
use crate::device::{EventJob, EventWait};
use crate::ops::operation::Op;

/// Defines the methods for jobs, each of which returns an [`Op`](crate::Op).
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        fn $name:ident ($($arg:ident: $type:ty),*) -> $answer:ty { $job:expr }
    )*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(&self, $($arg: $type),*) -> SyncEventOp<&SyncEvent, $answer> {
            Op::new(EventRequest::new(self, $job))
        }
    )*};
}

/// The jobs and waits of an event. Nothing happens before the first poll; jobs are done in the
/// order in which they are submitted.
///
/// Jobs of one event (`get`, `set`, `add`) are submitted in the order in which they are first
/// polled, even if the task's cooperative budget is spent, or if they wait for a slot of the WorkQ.
/// There is one exception. If a job waits in line, has been notified that it may continue, and is
/// not polled, then a later job that is polled twice meanwhile may pass it. Waits have no order
/// among each other.
impl SyncEvent {
    operations! {
        /// Gets the value of the counter.
        ///
        /// # Errors
        ///
        /// `ConnectionReset` if the event was imported, and its owner has stopped or dropped it
        /// ([`Reason::EventRevoked`](crate::error::Reason::EventRevoked)) or has ended
        /// ([`Reason::EventPeerGone`](crate::error::Reason::EventPeerGone)); `BadState` if the
        /// event was stopped on this side
        /// ([`Reason::EventStopped`](crate::error::Reason::EventStopped)), or without a runtime in
        /// event or Hybrid mode; `Shutdown` if the WorkQ was shut down.
        ///
        /// # Cancel safety
        ///
        /// The operation can be dropped at any time: a job in flight continues, and its result is
        /// discarded.
        #[doc(alias = "doca_sync_event_job_get")]
        #[doc(alias = "DOCA_SYNC_EVENT_JOB_GET")]
        #[doc(alias = "doca_sync_event_task_get_alloc_init")]
        fn get () -> u64 { EventJob::Get }

        /// Sets the counter to `value`, and wakes the waits that this ends.
        ///
        /// # Errors
        ///
        /// As [`SyncEvent::get`].
        ///
        /// # Cancel safety
        ///
        /// As [`SyncEvent::get`]. If the operation was polled, the counter may have been set.
        #[doc(alias = "doca_sync_event_job_update_set")]
        #[doc(alias = "DOCA_SYNC_EVENT_JOB_UPDATE_SET")]
        #[doc(alias = "doca_sync_event_task_notify_set_alloc_init")]
        fn set (value: u64) -> () { EventJob::Set(value) }

        /// Adds `value` to the counter, wrapping around, and wakes the waits that this ends.
        /// Returns the previous value.
        ///
        /// # Errors
        ///
        /// As [`SyncEvent::get`].
        ///
        /// # Cancel safety
        ///
        /// As [`SyncEvent::get`]. If the operation was polled, the value may have been added.
        #[doc(alias = "doca_sync_event_job_update_add")]
        #[doc(alias = "DOCA_SYNC_EVENT_JOB_UPDATE_ADD")]
        #[doc(alias = "doca_sync_event_task_notify_add_alloc_init")]
        fn add (value: u64) -> u64 { EventJob::Add(value) }
    }

    /// Waits until the value of the counter is greater than `threshold`, and returns such a value.
    /// A wait may miss a value that the counter had for a moment.
    ///
    /// In [`Mode::BusyPoll`](crate::Mode::BusyPoll) each poll checks the value; otherwise the task
    /// sleeps (in Hybrid mode, after it has polled for a while). If all entries for waits are in
    /// use ([`SyncEventBuilder::waits`](crate::sync_event::SyncEventBuilder::waits)), the wait
    /// queues for an entry. Meanwhile it reads the counter itself, so it does not depend on the
    /// waits before it. But it may see a value up to 8.4 ms late, since its task pauses between
    /// reads as described below.
    ///
    /// On a device that cannot wait
    /// ([`SyncEventCaps::max_wait`](crate::device::SyncEventCaps::max_wait) is `None`), one job
    /// after the other gets the value. In busy mode, and for a while in Hybrid mode, the jobs
    /// follow each other at once. Otherwise the task pauses in between, for 0.13 ms at first and
    /// twice as long each time, up to 8.4 ms, so that a value that stays is seen at most 8.4 ms
    /// late. A timer in the event handle of the WorkQ wakes the task, so the runtime needs no
    /// timer.
    ///
    /// # Errors
    ///
    /// - `InvalidValue` if the threshold is greater than
    ///   [`SyncEventCaps::max_wait`](crate::device::SyncEventCaps::max_wait)
    ///   ([`Reason::WaitTooHigh`](crate::error::Reason::WaitTooHigh)), or if the value of the
    ///   counter exceeds `max_wait` when the wait begins or later
    ///   ([`Reason::EventTooHigh`](crate::error::Reason::EventTooHigh)).
    /// - The errors of [`SyncEvent::get`], also during the wait.
    /// - `ConnectionReset` if the process that had imported the event has ended, and no other
    ///   process has imported it since.
    ///
    /// # Cancel safety
    ///
    /// The operation can be dropped at any time: the wait ends at once. An operation that is
    /// forgotten (`mem::forget`) keeps its entry.
    #[doc(alias = "doca_sync_event_job_wait")]
    #[doc(alias = "DOCA_SYNC_EVENT_JOB_WAIT_GT")]
    #[doc(alias = "doca_sync_event_task_wait_gt")]
    #[inline]
    pub fn wait_gt(&self, threshold: u64) -> SyncEventWait<&SyncEvent> {
        self.wait_gt_masked(threshold, u64::MAX)
    }

    /// Waits until the value, with only the bits that are set in `mask`, is greater than
    /// `threshold`. Returns such a value with all its bits.
    ///
    /// # Errors
    ///
    /// As [`SyncEvent::wait_gt`]; `InvalidValue` for a mask that the device does not accept
    /// ([`Reason::WaitMask`](crate::error::Reason::WaitMask)).
    ///
    /// # Cancel safety
    ///
    /// As [`SyncEvent::wait_gt`].
    #[doc(alias = "doca_sync_event_job_wait")]
    pub fn wait_gt_masked(&self, threshold: u64, mask: u64) -> SyncEventWait<&SyncEvent> {
        let event = self;
        let wait = EventWait { threshold, mask };
        Op::new(WaitRequest { event, wait })
    }
}
