//! The queue that Jobs go into and Completions come out of.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::event::Events;
use super::gate::Gate;
use super::shutdown::Shutdown;
use super::table::Table;
use crate::device::{Device, DeviceId, Keep, Queue, QueueConfig, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Waiters;

/// The most devices whose contexts can be attached to one WorkQ.
const DEVICES: usize = 8;
/// How an Op waits: a policy of the waiter, the same WorkQ serves both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The task sleeps, and the event handle wakes it: needs a Tokio runtime with I/O. (DOCA's default is polling; a
    /// Tokio service must not burn a core unasked.)
    #[default]
    EventDriven,
    /// The task polls until the Job is over: no system call per Job, no runtime needed. For latency-critical threads.
    BusyPoll,
}

/// The queue that Jobs go into and Completions come out of (Core guide 3.4.3).
///
/// Clones are the same queue. It can be used from any task on any thread; awaiting on a full queue waits its turn, in
/// order. The last handle to go never waits for Jobs in flight: the device keeps what they need, and frees it after
/// its last Job. [`WorkQ::shutdown`] waits.
#[derive(Clone)]
#[doc(alias = "doca_workq")]
pub struct WorkQ(pub(super) Arc<Shared>);

/// What handles, contexts and Ops share.
pub(super) struct Shared {
    pub(super) mode: Mode,
    pub(super) closed: AtomicBool,
    pub(super) core: Arc<Core>,
    pub(super) events: Events,
    pub(super) gate: Gate,
    /// Who waits for a free Slot.
    pub(super) waiters: Waiters,
    /// How many Slots were taken by those in line.
    pub(super) taken: AtomicU32,
    /// The device refused a Job that the WorkQ had room for, and has finished none since.
    pub(super) device_full: AtomicBool,
    /// A turn was rung for that will tell more of those in line.
    pub(super) rung: AtomicBool,
    /// Who waits for the end of the last Job.
    pub(super) drained: Waiters,
    /// All who wait shall poll again.
    pub(super) nudged: AtomicBool,
    /// Polls that found nothing, in a row: the busy mode's budget.
    pub(super) misses: AtomicU32,
    attaching: Mutex<()>,
}

/// What a device needs until its last Job: the Slots, and the queues of all devices.
pub(super) struct Core {
    pub(super) table: Table,
    queues: [OnceLock<Attached>; DEVICES],
}

struct Attached {
    device: Device,
    queue: Arc<dyn Queue>,
}

/// A context's place on a WorkQ.
#[derive(Clone)]
pub(crate) struct Attachment {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) device: Device,
    pub(super) index: u8,
}

impl Attachment {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn device_id(&self) -> DeviceId {
        self.device.id()
    }

    pub(crate) fn workq(&self) -> WorkQ {
        WorkQ(Arc::clone(&self.shared))
    }

    pub(crate) fn queue_index(&self) -> u8 {
        self.index
    }
}

impl WorkQ {
    /// Begins a WorkQ.
    #[doc(alias = "doca_workq_create")]
    pub fn builder() -> WorkQBuilder {
        WorkQBuilder {
            depth: 256,
            mode: Mode::default(),
        }
    }

    /// The most Jobs in flight.
    #[doc(alias = "doca_workq_get_depth")]
    pub fn depth(&self) -> u32 {
        self.0.core.table.free().slots() as u32
    }

    /// How its Ops wait.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// Slots that are taken: Jobs in flight, and results that nobody fetched yet.
    pub fn in_flight(&self) -> usize {
        self.0.in_use()
    }

