//! The queue that Jobs go into and Completions come out of.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrayvec::ArrayVec;

use super::event::Events;
use super::gate::Gate;
use super::shutdown::Shutdown;
use super::slot::Told;
use super::table::Table;
use crate::device::{Armed, Completion, Device, DeviceId, Keep, Queue, QueueConfig, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Waiters, wake};

/// The most devices whose contexts can be attached to one WorkQ.
const DEVICES: usize = 8;
/// Completions that are reaped at once.
const BATCH: usize = 8;
/// Batches in one turn, after which the rest is left to the next.
const BATCHES: usize = 64;

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
    gate: Gate,
    /// Who waits for a free Slot.
    pub(super) waiters: Waiters,
    /// How many Slots were taken by those in line.
    pub(super) taken: AtomicU32,
    /// A turn was rung for that will tell more of those in line.
    rung: AtomicBool,
    /// Who waits for the end of the last Job.
    pub(super) drained: Waiters,
    /// All who wait shall poll again.
    nudged: AtomicBool,
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
                    shared.events.nest(fd)?;
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

    fn queues(&self) -> impl Iterator<Item = &Arc<dyn Queue>> {
        self.core
            .queues
            .iter()
            .map_while(OnceLock::get)
            .map(|attached| &attached.queue)
    }

    /// Woken by an event: arms if anybody waits, then looks. (Look-then-arm loses wake-ups.)
    pub(super) fn event_turn(&self) {
        self.rung.store(false, Ordering::SeqCst);
        self.queues().for_each(|queue| queue.clear());
        // In busy mode the Ops look themselves, and only orphans wait for an event.
        let waited_for = match self.mode {
            Mode::EventDriven => self.in_use() > 0,
            Mode::BusyPoll => self.core.table.any_orphan(),
        };
        if waited_for {
            self.arm();
        }
        self.turn();
        self.pass_on(true);
    }

    /// Asks every queue to ring. True if completions wait already.
    pub(super) fn arm(&self) -> bool {
        self.queues()
            .fold(false, |ready, queue| ready | (queue.arm() == Armed::Ready))
    }

    /// Whether a look would find something.
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.queues().any(|queue| queue.ready())
    }

    /// Makes all who wait poll again.
    pub(super) fn nudge(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        self.turn();
    }

    /// Looks: reaps what has finished, and tells. If somebody else does so already, that one looks once more.
    pub(super) fn turn(&self) {
        if !self.gate.enter() {
            return;
        }
        for _ in 0..BATCHES {
            let mut batch = TellBatch::default();
            self.reap(&mut batch);
            let left = self.gate.leave();
            let TellBatch {
                freed,
                nudged,
                more,
                ..
            } = batch;
            batch.tell();
            if nudged {
                wake_all(&self.waiters);
                wake_all(&self.drained);
            }
            if freed || !self.drained.is_empty() {
                self.after_free();
            }
            if left && (!more || !self.gate.enter()) {
                return;
            }
        }
        // Enough for one turn. The rest must not be stranded: ring, so that there is another.
        while !self.gate.leave() {}
        self.events.signal().ring();
    }

    /// Reaps one batch. The caller is in the gate.
    #[inline(always)]
    fn reap(&self, batch: &mut TellBatch) {
        if self.nudged.load(Ordering::Relaxed) && self.nudged.swap(false, Ordering::SeqCst) {
            batch.nudged = true;
            // Wakers are user code, but the gate is no lock: whoever comes meanwhile is refused and goes on.
            self.core.table.nudge(wake);
        }
        let nothing = Completion {
            token: Token::from_raw(u64::MAX),
            result: Ok(0),
        };
        let mut completions = [nothing; BATCH];
        let mut left = BATCH;
        for queue in self.queues() {
            // What a provider answers is checked: it cannot have filled more than there is.
            let reaped = queue.reap(&mut completions[..left]).min(left);
            for completion in &completions[..reaped] {
                let (freed, told) = self.core.table.complete(completion);
                batch.freed |= freed;
                batch.told.extend(told);
            }
            left -= reaped;
            if left == 0 {
                batch.more = true;
                break;
            }
        }
    }

    /// A Slot became free, or the last Job ended.
    #[inline]
    pub(super) fn after_free(&self) {
        if !self.waiters.is_empty() {
            self.pass_on(false);
        }
        if !self.drained.is_empty() && !self.core.table.any_in_flight() {
            wake_all(&self.drained);
        }
    }

    /// Tells as many in line as there are free Slots, less those that were told already.
    ///
    /// Those may be futures that nobody polls. So if Slots are free and others are left, another turn is rung for, and
    /// that one (`overtake`) counts the told no more. In busy mode those in line look themselves.
    pub(super) fn pass_on(&self, overtake: bool) {
        while !self.waiters.is_empty() {
            let free = self.core.table.free().free();
            let mut left = 0;
            let batch = self.waiters.notify(|who| {
                let told = if overtake { 0 } else { who.notified };
                let now = free.saturating_sub(told).min(who.waiting);
                left = who.waiting - now;
                now
            });
            let more = batch.more;
            batch.wake();
            if !more {
                let ring = free > 0 && left > 0 && self.mode == Mode::EventDriven;
                if ring && !self.rung.swap(true, Ordering::SeqCst) {
                    self.events.signal().ring();
                }
                return;
            }
        }
    }
}

/// Wakes everybody in line.
pub(super) fn wake_all(waiters: &Waiters) {
    loop {
        let batch = waiters.notify(|who| who.waiting);
        let more = batch.more;
        batch.wake();
        if !more {
            return;
        }
    }
}

/// Whom to tell, once the gate was left.
#[derive(Default)]
struct TellBatch {
    told: ArrayVec<Told, BATCH>,
    freed: bool,
    nudged: bool,
    /// The array of completions was full: there may be more.
    more: bool,
}

impl TellBatch {
    fn tell(self) {
        for told in self.told {
            match told {
                Told::Waker(waker) => wake(waker),
                Told::Run(run, node, outcome) => run.completed(node, outcome),
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (index, queue) in self.queues().enumerate() {
            // No handle, context or Op is left, so nobody else reaches the table.
            let outstanding = self.core.table.outstanding(index as u8);
            let keep: Keep = Arc::clone(&self.core) as Keep;
            queue.retire(keep, outstanding);
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
            rung: AtomicBool::new(false),
            drained: Waiters::new(),
            nudged: AtomicBool::new(false),
            misses: AtomicU32::new(0),
            attaching: Mutex::new(()),
        })))
    }
}
