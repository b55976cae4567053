//! An Endpoint on a WorkQ, and its table of receives.
#![expect(
    unsafe_code,
    reason = "the Endpoint must be promised valid, leased memory"
)]

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use tokio::sync::watch;

use super::held::Outcome;
use super::received::Room;
use super::receives::{Receipt, Receives};
use super::registry::Changed;
use super::workq::{Attachment, Shared};
use crate::device::{Endpoint, EndpointConfig, EndpointState, Keep, RdmaJob};
use crate::error::{JobError, Result};
use crate::mem::Begun;
use crate::sync::{WaitNode, contain};

/// Where an [`Rdma`](crate::Rdma) is in its life (RDMA guide 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "doca_rdma_state")]
pub enum RdmaState {
    /// Its WorkQ was shut down.
    #[doc(alias = "DOCA_RDMA_STATE_RESET")]
    Reset,
    /// It can be exported and connected, and takes receives.
    #[doc(alias = "DOCA_RDMA_STATE_INIT")]
    Init,
    /// It is connected.
    #[doc(alias = "DOCA_RDMA_STATE_CONNECTED")]
    Connected,
    /// A job has failed, or the peer has gone: nothing is taken before [`Rdma::reset`](crate::Rdma::reset). This was the first cause.
    #[doc(alias = "DOCA_RDMA_STATE_ERROR")]
    Error(JobError),
}

/// The state of an Endpoint, for those who watch it.
struct Watched {
    sender: watch::Sender<RdmaState>,
    endpoint: OnceLock<Weak<dyn Endpoint>>,
    /// The WorkQ was shut down.
    closed: AtomicBool,
}

impl Watched {
    fn now(&self) -> RdmaState {
        if self.closed.load(Ordering::SeqCst) {
            return RdmaState::Reset;
        }
        let endpoint = self.endpoint.get().and_then(Weak::upgrade);
        match endpoint.map_or(EndpointState::Init, |endpoint| endpoint.state()) {
            EndpointState::Init => RdmaState::Init,
            EndpointState::Connected => RdmaState::Connected,
            EndpointState::Error(cause) => RdmaState::Error(cause),
        }
    }

    /// Asked in the lock of the watch, so that the last to change it says the last state.
    fn changed(&self) {
        self.sender.send_if_modified(|known| {
            let now = self.now();
            std::mem::replace(known, now) != now
        });
    }
}

/// An Endpoint on a WorkQ, and its table of receives.
pub(crate) struct QueuePair {
    attachment: Attachment,
    endpoint: Arc<dyn Endpoint>,
    receives: Arc<Receives>,
    watched: Arc<Watched>,
}

impl QueuePair {
    /// Opens one, for a context that was attached.
    pub(crate) fn open(attachment: &Attachment, config: EndpointConfig) -> Result<QueuePair> {
        const OP: &str = "RdmaBuilder::attach";
        let watched = Arc::new(Watched {
            sender: watch::Sender::new(RdmaState::Init),
            endpoint: OnceLock::new(),
            closed: AtomicBool::new(false),
        });
        let changed: Changed = {
            let watched = Arc::clone(&watched);
            // Whoever waits for a change has a waker of the user's.
            Arc::new(move || contain(|| watched.changed()))
        };
        let (size, config) = (
            config.recv_queue_size,
            EndpointConfig {
                changed: Arc::clone(&changed),
                ..config
            },
        );
        let closed: Changed = {
            let (shared, watched) = (Arc::downgrade(&attachment.shared), Arc::clone(&watched));
            let changed = Arc::clone(&changed);
            Arc::new(move || {
                let shut = |shared: Arc<Shared>| shared.closed.load(Ordering::SeqCst);
                if shared.upgrade().is_some_and(shut) {
                    watched.closed.store(true, Ordering::SeqCst);
                }
                changed();
            })
        };
        let endpoint = attachment.queue.open_endpoint(config)?;
        let _ = attachment.endpoint.set(Arc::clone(&endpoint));
        let _ = watched.endpoint.set(Arc::downgrade(&endpoint));
        let registry = &attachment.shared.core.registry;
        let receives = match registry.add(OP, Some(Arc::clone(&closed)), |n| Receives::new(size, n))
        {
            Ok(receives) => receives,
            Err(error) => {
                // SAFETY: nothing was posted.
                unsafe { endpoint.retire(Arc::new(())) };
                return Err(error);
            }
        };
        let pair = QueuePair {
            attachment: attachment.clone(),
            endpoint,
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

    /// From now on the device rings for a change of the state too, if Ops are rung for and this is a runtime.
    pub(crate) fn watch(&self) -> watch::Receiver<RdmaState> {
        let receiver = self.watched.sender.subscribe();
        let shared = &self.attachment.shared;
        shared.core.registry.watch();
        shared.hear_of_changes();
        receiver
    }

    pub(crate) fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// Back to Init. Messages that nobody took are dropped.
    pub(crate) fn reset(&self) {
        self.receives.forget_messages(true);
        self.endpoint.reset();
        self.receives.forget_messages(false);
        let shared = &self.attachment.shared;
        // What was flushed is collected, so that the memory goes back.
        shared.turn();
        shared.tell(&*self.receives, false);
    }

    /// Finishes a job now, if the device can.
    #[inline(always)]
    pub(crate) fn finish_inline<L>(&self, begun: &Begun<L, RdmaJob>) -> Option<Outcome> {
        // SAFETY: what `mem` has begun holds the Leases of its memory, here during the call.
        unsafe { self.endpoint.try_inline(begun.job()) }
    }

    pub(super) fn receives(&self) -> &Arc<Receives> {
        &self.receives
    }

    /// Posts a receive: `Err` has the memory, if there is no place for it.
    pub(super) fn post(&self, room: Room) -> Result<Result<Receipt, Room>, JobError> {
        let (segments, len) = (room.segments, room.len);
        let receipt = match self.receives.fill(room) {
            Ok(receipt) => receipt,
            Err(room) => return Ok(Err(room)),
        };
        let token = self.receives.token(receipt);
        // SAFETY: the place has the Leases of the memory, and keeps them until the completion was reaped, or until the device
        // drops the table (`retire`). A place is one receive, and there are as many as the endpoint was promised.
        match unsafe { self.endpoint.post_recv(token, &segments, len) } {
            Ok(()) => Ok(Ok(receipt)),
            Err(error) => {
                drop(self.receives.undo(receipt));
                self.attachment.shared.tell(&*self.receives, false);
                Err(error)
            }
        }
    }

    /// Stands in line for a place.
    pub(super) fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: the table is in an Arc, which the RecvFlight that has the node reaches through its context, borrowed or owned, until
        // after the node is dropped (field order, and the borrow).
        unsafe { self.receives.line.enqueue(node, waker) };
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
