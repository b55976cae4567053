//! [`BlockingSyncEvent`], a sync event whose calls block: it needs no WorkQ and no futures, and
//! never sleeps.

use std::fmt;
use std::sync::Arc;

use super::context::export;
use crate::device::{Device, EventCounter, EventJob, EventWait};
use crate::error::{JobError, Result};

/// The number of polls that a spinning wait makes before it yields the CPU once, which the other
/// side may need.
const LOOKS: u32 = 1 << 14;

/// A sync event whose waits block the calling thread, made by
/// [`SyncEventBuilder::start`](crate::sync_event::SyncEventBuilder::start) or
/// [`ImportedSyncEvent::start`](crate::sync_event::ImportedSyncEvent::start). The other side may be
/// a `BlockingSyncEvent` or a [`SyncEvent`](crate::sync_event::SyncEvent).
/// [`SyncEvent`](crate::sync_event::SyncEvent) documents how an event ends.
///
/// ```
/// use tokio_doca::{sync_event::{Location, SyncEvent}, Device};
///
/// let device = Device::open_default()?;
/// let cpu = Location::Cpu(&device);
/// let event = SyncEvent::builder().publisher(cpu).subscriber(cpu).start()?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| event.add(2));
///     assert_eq!(event.wait_gt_yield(1, u64::MAX), Ok(2));
/// });
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[doc(alias = "doca_sync_event")]
#[doc(alias = "doca_sync_event_start")]
pub struct BlockingSyncEvent {
    device: Device,
    event: Arc<dyn EventCounter>,
}

impl BlockingSyncEvent {
    pub(super) fn new(device: &Device, event: Arc<dyn EventCounter>) -> BlockingSyncEvent {
        let device = device.clone();
        BlockingSyncEvent { device, event }
    }

    /// Returns the value of the counter.
    ///
    /// # Errors
    ///
    /// `ConnectionReset` if the event was imported, and its owner has stopped or dropped it, or the
    /// owner's process has ended; `BadState` if the event was stopped on this side.
    #[doc(alias = "doca_sync_event_get")]
    #[inline]
    pub fn get(&self) -> Result<u64, JobError> {
        self.event.perform(EventJob::Get)
    }

    /// Sets the counter to `value`, and wakes the waits that this ends.
    ///
    /// # Errors
    ///
    /// As [`BlockingSyncEvent::get`].
    #[doc(alias = "doca_sync_event_update_set")]
    #[inline]
    pub fn set(&self, value: u64) -> Result<(), JobError> {
        self.event.perform(EventJob::Set(value)).map(drop)
    }

    /// Adds `value` to the counter, wrapping around, and wakes the waits that this ends. Returns
    /// the previous value.
    ///
    /// # Errors
    ///
    /// As [`BlockingSyncEvent::get`].
    #[doc(alias = "doca_sync_event_update_add")]
    #[inline]
    pub fn add(&self, value: u64) -> Result<u64, JobError> {
        self.event.perform(EventJob::Add(value))
    }

    /// Waits until the bits of the value that are in `mask` (`u64::MAX` for all bits) are greater
    /// than `threshold`, and returns the value with all its bits. The thread polls the value, and
    /// yields the CPU (sched_yield(2)) after every 16,384 polls. Any threshold and any mask are
    /// accepted.
    ///
    /// # Errors
    ///
    /// As [`BlockingSyncEvent::get`], also during the wait; `ConnectionReset` also if the process
    /// that had imported the event has ended, and no other process has imported it since.
    #[doc(alias = "doca_sync_event_wait_gt")]
    #[inline]
    pub fn wait_gt(&self, threshold: u64, mask: u64) -> Result<u64, JobError> {
        let wait = EventWait { threshold, mask };
        loop {
            for _ in 0..LOOKS {
                if let Some(value) = self.event.ask(&wait)? {
                    return Ok(value);
                }
            }
            // If more threads spin than there are CPUs, the thread that sets the event would not
            // run.
            std::thread::yield_now();
        }
    }

    /// Waits as [`BlockingSyncEvent::wait_gt`] does, and yields the CPU after each poll of the
    /// value (sched_yield(2)).
    ///
    /// # Errors
    ///
    /// As [`BlockingSyncEvent::wait_gt`].
    #[doc(alias = "doca_sync_event_wait_gt_yield")]
    pub fn wait_gt_yield(&self, threshold: u64, mask: u64) -> Result<u64, JobError> {
        let wait = EventWait { threshold, mask };
        loop {
            if let Some(value) = self.event.ask(&wait)? {
                return Ok(value);
            }
            std::thread::yield_now();
        }
    }

    /// Returns the blob by which the other side imports the event, as
    /// [`SyncEvent::export_dpu`](crate::sync_event::SyncEvent::export_dpu) does.
    ///
    /// # Errors
    ///
    /// As [`SyncEvent::export_dpu`](crate::sync_event::SyncEvent::export_dpu).
    #[doc(alias = "doca_sync_event_export_to_dpu")]
    pub fn export_dpu(&self, device: &Device) -> Result<Vec<u8>> {
        export(&*self.event, &self.device, device)
            .map_err(|error| error.with_call("BlockingSyncEvent::export_dpu"))
    }

    /// Stops the event, for the importer as well. It cannot be started again. If this side has
    /// imported the event, only the import ends: the owner can still use the event, and another
    /// process can import it.
    #[doc(alias = "doca_sync_event_stop")]
    pub fn stop(&self) {
        self.event.stop();
    }

    /// Returns the device of the event.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for BlockingSyncEvent {
    fn drop(&mut self) {
        self.event.stop();
    }
}

impl fmt::Debug for BlockingSyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingSyncEvent")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
