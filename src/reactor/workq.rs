//! The queue that Jobs go into and Completions come out of.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::clock::Clock;
use super::event::Events;
use super::full::Pause;
use super::gate::Gate;
use super::mode::{Current, Mode, Policy};
use super::registry::{Changed, Registry};
use super::shutdown::Shutdown;
use super::stats::Counts;
use super::table::Table;
use super::timer::Timer;
use crate::device::{Device, Endpoint, EventPort, Queue, QueueConfig, Token, Use};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Holder;
use crate::sync::{self, Order, Waiters, atomic, lock};

/// The most devices whose contexts can be attached to one WorkQ.
const DEVICES: usize = 8;

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
    pub(super) mode: Current,
    pub(super) closed: atomic::AtomicBool,
    pub(super) core: Arc<Core>,
    pub(super) events: Events,
    pub(super) gate: Gate,
    /// Rings for idle waits that look again after a while, and for a device that was full.
    pub(super) timer: Timer,
    /// Who waits for a free Slot.
    pub(super) waiters: Waiters,
    /// Whether those in line shall ask the device, which was full.
    pub(super) pause: Pause,
    /// All queues were armed, and no event was seen since: one will come with the next completion, or is on its way, or
    /// whoever armed is about to look. Who sleeps meanwhile need not arm.
    pub(super) expected: atomic::AtomicBool,
    /// A turn was rung for that notifies more of those in line, for Slots or for places of other tables.
    pub(super) rung: atomic::AtomicBool,
    /// The futures that wait for the end of the last Job.
    pub(super) drained: Waiters,
    /// The runs of graphs that sleep. A run has no waker in its Slots, so that a nudge reaches it here.
    pub(super) runs: Waiters,
    /// What the next turn shall see to besides: `turn.rs` has the bits.
    pub(super) asked: atomic::AtomicU8,
    /// The watches whose state has changed, to be told by the next turn.
    pub(super) changes: sync::Mutex<Vec<Changed>>,
    /// Polls that found nothing, in a row: the busy mode's budget.
    pub(super) misses: AtomicU32,
    /// The caller's own loop wants an event at the next end of a Job of its own.
    pub(super) armed: atomic::AtomicBool,
    /// What was posted for that loop, and has no Slot.
    pub(super) posted: OnceLock<Box<dyn Any + Send + Sync>>,
    pub(super) counts: Counts,
    pub(super) clock: Clock,
    attaching: Mutex<()>,
}

/// What a device needs until its last Job: the Slots, and the queues of all devices.
pub(super) struct Core {
    pub(super) table: Table,
    /// The receives of its Rdmas, and the waits of its sync events.
    pub(super) registry: Registry,
    queues: [OnceLock<Attached>; DEVICES],
}

struct Attached {
    device: Device,
    /// A context was attached that cannot ring, so that its Jobs must be polled for.
    polled: AtomicBool,
    /// Its own descriptor is part of the event handle.
    nested: AtomicBool,
    queue: Arc<dyn Queue>,
}

/// A context's place on a WorkQ.
#[derive(Clone)]
pub struct Attachment {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) device: Device,
    pub(super) index: u8,
    /// Of an Rdma.
    pub(super) endpoint: OnceLock<Arc<dyn Endpoint>>,
    /// Of a SyncEvent.
    pub(super) event: OnceLock<Arc<dyn EventPort>>,
    /// The order of jobs in line, of an Rdma or a SyncEvent.
    pub(super) order: OnceLock<Arc<Order>>,
}

impl Attachment {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Its device, as who holds memory for a use.
    pub(crate) fn holder(&self, purpose: Use) -> Holder {
        Holder::new(self.device.id(), purpose)
    }

    pub(crate) fn workq(&self) -> WorkQ {
        WorkQ(Arc::clone(&self.shared))
    }

    pub(crate) fn queue_index(&self) -> u8 {
        self.index
    }

    /// An endpoint, or a port of a sync event, was opened: its queue may have a descriptor of its own by now.
    pub(super) fn listen(&self) -> Result<()> {
        let shared = &self.shared;
        let attaching = shared.attaching();
        let place = &shared.core.queues[usize::from(self.index)];
        let attached = place.get().expect("it is attached");
        if attached.nested.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(fd) = self.queue.event_fd() else {
            return Ok(());
        };
        shared.nest(fd)?;
        attached.nested.store(true, Ordering::Relaxed);
        drop(attaching);
        shared.turn_if_asked();
        Ok(())
    }

    pub(crate) fn is_on(&self, workq: &WorkQ) -> bool {
        Arc::ptr_eq(&self.shared, &workq.0)
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
        self.0.mode.load().mode()
    }

    /// Changes how its Ops wait, at once, from any thread: all who wait are woken, and go on as the new mode says. Jobs in
    /// flight and the order of those in line are untouched.
    ///
    /// From busy-polling to another mode, Ops must be polled on a Tokio runtime from then on (or in
    /// [`WorkQ::block_on`]): one that is polled elsewhere ends with `BadState`, as ever in event mode.
    ///
    /// # Errors
    ///
    /// `NotSupported` if a device that is attached cannot ring an event handle, and the mode needs it; `InvalidValue` for a
    /// spin beyond 1 s. The mode is what it was, then.
    #[doc(alias = "doca_workq_set_event_driven_enable")]
    pub fn set_mode(&self, mode: Mode) -> Result<()> {
        const OP: &str = "WorkQ::set_mode";
        let policy = Policy::of(mode, OP)?;
        let shared = &self.0;
        let attaching = shared.attaching();
        for attached in shared.core.queues.iter().map_while(OnceLock::get) {
            let event_driven = !attached.polled.load(Ordering::Relaxed);
            check_events(&attached.device, event_driven, policy, OP)?;
        }
        shared.mode.set(policy);
        drop(attaching);
        shared.nudge();
        shared.hear_of_changes();
        Ok(())
    }

