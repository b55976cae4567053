//! An Endpoint on a WorkQ, and its table of receives.
#![expect(
    unsafe_code,
    reason = "the Endpoint must be promised valid, leased memory"
)]

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use arrayvec::ArrayVec;

use super::watch::{RdmaState, RdmaWatch, WatchState};
use crate::device::{
    Access, Endpoint, EndpointConfig, EndpointState, KeepAlive, Path, Queue, Receive, Submit,
    Transport,
};
use crate::error::{ErrorKind, JobError, Reason, Result};
use crate::mem::Grow;
use crate::reactor::tables::{Changed, Receipt, Received, RecvBuf, RecvTable};
use crate::reactor::workq::{Attachment, Shared};
use crate::sync::{Order, WaitNode, contain, log};

/// An Endpoint on a WorkQ, and its table of receives.
pub(crate) struct EndpointPort {
    attachment: Attachment,
    endpoint: Arc<dyn Endpoint>,
    receives: Arc<RecvTable>,
    watched: Arc<WatchState>,
}

/// Returns what is done when the state of the connection has changed, or a message waits to be
/// taken.
fn on_change(watched: &Arc<WatchState>, table: &Arc<OnceLock<Weak<RecvTable>>>) -> Changed {
    let (watched, table) = (Arc::clone(watched), Arc::clone(table));
    Arc::new(move || {
        // The endpoint is a provider's, and may panic.
        contain("a device", || watched.update());
        // Who has no receive posted looks for itself: it cannot be flushed, and a message may wait
        // to be taken.
        watched.waiting.wake_all();
        if let Some(receives) = table.get().and_then(Weak::upgrade) {
            receives.line.wake_all();
        }
    })
}

impl EndpointPort {
    /// Opens one, for a context that was attached.
    pub(crate) fn open(
        attachment: &mut Attachment,
        config: EndpointConfig,
    ) -> Result<EndpointPort> {
        let watched = Arc::new(WatchState::new());
        let table: Arc<OnceLock<Weak<RecvTable>>> = Arc::default();
        let changed = on_change(&watched, &table);
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
        let size = match config.pooled_room {
            Some(_) => 0,
            None => config.recv_queue_size,
        };
        let config = EndpointConfig {
            changed: said,
            ..config
        };
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
        attachment.submit_to(Arc::clone(&endpoint) as Arc<dyn Submit>);
        attachment.order = Some(Order::new());
        watched.set_endpoint(&endpoint);
        let registry = &attachment.shared.core.registry;
        let receives = match registry.add(Some(Arc::clone(&closed)), |n| RecvTable::new(size, n)) {
            Ok(receives) => receives,
            Err(error) => {
                // SAFETY: nothing was posted.
                unsafe { endpoint.retire(Arc::new(())) };
                return Err(error);
            }
        };
        let _ = table.set(Arc::downgrade(&receives));
        let port = EndpointPort {
            attachment: attachment.clone(),
            endpoint,
            receives,
            watched,
        };
        attachment.listen()?;
        let (rdma, device) = (port.watched.id, attachment.device().info().name());
        log(|| tracing::debug!(target: "tokio_doca::rdma", rdma, device, "opened"));
        // It may have changed, or the WorkQ been shut down, before it was known.
        closed();
        Ok(port)
    }

    pub(crate) fn transport(&self) -> Transport {
        self.endpoint.transport()
    }

    /// Returns what the peer lets this side do.
    pub(crate) fn peer_permissions(&self) -> Access {
        self.endpoint.peer_permissions()
    }

