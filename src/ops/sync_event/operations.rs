//! What is done with a sync event.

use super::request::EventRequest;
use super::wait::WaitRequest;
use super::{SyncEvent, SyncEventOp, SyncEventWait};
use crate::device::{EventJob, EventWait};
use crate::ops::operation::Op;

/// Each job is a method that makes an [`Op`](crate::Op).
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

/// Jobs and waits. Nothing happens before the first poll; jobs are done in the order in which they
/// are submitted.
///
/// Jobs of one event (`get`, `set`, `add`) are submitted in the order in which they are polled
/// first, whatever is left of the task's cooperative budget, and also if they wait for a Slot of
/// the WorkQ. There is one exception: a job that waits in line, has been notified that it may
/// continue, and is still not polled when a later one has been polled twice since, may be passed by
/// that one. Waits have no order among each other.
impl SyncEvent {
    operations! {
        /// The value.
        ///
        /// # Errors
        ///
        /// `ConnectionReset` if it was imported, and its owner has stopped or dropped it
        /// ([`Reason::EventRevoked`](crate::error::Reason::EventRevoked)) or has ended
        /// ([`Reason::EventPeerGone`](crate::error::Reason::EventPeerGone)); `BadState` if it was
        /// stopped ([`Reason::EventStopped`](crate::error::Reason::EventStopped)), or without a
        /// runtime in event mode; `Shutdown`.
        ///
        /// # Cancel safety
        ///
        /// Dropping it is ordinary: what is in flight continues, and is forgotten.
        #[doc(alias = "doca_sync_event_job_get")]
        #[doc(alias = "DOCA_SYNC_EVENT_JOB_GET")]
        #[doc(alias = "doca_sync_event_task_get_alloc_init")]
        fn get () -> u64 { EventJob::Get }

        /// The counter becomes this; whom it concerns is woken.
        ///
        /// # Errors
        ///
        /// As [`SyncEvent::get`].
        ///
        /// # Cancel safety
        ///
        /// As [`SyncEvent::get`]: once it was polled it may have been set.
        #[doc(alias = "doca_sync_event_job_update_set")]
        #[doc(alias = "DOCA_SYNC_EVENT_JOB_UPDATE_SET")]
        #[doc(alias = "doca_sync_event_task_notify_set_alloc_init")]
        fn set (value: u64) -> () { EventJob::Set(value) }

        /// Adds to the counter, wrapping, and answers what it was; whom it concerns is woken.
        ///
        /// # Errors
        ///
        /// As [`SyncEvent::get`].
        ///
        /// # Cancel safety
        ///
        /// As [`SyncEvent::get`]: once it was polled it may have been added.
        #[doc(alias = "doca_sync_event_job_update_add")]
        #[doc(alias = "DOCA_SYNC_EVENT_JOB_UPDATE_ADD")]
        #[doc(alias = "doca_sync_event_task_notify_add_alloc_init")]
        fn add (value: u64) -> u64 { EventJob::Add(value) }
    }

    /// Waits until the value is greater than `threshold`, and returns such a value. It may miss a
    /// value that the event had for a moment.
    ///
    /// In [`Mode::BusyPoll`](crate::Mode::BusyPoll) each poll checks the value; otherwise the task
    /// sleeps, in Hybrid mode after a while. If all entries are in use
    /// ([`SyncEventBuilder::waits`](crate::sync_event::SyncEventBuilder::waits)), the wait waits in
    /// line for one. It reads the counter meanwhile, so that it ends whatever the waits in front of
    /// it do, but a sleeping task may see the value up to 8.4 ms late: see the naps below.
    ///
    /// On a device that cannot wait
    /// ([`SyncEventCaps::max_wait`](crate::device::SyncEventCaps::max_wait) is `None`), one job
    /// after the other gets the value. While the mode spins, they follow each other at once.
    /// Otherwise the task sleeps in between, for 0.13 ms at first and twice as long each time, up
    /// to 8.4 ms: by then at the latest it sees a value that stays. A timer in the event handle of
    /// the WorkQ wakes it, so the runtime needs none. A wait in line naps as well.
    ///
    /// # Errors
    ///
    /// - `InvalidValue` if the threshold is beyond
    ///   [`SyncEventCaps::max_wait`](crate::device::SyncEventCaps::max_wait)
    ///   ([`Reason::WaitTooHigh`](crate::error::Reason::WaitTooHigh)), or if the value of the event
    ///   is, when the wait begins, while it continues, or when it would end
    ///   ([`Reason::EventTooHigh`](crate::error::Reason::EventTooHigh)).
    /// - What [`SyncEvent::get`] fails with, also while it waits.
    /// - `ConnectionReset` if the process that had imported the event has ended, and no other
    ///   process has imported it since.
    ///
    /// # Cancel safety
    ///
    /// Dropping it is ordinary: it stops waiting at once. A forgotten future keeps its entry.
    #[doc(alias = "doca_sync_event_job_wait")]
    #[doc(alias = "DOCA_SYNC_EVENT_JOB_WAIT_GT")]
    #[doc(alias = "doca_sync_event_task_wait_gt")]
    #[inline]
    pub fn wait_gt(&self, threshold: u64) -> SyncEventWait<&SyncEvent> {
        self.wait_gt_masked(threshold, u64::MAX)
    }

    /// Waits until the bits of the value that are in the mask, as a number, are greater than this,
    /// and answers such a value, with all its bits.
    ///
    /// # Errors
    ///
    /// As [`SyncEvent::wait_gt`]; `InvalidValue` for a mask that the device does not take
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
