//! An Endpoint on a WorkQ, and its table of receives.
#![expect(
    unsafe_code,
    reason = "the Endpoint must be promised valid, leased memory"
)]

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use super::held::Outcome;
use super::received::Room;
use super::receives::{Receipt, Receives};
use super::registry::Changed;
use super::watch::{RdmaState, RdmaWatch, Watched};
use super::workq::{Attachment, Shared};
use crate::device::{Endpoint, EndpointConfig, EndpointState, Keep, RdmaJob};
use crate::error::{JobError, Result};
use crate::mem::Leased;
use crate::sync::{Order, WaitNode, contain};

/// An Endpoint on a WorkQ, and its table of receives.
pub(crate) struct QueuePair {
    attachment: Attachment,
    endpoint: Arc<dyn Endpoint>,
    /// Of its jobs that wait in line for a Slot.
    order: Arc<Order>,
    receives: Arc<Receives>,
    watched: Arc<Watched>,
}

impl QueuePair {
    /// Opens one, for a context that was attached.
    pub(crate) fn open(attachment: &Attachment, config: EndpointConfig) -> Result<QueuePair> {
        let watched = Arc::new(Watched::new());
        let table: Arc<OnceLock<Weak<Receives>>> = Arc::default();
        let changed: Changed = {
            let (watched, table) = (Arc::clone(&watched), Arc::clone(&table));
            Arc::new(move || {
                // The endpoint is a provider's, and may panic.
                contain("a device", || watched.update());
                // Operations that have no receive posted cannot be flushed: they look themselves.
                if let Some(receives) = table.get().and_then(Weak::upgrade) {
                    contain("a device", || receives.wake_unposted());
                }
            })
        };
        // What the provider calls, maybe amid a look. The provider keeps nothing by it: what it
        // drops there would be the last handle of the watch, which wakes too.
        let said: Changed = {
            let shared = Arc::downgrade(&attachment.shared);
            let changed = Arc::downgrade(&changed);
            Arc::new(move || {
                if let (Some(shared), Some(changed)) = (shared.upgrade(), changed.upgrade()) {
                    shared.changed(changed);
                }
            })
        };
        let (size, config) = (
            config.recv_queue_size,
            EndpointConfig {
                changed: said,
                ..config
            },
        );
        let closed: Changed = {
            let (shared, watched) = (Arc::downgrade(&attachment.shared), Arc::clone(&watched));
            let changed = Arc::clone(&changed);
            Arc::new(move || {
                let shut = |shared: Arc<Shared>| shared.closed.load(Ordering::SeqCst);
                if shared.upgrade().is_some_and(shut) {
                    watched.close();
                }
                changed();
            })
        };
        let endpoint = attachment.queue.open_endpoint(config)?;
        let _ = attachment.endpoint.set(Arc::clone(&endpoint));
        let order = attachment.order.get_or_init(Order::new);
        watched.set_endpoint(&endpoint);
        let registry = &attachment.shared.core.registry;
        let receives = match registry.add(Some(Arc::clone(&closed)), |n| Receives::new(size, n)) {
            Ok(receives) => receives,
            Err(error) => {
                // SAFETY: nothing was posted.
                unsafe { endpoint.retire(Arc::new(())) };
                return Err(error);
            }
        };
        let _ = table.set(Arc::downgrade(&receives));
        let pair = QueuePair {
            attachment: attachment.clone(),
            endpoint,
            order: Arc::clone(order),
            receives,
            watched,
        };
        attachment.listen()?;
        // It may have changed, or the WorkQ been shut down, before it was known.
        closed();
        Ok(pair)
    }

    pub(crate) fn state(&self) -> RdmaState {
        if self.attachment.is_closed() {
            return RdmaState::Reset;
        }
        let shared = &self.attachment.shared;
        // Nobody else may look.
        if shared.ready() {
            shared.turn();
        }
        self.watched.now()
    }

    /// Watches the state. While the watch lives, the device rings for changes too, if Ops are rung
    /// for and this is a runtime.
    pub(crate) fn watch(&self) -> RdmaWatch {
        RdmaWatch::new(&self.watched, &self.attachment.shared)
    }

