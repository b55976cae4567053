//! [`Shared`], the state of a WorkQ that handles, contexts and operations share, and
//! [`Attachment`], by which a context reaches it.
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

/// The state of a WorkQ, which handles, contexts and operations share.
pub(in crate::reactor) struct Shared {
    pub(in crate::reactor) mode: Current,
    pub(in crate::reactor) closed: AtomicBool,
    pub(in crate::reactor) core: Arc<Core>,
    pub(in crate::reactor) events: Events,
    pub(in crate::reactor) gate: Gate,
    /// Keeps the time. It signals for futures that poll again after a while, and for a device that
    /// was full.
    pub(in crate::reactor) timer: Timer,
    /// The operations that wait for a free slot.
    pub(in crate::reactor) waiters: Waiters,
    pub(in crate::reactor) stream_slots: StreamSlots,
    /// The pause of the line `waiters` after a device was full.
    pub(in crate::reactor) pause: Pause,
    /// True if all queues were armed and no event was handled since. Then an event will come with
    /// the next completion, or is on its way, or the thread that armed is about to poll. A future
    /// that goes to sleep meanwhile need not arm.
    pub(in crate::reactor) expected: AtomicBool,
    /// True if a further turn was signalled for, to notify more waiters in line for slots or for
    /// entries of other tables.
    pub(in crate::reactor) signalled: AtomicBool,
    /// The futures of [`WorkQ::shutdown`](crate::WorkQ::shutdown), which wait until the last job
    /// has completed.
    pub(super) drained: Waiters,
    /// The runs of graphs that sleep. A run has no waker in its slots, so `wake_all` reaches it
    /// here.
    pub(super) runs: Waiters,
    /// Requests to the next turn, one bit each; `turn.rs` has the bits.
    pub(in crate::reactor) requests: AtomicU8,
    /// Functions that notify the watchers of Rdmas whose state has changed. The next turn calls
    /// them.
    pub(in crate::reactor) changes: Mutex<Vec<Changed>>,
    /// The number of polls in a row that found nothing.
    pub(in crate::reactor) misses: Misses,
    /// The state of spinning in Hybrid mode, which all futures share.
    spins: Spins,
    /// The completion vector, that is the interrupt by which an adapter signals its queue.
    pub(super) completion_vector: u32,
    /// The state of the caller's own loop: whether it has armed, and what it has posted.
    pub(in crate::reactor) own_loop: OwnLoop,
    pub(super) counts: Counts,
    /// True once the log says that a device's queue is broken.
    pub(super) broken: std::sync::atomic::AtomicBool,
    attaching: std::sync::Mutex<()>,
}

/// The part of a WorkQ's state that the devices keep until their last job has completed: slots,
/// tables and queues.
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
    /// Where the context submits its jobs: to the queue, or to its Rdma's or SyncEvent's part of
    /// the queue.
    pub(in crate::reactor) to: Arc<dyn Submit>,
    /// What [`Submit::finishes_inline`] of `to` returned.
    pub(in crate::reactor) finishes_inline: bool,
    /// The order of the jobs in line, for an Rdma or a SyncEvent.
    pub(in crate::reactor) order: Option<Arc<Order>>,
}

/// A request of an operation, which reaches its WorkQ by its context's attachment.
pub trait HasAttachment {
    fn attachment(&self) -> &Attachment;
}

impl Attachment {
    /// Makes the context submit its jobs to `to`, a part of the queue.
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

    /// Returns the context's device as the holder of memory that is registered for `purpose`.
    pub(crate) fn holder(&self, purpose: RegistrationUse) -> Holder {
        Holder::new(self.device.id(), purpose)
    }

    /// Returns true if the WorkQ was shut down. The load is SeqCst, since `submit` needs that
    /// order.
    #[inline(always)]
    pub(in crate::reactor) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::SeqCst)
    }

    /// Returns the error `Shutdown` if the WorkQ was shut down.
    #[inline(always)]
    pub(crate) fn check_open(&self) -> Result<(), JobError> {
        let open = !self.is_closed();
        open.then_some(()).ok_or(JobError::of(Reason::Shutdown))
    }
}

impl Shared {
    /// Returns the error of a receive as the caller should see it: `Shutdown` if the shutdown of
    /// the WorkQ has reset the connection, and `error` otherwise.
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

    /// Takes the lock by which one context at a time is attached, and no mode is set meanwhile.
    pub(super) fn attaching(&self) -> MutexGuard<'_, ()> {
        lock(&self.attaching)
    }

    /// Returns the nanoseconds since the WorkQ was built.
    pub(in crate::reactor) fn now(&self) -> u64 {
        self.timer.now()
    }

    /// Returns true if a future shall poll by itself now (spin) instead of sleeping. If so, the
    /// future must make its task poll again at once.
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

    /// Returns the devices of all attached contexts.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.core.queues.iter().map(|attached| &attached.device)
    }

    /// Returns the policy by which a future that is polled on this thread waits.
    #[inline]
    pub(in crate::reactor) fn policy(&self) -> Policy {
        match this_thread::is_in_own_loop(self) {
            true => Policy::EVENT,
            false => self.mode.load(),
        }
    }

    /// Returns true if `policy` still applies to this thread. A future that waits by it calls this
    /// before it sleeps, after it was stored where a change of mode finds it.
    pub(in crate::reactor) fn is_still(&self, policy: Policy) -> bool {
        this_thread::is_in_own_loop(self) || self.mode.is_still(policy)
    }
}
