//! The state of a WorkQ that handles, contexts and operations share, and a context's attachment to
//! it.
//!
//! All files that submit, wait or poll import this file, and it imports none of them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use super::counts::Counts;
use super::pause::Pause;
use super::queues::Queues;
use crate::device::{Device, Queue, RegistrationUse, Submit};
use crate::error::{JobError, Reason, Result};
use crate::mem::Holder;
use crate::reactor::events::{Events, Timer, this_thread};
use crate::reactor::gate::Gate;
use crate::reactor::mode::{Current, Misses, Policy};
use crate::reactor::slots::Table;
use crate::reactor::spin::{Spin, Spins};
use crate::reactor::tables::{Changed, OwnLoop, Registry, StreamSlots};
use crate::sync::atomic::{AtomicBool, AtomicU8};
use crate::sync::{Mutex, Order, Waiters, lock};

/// The state that handles, contexts and operations share.
pub(in crate::reactor) struct Shared {
    pub(in crate::reactor) mode: Current,
    pub(in crate::reactor) closed: AtomicBool,
    pub(in crate::reactor) core: Arc<Core>,
    pub(in crate::reactor) events: Events,
    pub(in crate::reactor) gate: Gate,
    /// Keeps the time. It signals for idle waits that poll again after a while, and for a device
    /// that was full.
    pub(in crate::reactor) timer: Timer,
    /// The operations that wait for a free slot.
    pub(in crate::reactor) waiters: Waiters,
    pub(in crate::reactor) stream_slots: StreamSlots,
    /// Says whether the waiters in line shall ask the device, which was full.
    pub(in crate::reactor) pause: Pause,
    /// All queues were armed, and no event was seen since: an event will come with the next
    /// completion, or is on its way, or the thread that armed is about to poll. A future that goes
    /// to sleep meanwhile need not arm.
    pub(in crate::reactor) expected: AtomicBool,
    /// A turn was signalled for that notifies more waiters in line, for slots or for entries of
    /// other tables.
    pub(in crate::reactor) signalled: AtomicBool,
    /// The futures that wait for the end of the last job.
    pub(super) drained: Waiters,
    /// The runs of graphs that sleep. A run has no waker in its slots, so `wake_all` reaches it
    /// here.
    pub(super) runs: Waiters,
    /// What else the next turn shall do: `turn.rs` has the bits.
    pub(in crate::reactor) requests: AtomicU8,
    /// The watches whose state has changed, to be notified by the next turn.
    pub(in crate::reactor) changes: Mutex<Vec<Changed>>,
    /// The budget of the busy mode.
    pub(in crate::reactor) misses: Misses,
    /// The spins of the Hybrid mode.
    spins: Spins,
    /// The interrupt of an adapter that signals its queue.
    pub(super) completion_vector: u32,
    /// What the caller's own loop has armed and posted.
    pub(in crate::reactor) own_loop: OwnLoop,
    pub(super) counts: Counts,
    /// The log already says that a device's queue is broken.
    pub(super) broken: std::sync::atomic::AtomicBool,
    attaching: std::sync::Mutex<()>,
}

/// The state that a device needs until its last job: the slots, and the queues of all devices.
pub(in crate::reactor) struct Core {
    pub(in crate::reactor) table: Table,
    /// The receives of the WorkQ's Rdmas, and the waits of its sync events.
    pub(in crate::reactor) registry: Registry,
    pub(super) queues: Queues,
}

/// A context's attachment to a WorkQ.
#[derive(Clone)]
pub struct Attachment {
    pub(in crate::reactor) shared: Arc<Shared>,
    pub(in crate::reactor) queue: Arc<dyn Queue>,
    pub(in crate::reactor) device: Device,
    pub(in crate::reactor) index: u8,
    /// Where the context submits its jobs: to the queue, or to the part of an Rdma or a SyncEvent
    /// on it.
    pub(in crate::reactor) to: Arc<dyn Submit>,
    /// What [`Submit::finishes_inline`] of `to` returned.
    pub(in crate::reactor) finishes_inline: bool,
    /// The order of the jobs in line, for an Rdma or a SyncEvent.
    pub(in crate::reactor) order: Option<Arc<Order>>,
}

/// An operation that is attached to a WorkQ by its context.
pub trait HasAttachment {
    fn attachment(&self) -> &Attachment;
}

impl Attachment {
    /// Submits the context's jobs to a part of the queue from now on.
    pub(in crate::reactor) fn submit_to(&mut self, to: Arc<dyn Submit>) {
        self.finishes_inline = to.finishes_inline();
        self.to = to;
    }