    /// Slots that are taken: Jobs in flight, and results that nobody fetched yet.
    pub fn in_flight(&self) -> usize {
        self.0.in_use()
    }

    /// Refuses new Jobs from now on, and waits until nothing is in flight. Ops that wait for a Slot end with `Shutdown`;
    /// those in flight are finished, and their results can be fetched. Receives and waits that were posted end with
    /// `Shutdown` too: [`progress`](WorkQ::progress) hands them out.
    ///
    /// # Cancel safety
    ///
    /// The WorkQ stays shut down if the future is dropped; calling it again goes on waiting.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown::new(self.clone())
    }

    /// Whether a context of this device is, or was, attached.
    pub(crate) fn has(&self, device: &Device) -> bool {
        let attached = self.0.core.queues.iter().map_while(OnceLock::get);
        attached.into_iter().any(|known| known.device == *device)
    }

    pub(crate) fn is(&self, other: &WorkQ) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The place of a device's contexts on this WorkQ. The context names the call in an error.
    pub(crate) fn attach(&self, device: &Device, event_driven: bool) -> Result<Attachment> {
        let shared = &self.0;
        let caps = device.info().caps();
        // Until it is attached: no mode is set after the check.
        let attaching = shared.attaching();
        let mut nested = false;
        check_events(device, event_driven, shared.mode.load(), None)?;
        if self.depth() > caps.max_depth {
            let text = format!(
                "a depth of {}, and device {} takes {}",
                self.depth(),
                device.info().name(),
                caps.max_depth
            );
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        if shared.closed.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::BadState,
                None,
                "the WorkQ was shut down",
            ));
        }
        for (index, place) in shared.core.queues.iter().enumerate() {
            if place.get().is_none() {
                let config = QueueConfig::new(self.depth(), Arc::clone(shared.events.signal()));
                let queue = device.adapter().open_queue(config)?;
                if let Some(fd) = queue.event_fd() {
                    shared.nest(fd)?;
                    nested = true;
                }
                let _ = place.set(Attached {
                    device: device.clone(),
                    polled: AtomicBool::new(false),
                    nested: AtomicBool::new(nested),
                    queue,
                });
                // The new queue was not armed with the others. Release: who arms next sees it, since all changes of the word are
                // exchanges.
                shared.expected.swap(false, Ordering::AcqRel);
            }
            let attached = place.get().expect("it was there, or was just set");
            if attached.device == *device {
                attached.polled.fetch_or(!event_driven, Ordering::Relaxed);
                drop(attaching);
                shared.turn_if_asked();
                return Ok(Attachment {
                    shared: Arc::clone(shared),
                    queue: Arc::clone(&attached.queue),
                    device: device.clone(),
                    index: index as u8,
                    endpoint: OnceLock::new(),
                    event: OnceLock::new(),
                    order: OnceLock::new(),
                });
            }
        }
        let text = format!(
            "contexts of {DEVICES} devices are attached, as many as can be: build another WorkQ"
        );
        Err(Error::new(ErrorKind::Full, None, text))
    }
}

/// Refuses a device that cannot ring where somebody shall sleep.
fn check_events(
    device: &Device,
    event_driven: bool,
    policy: Policy,
    op: impl Into<Option<&'static str>>,
) -> Result<()> {
    if policy.is_busy() || event_driven {
        return Ok(());
    }
    let text = format!(
        "this context of device {} cannot ring an event handle: use Mode::BusyPoll",
        device.info().name()
    );
    Err(Error::new(ErrorKind::NotSupported, op, text))
}

impl Shared {
    fn attaching(&self) -> MutexGuard<'_, ()> {
        lock(&self.attaching)
    }

    /// Nanoseconds since it was built.
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

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

    /// The devices of its contexts.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        let attached = self.core.queues.iter().map_while(OnceLock::get);
        attached.map(|attached| &attached.device)
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
    /// `InvalidValue` for a depth or a spin out of bounds, `OperatingSystem` if there is no descriptor for the event handle.
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
        let policy = Policy::of(self.mode, "WorkQBuilder::build")?;
        let core = Core {
            table: Table::new(self.depth),
            registry: Registry::new(),
            queues: [const { OnceLock::new() }; DEVICES],
        };
        Ok(WorkQ(Arc::new(Shared {
            mode: Current::new(policy),
            closed: atomic::AtomicBool::new(false),
            core: Arc::new(core),
            events: Events::new()?,
            gate: Gate::new(),
            timer: Timer::new(),
            waiters: Waiters::new(),
            pause: Pause::new(),
            expected: atomic::AtomicBool::new(false),
            rung: atomic::AtomicBool::new(false),
            drained: Waiters::new(),
            runs: Waiters::new(),
            asked: atomic::AtomicU8::new(0),
            changes: sync::Mutex::new(Vec::new()),
            misses: AtomicU32::new(0),
            armed: atomic::AtomicBool::new(false),
            posted: OnceLock::new(),
            counts: Counts::default(),
            clock: Clock::new(),
            attaching: Mutex::new(()),
        })))
    }
}