    pub(crate) fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// Back to Init. Messages that nobody took are dropped.
    pub(crate) fn reset(&self) {
        let shared = &self.attachment.shared;
        let resetting = self.receives.reset();
        self.endpoint.reset();
        // What was flushed is collected, so that the memory goes back; and messages that had come
        // before, so that they are known as such.
        shared.turn();
        drop(resetting);
        shared.tell(&*self.receives, false);
        self.receives.unfed.wake_all();
    }

    /// Finishes a job now, if the device can, and none of its connection waits in line.
    #[inline(always)]
    pub(crate) fn finish_inline<L>(&self, begun: &Leased<L, RdmaJob>) -> Option<Outcome> {
        if !self.order.is_empty() {
            return None;
        }
        // SAFETY: what `mem` has begun holds the Leases of its memory, here during the call.
        unsafe { self.endpoint.try_inline(begun.job()) }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.attachment.shared
    }

    /// Refuses everything once the WorkQ was shut down.
    pub(super) fn check_open(&self) -> Result<(), JobError> {
        self.attachment.check_open()
    }

    /// If the connection has failed, returns what a receive is refused with until the next reset.
    pub(super) fn failure(&self) -> Option<JobError> {
        match self.endpoint.state() {
            EndpointState::Error(cause) => Some(JobError::flushed(cause)),
            EndpointState::Init | EndpointState::Connected => None,
        }
    }

    pub(super) fn receives(&self) -> &Arc<Receives> {
        &self.receives
    }

    /// Posts a receive: `Err` has the memory, if there is no place for it.
    pub(super) fn post(&self, room: Room) -> Result<Result<Receipt, Room>, JobError> {
        let (segments, len) = (room.segments, room.len);
        let life = self.receives.life();
        let receipt = match self.receives.fill(room) {
            Ok(receipt) => receipt,
            Err(room) => return Ok(Err(room)),
        };
        let token = self.receives.token(receipt);
        // SAFETY: the place has the Leases of the memory, and keeps them until the completion was reaped, or until the device
        // drops the table (`retire`). A place is one receive, and there are as many as the endpoint was promised.
        match unsafe { self.endpoint.post_recv(token, &segments, len) } {
            Ok(()) => {
                if self.receives.life() != life {
                    self.receives.posted_anew(receipt);
                }
                Ok(Ok(receipt))
            }
            Err(error) => {
                drop(self.receives.undo(receipt));
                self.attachment.shared.tell(&*self.receives, false);
                Err(error)
            }
        }
    }

    /// Stands in line for a place.
    pub(super) fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        let (line, order) = (&self.receives.line, &self.receives.order);
        // SAFETY: the table is in an Arc, which the RecvFlight that has the node reaches through its
        // context, borrowed or owned, until after the node is dropped (field order, and the borrow).
        unsafe { line.enqueue_in(Some(order), node, waker) };
    }

    /// Has a stream without a receive woken when the connection ends.
    pub(super) fn enqueue_unfed(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: the table is in an Arc, which the Unfed that has the node reaches through its
        // context until after the node is dropped (field order).
        unsafe { self.receives.unfed.enqueue(node, waker) };
    }
}

impl Shared {
    /// If somebody is to be told of changes of the state, the device shall ring for them.
    pub(super) fn hear_of_changes(self: &Arc<Self>) {
        // Where there is no runtime nobody waits; who has one registers it, and arms.
        if self.core.registry.any_watched()
            && !self.mode.load().is_busy()
            && self.events.register(self).is_ok()
            && self.arm() | self.ready()
        {
            self.turn();
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.watched.end();
        self.attachment.shared.core.registry.forget(&*self.receives);
        let keep: Keep = Arc::clone(&self.receives) as Keep;
        // SAFETY: no handle and no Op is left, so nobody posts; the table has the Leases of all receives that are posted.
        unsafe { self.endpoint.retire(keep) };
        let shared = &self.attachment.shared;
        if !shared.mode.load().is_busy() {
            // Nobody may wait for anything, and a look lets go of what it had. Not here: wakers are user code.
            shared.events.ring();
        }
    }
}