    /// Returns true if the device may finish jobs inside the call, and no other Rdma or sync event
    /// uses the WorkQ.
    pub(crate) fn is_alone_and_inline(&self) -> bool {
        self.finishes_inline && self.shared.core.registry.tables.load(Ordering::Relaxed) == 1
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the context's device as the holder of memory for a use.
    pub(crate) fn holder(&self, purpose: RegistrationUse) -> Holder {
        Holder::new(self.device.id(), purpose)
    }

    /// Returns true if the WorkQ was shut down. SeqCst, since `submit` needs it.
    #[inline(always)]
    pub(in crate::reactor) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::SeqCst)
    }

    /// Returns `Shutdown` once the WorkQ was shut down.
    #[inline(always)]
    pub(crate) fn check_open(&self) -> Result<(), JobError> {
        let open = !self.is_closed();
        open.then_some(()).ok_or(JobError::of(Reason::Shutdown))
    }
}

impl Shared {
    /// Returns the error of a receive, or `Shutdown`, if that has reset the connection.
    pub(in crate::reactor) fn why(&self, error: JobError) -> JobError {
        let shut = error.cause() == Some(Reason::Reset) && self.closed.load(Ordering::SeqCst);
        let shutdown = shut.then(|| JobError::of(Reason::Shutdown));
        shutdown.unwrap_or(error)
    }

    pub(in crate::reactor) fn new(
        policy: Policy,
        depth: u32,
        completion_vector: u32,
    ) -> Result<Shared> {
        let core = Core {
            table: Table::new(depth),
            registry: Registry::new(),
            queues: Queues::new(),
        };
        Ok(Shared {
            mode: Current::new(policy),
            closed: AtomicBool::new(false),
            core: Arc::new(core),
            events: Events::new()?,
            gate: Gate::new(),
            timer: Timer::new(),
            waiters: Waiters::new(),
            stream_slots: StreamSlots::new(depth),
            pause: Pause::new(),
            expected: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
            drained: Waiters::new(),
            runs: Waiters::new(),
            requests: AtomicU8::new(0),
            changes: Mutex::new(Vec::new()),
            misses: Misses::new(),
            spins: Spins::new(),
            completion_vector,
            own_loop: OwnLoop::new(),
            counts: Counts::default(),
            broken: false.into(),
            attaching: std::sync::Mutex::new(()),
        })
    }

    /// Locks the attaching of contexts: one is attached at a time, and no mode is set meanwhile.
    pub(super) fn attaching(&self) -> MutexGuard<'_, ()> {
        lock(&self.attaching)
    }

    /// Returns the nanoseconds since the WorkQ was built.
    pub(in crate::reactor) fn now(&self) -> u64 {
        self.timer.now()
    }

    /// Returns true if a future polls by itself, and is polled again at once, instead of sleeping.
    pub(in crate::reactor) fn spins(&self, policy: Policy, spin: &mut Spin) -> bool {
        let asleep = || self.core.registry.asleep();
        let is_over = |spin: &mut Spin| spin.is_over(policy, &self.spins, asleep, || self.now());
        policy.is_busy() || !(policy.is_event() || is_over(spin))
    }

    /// Notes that a future that may have spun has found what it waited for.
    pub(in crate::reactor) fn spun(&self, policy: Policy, spin: &Spin) {
        spin.found(policy, &self.spins, || self.now());
    }

    /// Returns the number of slots that are taken.
    pub(in crate::reactor) fn in_use(&self) -> usize {
        let free = self.core.table.free();
        free.slots() - free.free()
    }

    pub(in crate::reactor) fn queues(&self) -> impl Iterator<Item = &Arc<dyn Queue>> {
        self.core.queues.iter().map(|attached| &attached.queue)
    }

    /// Returns the devices of its contexts.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.core.queues.iter().map(|attached| &attached.device)
    }

    /// Returns how a future that is polled on this thread waits.
    #[inline]
    pub(in crate::reactor) fn policy(&self) -> Policy {
        match this_thread::is_in_own_loop(self) {
            true => Policy::EVENT,
            false => self.mode.load(),
        }
    }

    /// Returns true if a future still waits by `policy`. A future asks before it sleeps, once it is
    /// where a change of mode finds it.
    pub(in crate::reactor) fn is_still(&self, policy: Policy) -> bool {
        this_thread::is_in_own_loop(self) || self.mode.is_still(policy)
    }
}
