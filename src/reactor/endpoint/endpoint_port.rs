//! [`EndpointPort`], the endpoint of an Rdma on a WorkQ, with its table of receives.
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

/// The endpoint of an Rdma on a WorkQ: its end of the connection, with its table of receives.
pub(crate) struct EndpointPort {
    attachment: Attachment,
    endpoint: Arc<dyn Endpoint>,
    receives: Arc<RecvTable>,
    watched: Arc<WatchState>,
}

/// Returns the function that is called when the state of the connection may have changed, or a
/// message waits to be taken.
fn on_change(watched: &Arc<WatchState>, table: &Arc<OnceLock<Weak<RecvTable>>>) -> Changed {
    let (watched, table) = (Arc::clone(watched), Arc::clone(table));
    Arc::new(move || {
        // `update` calls code of a provider, which may panic.
        contain("a device", || watched.update());
        // A stream that has no receive posted must poll: no flushed receive would wake it, and a
        // message may wait to be taken.
        watched.waiting.wake_all();
        if let Some(receives) = table.get().and_then(Weak::upgrade) {
            receives.line.wake_all();
        }
    })
}

impl EndpointPort {
    /// Opens an endpoint on the queue of a context that was attached.
    pub(crate) fn open(
        attachment: &mut Attachment,
        config: EndpointConfig,
    ) -> Result<EndpointPort> {
        let watched = Arc::new(WatchState::new());
        let table: Arc<OnceLock<Weak<RecvTable>>> = Arc::default();
        let changed = on_change(&watched, &table);
        // The function that the provider calls, perhaps within a poll. It has no strong reference:
        // otherwise the provider might drop the last reference to the watch, which would wake
        // wakers there.
        let said: Changed = {
            let shared = Arc::downgrade(&attachment.shared);
            let changed = Arc::downgrade(&changed);
            Arc::new(move || {
                if let (Some(shared), Some(changed)) = (shared.upgrade(), changed.upgrade()) {
                    shared.changed(changed);
                }
            })
        };
        let size = match config.pooled_len {
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
                let shut = |shared: &Arc<Shared>| shared.closed.load(Ordering::SeqCst);
                if let Some(shared) = shared.upgrade().filter(shut) {
                    watched.close(!shared.core.table.any_in_flight());
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
                // SAFETY: no receive was posted.
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
        // The state may have changed, or the WorkQ may have been shut down, before the table was
        // added to the registry.
        closed();
        Ok(port)
    }

    pub(crate) fn transport(&self) -> Transport {
        self.endpoint.transport()
    }

    /// Returns what the peer permits this side to do.
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
        // Poll, since perhaps no other thread does.
        if shared.ready() {
            shared.turn();
        }
        self.watched.now()
    }

    /// Returns a watch of the state. While it lives, the device also signals changes of the state,
    /// if operations wait by event and this thread has a runtime.
    pub(crate) fn watch(&self) -> RdmaWatch {
        RdmaWatch::new(&self.watched, &self.attachment.shared)
    }

    /// Returns how often the Rdma was seen to become Connected, and how often to become Error.
    pub(crate) fn transitions(&self) -> (u64, u64) {
        self.watched.update();
        self.watched.transitions()
    }

    /// Returns the number by which the log names the Rdma.
    pub(crate) fn id(&self) -> u64 {
        self.watched.id
    }

    /// Notes for the log that the peer's stream has ended in order.
    pub(crate) fn set_ended(&self) {
        self.watched.set_ended();
    }

    /// Makes the log name the peer from now on.
    pub(crate) fn set_peer(&self, peer: String) {
        self.watched.set_peer(peer);
    }

    pub(crate) fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// Resets the endpoint to Init. Messages that no operation has taken are dropped.
    pub(crate) fn reset(&self) {
        let (rdma, peer) = (self.watched.id, self.watched.peer());
        log(|| tracing::debug!(target: "tokio_doca::rdma", rdma, peer, "reset"));
        let shared = &self.attachment.shared;
        let resetting = self.receives.reset();
        self.endpoint.reset();
        // The turn collects the receives that were flushed, so that their memory is given back. It
        // also collects messages that had come before the reset, while `resetting` marks them as
        // such.
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

    /// Returns the error `Shutdown` if the WorkQ was shut down.
    pub(in crate::reactor) fn check_open(&self) -> Result<(), JobError> {
        self.attachment.check_open()
    }

    /// If the connection has failed, returns the error with which receives are refused until the
    /// next reset.
    pub(super) fn failure(&self) -> Option<JobError> {
        match self.endpoint.state() {
            EndpointState::Error(cause) => Some(JobError::flushed(cause)),
            EndpointState::Init | EndpointState::Connected => None,
        }
    }

    pub(crate) fn receives(&self) -> &Arc<RecvTable> {
        &self.receives
    }

    /// Posts receives for the buffers of `bufs`, from the first on, while the table has free
    /// entries. Adds their receipts to `receipts`, which must be empty. The other buffers stay in
    /// `bufs`. If the device refuses a receive, that receive and those behind it are not posted.
    #[inline]
    pub(in crate::reactor) fn post<const N: usize>(
        &self,
        bufs: &mut ArrayVec<RecvBuf, N>,
        receipts: &mut ArrayVec<Receipt, N>,
    ) -> Result<(), JobError> {
        let table = &*self.receives;
        let mut receives = ArrayVec::<Receive, N>::new();
        let life = table.life();
        table.fill(bufs, |receipt, buf| {
            receipts.push(receipt);
            receives.push(Receive {
                token: table.token(receipt),
                dst: buf.segments,
                len: buf.len,
            });
        });
        if receives.is_empty() {
            return Ok(());
        }
        // SAFETY: the entries have the Leases of the memory, and keep them until the completion was
        // reaped, or until the device drops the table (`retire`). Each entry holds one receive, and
        // the number of entries is the queue size that the endpoint was opened with.
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

    /// Returns an error if the given life of the endpoint has ended, so that no more messages of
    /// that life come: the endpoint was reset, or the WorkQ was shut down.
    pub(crate) fn ended_since(&self, life: u32) -> Option<JobError> {
        if self.receives.life() != life {
            return Some(JobError::flushed(JobError::of(Reason::Reset)));
        }
        self.check_open().err()
    }

    /// Returns true if there is a message to take. After false, the next message wakes the streams
    /// that have no receive posted.
    pub(crate) fn has_message(&self) -> bool {
        self.endpoint.has_message()
    }

    /// Sends a message made of `pieces` within this call. Returns `None` if the device cannot, or
    /// if another job of the connection waits in line.
    pub(crate) fn send_bytes(&self, pieces: &[&[u8]]) -> Option<Result<u64, JobError>> {
        let order = self.attachment.order.as_ref();
        if self.attachment.is_closed() || order.is_some_and(|order| !order.is_empty()) {
            return None;
        }
        self.endpoint.send_bytes(pieces)
    }

    /// Moves the oldest message into `buf`, if there is a message.
    pub(crate) fn take_message(&self, buf: RecvBuf) -> Result<Option<Received>, JobError> {
        // SAFETY: `buf` has the Lease of the memory until this returns.
        let taken = unsafe { self.endpoint.take_message(&buf.segments, buf.len) }?;
        let received =
            taken.map(|(arrival, len)| Received::new(len, arrival.opcode(), arrival.immediate()));
        if let (Some(received), Some(lease)) = (&received, &buf.lease) {
            lease.grow(received.landed().min(buf.len));
            self.shared().misses.reset();
        }
        Ok(received)
    }

    /// Puts a receive in line for an entry of the table.
    pub(in crate::reactor) fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        let (line, order) = (&self.receives.line, &self.receives.order);
        // SAFETY: the table is in an Arc, which the RecvFuture that has the node reaches through
        // its context, borrowed or owned, until after the node is dropped (field order, and the
        // borrow).
        unsafe { line.enqueue_in(Some(order), node, waker) };
    }

    /// Puts a stream without a posted receive into the list `waiting`, which is woken when the
    /// connection ends or a message waits.
    pub(super) fn enqueue_disconnect(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: the list is in an Arc, which the DisconnectWait that has the node reaches through
        // its context until after the node is dropped (field order).
        unsafe { self.watched.waiting.enqueue(node, waker) };
    }

    /// Takes a stream out of the list `waiting`.
    pub(super) fn leave_disconnect(&self, node: Pin<&WaitNode>) {
        self.watched.waiting.leave(node);
    }
}

impl Drop for EndpointPort {
    fn drop(&mut self) {
        self.watched.end();
        self.attachment.shared.core.registry.forget(&*self.receives);
        let keep: KeepAlive = Arc::clone(&self.receives) as KeepAlive;
        // SAFETY: no handle and no operation is left, so no more receives are posted; the table has
        // the Leases of all posted receives.
        unsafe { self.endpoint.retire(keep) };
        let shared = &self.attachment.shared;
        if !shared.mode.load().is_busy() {
            // Perhaps no operation waits, so this signals for a turn, whose poll releases what the
            // device had of the endpoint. The poll is not made here, since wakers are code of the
            // application.
            shared.events.raise();
        }
    }
}
