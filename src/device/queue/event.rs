//! Sync events: 64-bit counters that two processors change, read and wait for.
#![expect(unsafe_code, reason = "asks for a promise about memory")]

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::task::Poll;

use super::submit::{KeepAlive, Submit};
use crate::device::job::{EventJob, Token};
use crate::device::memory::{Backing, Region};
use crate::error::{JobError, Result};

/// A processor that sets a sync event, or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Processor {
    /// The CPU of this side.
    Cpu,
    /// The CPU of the DPU, or a process that acts as one.
    Dpu,
    /// The DPU's data path accelerator.
    Dpa,
    /// A graphics processor.
    Gpu,
}

/// Eight aligned bytes of application memory that hold a sync event's counter.
#[derive(Clone)]
pub struct EventBacking {
    region: Region,
    offset: usize,
    memfd: Option<Backing>,
    keep: KeepAlive,
}

impl EventBacking {
    /// Describes the eight bytes of an event's counter. Public for tests that drive a provider
    /// without the crate.
    ///
    /// # Safety
    ///
    /// Eight bytes of the region begin at `offset`, at an address that is a multiple of 8. While
    /// `keep` is held, they can be read and written, and this process accesses them only by atomic
    /// or volatile operations.
    pub unsafe fn new(
        region: Region,
        offset: usize,
        memfd: Option<Backing>,
        keep: KeepAlive,
    ) -> EventBacking {
        EventBacking {
            region,
            offset,
            memfd,
            keep,
        }
    }

    /// Returns the memory that contains the eight bytes. It is registered with the device.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Returns the offset of the eight bytes in the region.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the memfd of the region, if the region lies in a memfd.
    pub fn memfd(&self) -> Option<&Backing> {
        self.memfd.as_ref()
    }

    /// Returns the handle that keeps the eight bytes valid.
    pub fn keep(&self) -> &KeepAlive {
        &self.keep
    }
}

impl fmt::Debug for EventBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventBacking")
            .field("region", &self.region)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// The settings of a new [`EventCounter`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventConfig {
    /// The processor that will set the event. This is a hint: both sides may set it.
    pub publisher: Processor,
    /// The processor that will wait for the event. This is a hint: both sides may wait for it.
    pub subscriber: Processor,
    /// The memory of the counter. With `None` the device allocates it.
    pub backing: Option<EventBacking>,
}

impl EventConfig {
    /// Returns a config whose counter lies in memory of the device.
    pub fn new(publisher: Processor, subscriber: Processor) -> EventConfig {
        EventConfig {
            publisher,
            subscriber,
            backing: None,
        }
    }
}

/// The condition that ends a wait: the counter, masked by `mask`, is greater than `threshold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "doca_sync_event_job_wait")]
pub struct EventWait {
    /// The value that the counter must exceed.
    pub threshold: u64,
    /// The bits of the counter that are compared.
    pub mask: u64,
}

impl EventWait {
    /// Returns true if a counter with this value ends the wait.
    #[inline(always)]
    pub const fn is_met(&self, value: u64) -> bool {
        value & self.mask > self.threshold
    }
}

/// A sync event in one process, which was made by
/// [`Adapter::open_event`](crate::device::Adapter::open_event), or imported.
///
/// It needs no queue: callers that block or spin call it directly. No method of it blocks.
pub trait EventCounter: Send + Sync {
    /// Does the Job now, on this thread.
    ///
    /// # Errors
    ///
    /// [`JobError::event_stopped`] once this side has stopped the event. For an imported event,
    /// also [`JobError::event_revoked`] if its owner has stopped or dropped it, and
    /// [`JobError::event_peer_gone`] if the owner's process has ended.
    fn perform(&self, job: EventJob) -> Result<u64, JobError>;

    /// Returns the value of the counter, if it ends the wait.
    ///
    /// # Errors
    ///
    /// As for `perform`; also, for the event's owner, [`JobError::event_peer_gone`] if the process
    /// that had imported the event has ended, and no other process has imported it since.
    fn ask(&self, wait: &EventWait) -> Result<Option<u64>, JobError>;

    /// Returns the blob that [`Adapter::import_event`](crate::device::Adapter::import_event) needs:
    /// at most 1,024 bytes, and the same each time.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the event cannot be exported; `NotPermitted` if it was imported; other
    /// kinds name the resource that could not be obtained.
    fn export(&self) -> Result<Vec<u8>>;

    /// Stops the event: exports are taken back, waits of all queues and processes end, and later
    /// Jobs fail.
    fn stop(&self);

    /// Returns the event as `Any`, so that the provider can downcast it to its own type.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// A sync event on a queue, which reports the event's Completions. It accepts only
/// [`Job::Event`](crate::device::Job::Event).
///
/// Besides the duties of the [contract](crate::device::contract), implementors keep these:
///
/// - Jobs are done in the order of their submission.
/// - Each accepted wait completes once, unless it is cancelled. Its result is a value that ends the
///   wait.
/// - A wait that finds the value beyond
///   [`SyncEventCaps::max_wait`](crate::device::SyncEventCaps::max_wait) fails with
///   [`JobError::event_too_high`], whether it finds that value when it begins or later.
pub trait EventPort: Submit {
    /// Checks the wait without beginning it. Returns its result if it would complete at once, and
    /// `Pending` if it would not. Returns `None`, as the default does, if the device does not know
    /// at once.
    fn try_wait(&self, _wait: &EventWait) -> Option<Poll<Result<u64, JobError>>> {
        None
    }

    /// Begins a wait, which completes under `token`. The crate calls this only on devices that have
    /// waits, with thresholds and masks within their limits. The port never has more waits at once
    /// than it was opened for, and no two of them have Tokens with the same index.
    ///
    /// # Errors
    ///
    /// The reason why the wait was refused.
    fn wait(&self, token: Token, wait: EventWait) -> Result<(), JobError>;

    /// Cancels a wait. Its Completion may be on its way already; after this call the device adds
    /// none.
    fn cancel(&self, token: Token);

    /// Ends the port, since the SyncEvent was dropped. Waits are cancelled, and accepted Jobs
    /// continue.
    fn retire(&self);
}