    pub(crate) fn path(&self) -> Option<Path> {
        self.endpoint.path()
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

    /// Returns how often it was connected, and how often its state turned to Error, as far as was
    /// noticed.
    pub(crate) fn transitions(&self) -> (u64, u64) {
        self.watched.update();
        self.watched.transitions()
    }

    /// Returns the number by which the log names the Rdma.
    pub(crate) fn id(&self) -> u64 {
        self.watched.id
    }

    /// The peer's stream has ended in order, for the log.
    pub(crate) fn set_ended(&self) {
        self.watched.set_ended();
    }

    /// Has the log name the peer from now on.
    pub(crate) fn set_peer(&self, peer: String) {
        self.watched.set_peer(peer);
    }

    pub(crate) fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// Back to Init. Messages that nobody took are dropped.
    pub(crate) fn reset(&self) {
        let (rdma, peer) = (self.watched.id, self.watched.peer());
        log(|| tracing::debug!(target: "tokio_doca::rdma", rdma, peer, "reset"));
        let shared = &self.attachment.shared;
        let resetting = self.receives.reset();
        self.endpoint.reset();
        // What was flushed is collected, so that the memory goes back; and messages that had come
        // before, so that they are known as such.
        shared.turn();
        drop(resetting);
        shared.notify_line(&*self.receives, false);
        self.watched.waiting.wake_all();
    }

    pub(in crate::reactor) fn shared(&self) -> &Arc<Shared> {
        &self.attachment.shared
    }

    pub(super) fn queue(&self) -> &Arc<dyn Queue> {
        &self.attachment.queue
    }

    /// Refuses everything once the WorkQ was shut down.
    pub(in crate::reactor) fn check_open(&self) -> Result<(), JobError> {
        self.attachment.check_open()
    }

    /// If the connection has failed, returns what a receive is refused with until the next reset.
    pub(super) fn failure(&self) -> Option<JobError> {
        match self.endpoint.state() {
            EndpointState::Error(cause) => Some(JobError::flushed(cause)),
            EndpointState::Init | EndpointState::Connected => None,
        }
    }

    pub(crate) fn receives(&self) -> &Arc<RecvTable> {
        &self.receives
    }

    /// Posts a receive for each of the rooms, from the first on, for which there is a place, and
    /// adds their receipts to an empty list. The other rooms stay. If the device refuses one, that
    /// one and those behind it are not posted.
    #[inline]
    pub(in crate::reactor) fn post<const N: usize>(
        &self,
        rooms: &mut ArrayVec<RecvBuf, N>,
        receipts: &mut ArrayVec<Receipt, N>,
    ) -> Result<(), JobError> {
        let table = &*self.receives;
        let mut receives = ArrayVec::<Receive, N>::new();
        let life = table.life();
        table.fill(rooms, |receipt, room| {
            receipts.push(receipt);
            receives.push(Receive {
                token: table.token(receipt),
                dst: room.segments,
                room: room.len,
            });
        });
        if receives.is_empty() {
            return Ok(());
        }
        // SAFETY: the places have the Leases of the memory, and keep them until the completion was
        // reaped, or until the device drops the table (`retire`). A place is one receive, and there
        // are as many as the endpoint was promised.
        let submitted = unsafe { self.endpoint.post_recvs(&receives) };
        let accepted = submitted.accepted.min(receipts.len());
        if table.life() != life {
            let posted = &receipts[..accepted];
            posted
                .iter()
                .for_each(|receipt| table.posted_anew(*receipt));
        }
        if accepted == receipts.len() {
            return Ok(());
        }
        for refused in receipts.drain(accepted..).rev() {
            drop(table.undo(refused));
        }
        self.attachment.shared.notify_line(table, false);
        let nonsense = JobError::device(ErrorKind::Unexpected, 0);
        Err(submitted.refused.unwrap_or(nonsense))
    }

    /// Returns why nothing comes any more that belongs to this life of the endpoint, if it was
    /// reset or the WorkQ was shut down.
    pub(crate) fn ended_since(&self, life: u32) -> Option<JobError> {
        if self.receives.life() != life {
            return Some(JobError::flushed(JobError::of(Reason::Reset)));
        }
        self.check_open().err()
    }

    /// Returns true if there is a message to take. If not, streams without a receive are woken by
    /// the next.
    pub(crate) fn has_message(&self) -> bool {
        self.endpoint.has_message()
    }

    /// Sends a message of these pieces now, if the device can, and while no other job of the
    /// connection waits in line.
    pub(crate) fn send_bytes(&self, pieces: &[&[u8]]) -> Option<Result<u64, JobError>> {
        let order = self.attachment.order.as_ref();
        if self.attachment.is_closed() || order.is_some_and(|order| !order.is_empty()) {
            return None;
        }
        self.endpoint.send_bytes(pieces)
    }

    /// Takes the oldest message, if there is one.
    pub(crate) fn take_message(&self, room: RecvBuf) -> Result<Option<Received>, JobError> {
        // SAFETY: the room has the Lease of the memory until this returns.
        let taken = unsafe { self.endpoint.take_message(&room.segments, room.len) }?;
        let received =
            taken.map(|(arrival, len)| Received::new(len, arrival.opcode(), arrival.immediate()));
        if let (Some(received), Some(lease)) = (&received, &room.lease) {
            lease.grow(received.landed().min(room.len));
            self.shared().misses.reset();
        }
        Ok(received)
    }

    /// waits in line for a place.
    pub(in crate::reactor) fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        let (line, order) = (&self.receives.line, &self.receives.order);
        // SAFETY: the table is in an Arc, which the RecvFuture that has the node reaches through
        // its context, borrowed or owned, until after the node is dropped (field order, and the
        // borrow).
        unsafe { line.enqueue_in(Some(order), node, waker) };
    }

    /// Has a stream without a receive woken when the connection ends, or a message waits.
    pub(super) fn enqueue_disconnect(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: the list is in an Arc, which the DisconnectWait that has the node reaches through
        // its context until after the node is dropped (field order).
        unsafe { self.watched.waiting.enqueue(node, waker) };
    }

    /// The stream waits no more.
    pub(super) fn leave_disconnect(&self, node: Pin<&WaitNode>) {
        self.watched.waiting.leave(node);
    }
}

impl Drop for EndpointPort {
    fn drop(&mut self) {
        self.watched.end();
        self.attachment.shared.core.registry.forget(&*self.receives);
        let keep: KeepAlive = Arc::clone(&self.receives) as KeepAlive;
        // SAFETY: no handle and no Op is left, so nobody posts; the table has the Leases of all
        // receives that are posted.
        unsafe { self.endpoint.retire(keep) };
        let shared = &self.attachment.shared;
        if !shared.mode.load().is_busy() {
            // Nobody may wait for anything, and a look lets go of what it had. Not here: wakers are
            // user code.
            shared.events.ring();
        }
    }
}