    /// Refuses new Jobs from now on, and waits until nothing is in flight. Ops that wait for a Slot end with `Shutdown`;
    /// those in flight are finished, and their results can be fetched.
    ///
    /// # Cancel safety
    ///
    /// The WorkQ stays shut down if the future is dropped; calling it again goes on waiting.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown::new(self.clone())
    }

    /// The place of a device's contexts on this WorkQ.
    pub(crate) fn attach(&self, device: &Device) -> Result<Attachment> {
        const OP: &str = "attach";
        let shared = &self.0;
        let caps = device.info().caps();
        if shared.mode == Mode::EventDriven && !caps.event_driven {
            let text = format!(
                "device {} cannot ring an event handle: use Mode::BusyPoll",
                device.info().name()
            );
            return Err(Error::new(ErrorKind::NotSupported, OP, text));
        }
        if self.depth() > caps.max_depth {
            let text = format!(
                "a depth of {}, and device {} takes {}",
                self.depth(),
                device.info().name(),
                caps.max_depth
            );
            return Err(Error::new(ErrorKind::InvalidValue, OP, text));
        }
        if shared.closed.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::BadState,
                OP,
                "the WorkQ was shut down",
            ));
        }
        let _attaching = shared
            .attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (index, place) in shared.core.queues.iter().enumerate() {
            if place.get().is_none() {
                let config = QueueConfig::new(self.depth(), Arc::clone(shared.events.signal()));
                let queue = device.adapter().open_queue(config)?;
                if let Some(fd) = queue.event_fd() {
                    shared.events.nest(shared, fd)?;
                    shared.nudge();
                }
                let _ = place.set(Attached {
                    device: device.clone(),
                    queue,
                });
            }
            let attached = place.get().expect("it was there, or was just set");
            if attached.device == *device {
                return Ok(Attachment {
                    shared: Arc::clone(shared),
                    queue: Arc::clone(&attached.queue),
                    device: device.clone(),
                    index: index as u8,
                });
            }
        }
        let text = format!(
            "contexts of {DEVICES} devices are attached, as many as can be: build another WorkQ"
        );
        Err(Error::new(ErrorKind::Full, OP, text))
    }
}

impl Shared {
    /// Slots that are taken.
    pub(super) fn in_use(&self) -> usize {
        let free = self.core.table.free();
        free.slots() - free.free()
    }

    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<dyn Queue>> {
        self.core
            .queues
            .iter()
            .map_while(OnceLock::get)
            .map(|attached| &attached.queue)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (index, queue) in self.queues().enumerate() {
            // No handle, context or Op is left, so nobody else reaches the table.
            let outstanding = self.core.table.outstanding(index as u8);
            let keep: Keep = Arc::clone(&self.core) as Keep;
            Shared::retire(queue, keep, outstanding);
        }
    }
}

impl fmt::Debug for WorkQ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQ")
            .field("depth", &self.depth())
            .field("mode", &self.mode())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

/// Builds a [`WorkQ`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built before build"]
pub struct WorkQBuilder {
    depth: u32,
    mode: Mode,
}

impl WorkQBuilder {
    /// The most Jobs in flight, 1 to 1,048,576; 256 if not said. Jobs that finish inline take no Slot.
    pub fn depth(mut self, jobs: u32) -> WorkQBuilder {
        self.depth = jobs;
        self
    }

    /// How Ops wait; event-driven if not said.
    #[doc(alias = "doca_workq_set_event_driven_enable")]
    pub fn mode(mut self, mode: Mode) -> WorkQBuilder {
        self.mode = mode;
        self
    }

    /// Builds it. All memory for Jobs is taken here.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for a depth out of bounds, `OperatingSystem` if there is no descriptor for the event handle.
    pub fn build(self) -> Result<WorkQ> {
        if self.depth == 0 || self.depth > Token::MAX_SLOTS {
            let text = format!(
                "a depth of {}: a WorkQ has 1 to {} Slots",
                self.depth,
                Token::MAX_SLOTS
            );
            return Err(Error::new(
                ErrorKind::InvalidValue,
                "WorkQBuilder::build",
                text,
            ));
        }
        let core = Core {
            table: Table::new(self.depth),
            queues: [const { OnceLock::new() }; DEVICES],
        };
        Ok(WorkQ(Arc::new(Shared {
            mode: self.mode,
            closed: AtomicBool::new(false),
            core: Arc::new(core),
            events: Events::new()?,
            gate: Gate::new(),
            waiters: Waiters::new(),
            taken: AtomicU32::new(0),
            device_full: AtomicBool::new(false),
            rung: AtomicBool::new(false),
            drained: Waiters::new(),
            nudged: AtomicBool::new(false),
            misses: AtomicU32::new(0),
            attaching: Mutex::new(()),
        })))
    }
}
