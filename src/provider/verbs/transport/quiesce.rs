//! Ends a queue pair: takes it from the adapter.
#![expect(unsafe_code, reason = "destroys queue pairs")]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::super::cm::wait_for_peer;
use super::super::ffi::*;
use super::qp::Qp;

impl Qp {
    /// Sets whether the kernel is connecting the queue pair over iWARP. Destroying the queue pair
    /// meanwhile waits for the peer.
    pub(in super::super) fn set_asks(&self, asks: bool) {
        self.asks.store(asks, SeqCst);
    }

    /// Takes the queue pair from the adapter. Returns true if the adapter no longer touches memory
    /// of its requests. Completions of the queue pair may still be in the completion queue.
    pub(in super::super) fn quiesce(self: Arc<Qp>) -> bool {
        if self.cq.context.is_forked() {
            return false;
        }
        let qp = match Arc::try_unwrap(self) {
            Ok(qp) if !qp.asks.load(SeqCst) => return qp.destroy(),
            Ok(qp) => Arc::new(qp),
            // Another thread is connecting the queue pair. That thread drops it, once it finds that
            // the connection has ended.
            Err(qp) => qp,
        };
        let context = &qp.cq.context;
        // siw does nothing on the way to RESET. In the state ERROR it ends the connection, or
        // refuses one that comes later.
        let (call, qp_state) = match context.traits.iwarp {
            true => ("ibv_modify_qp to ERROR", IBV_QPS_ERR),
            false => ("ibv_modify_qp to RESET", IBV_QPS_RESET),
        };
        let mut attr = ibv_qp_attr {
            qp_state,
            ..ibv_qp_attr::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE;
        let quiesced = context.destroy(call, || qp.set(&mut attr, mask));
        qp.let_go();
        quiesced
    }

    /// Drops this handle of the queue pair, on another thread if the drop may wait for the peer.
    pub(in super::super) fn let_go(self: Arc<Qp>) {
        if self.asks.load(SeqCst) {
            // If no thread can be started, the handle is dropped here.
            let _ = wait_for_peer(move || drop(self));
        }
    }

    fn destroy(&self) -> bool {
        if self.destroyed.swap(true, Relaxed) {
            return true;
        }
        let destroy_qp = self.cq.context.table.destroy_qp;
        // SAFETY: no holder of a handle posts any more. When the call has returned, no memory is
        // touched.
        let destroy = || unsafe { destroy_qp(self.raw.as_ptr()) };
        self.cq.context.destroy("ibv_destroy_qp", destroy)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}
