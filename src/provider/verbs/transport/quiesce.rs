//! How a queue pair ends.
#![expect(unsafe_code, reason = "destroys queue pairs")]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::super::cm::wait_for_peer;
use super::super::ffi::*;
use super::qp::Qp;

impl Qp {
    /// The kernel connects it from now on, over iWARP, or no more: destroying it while the kernel
    /// does waits for the peer.
    pub(in super::super) fn set_asks(&self, asks: bool) {
        self.asks.store(asks, SeqCst);
    }

    /// Takes everything from it: true if the adapter touches no memory of its requests any more.
    /// What it had completed may still be found in the completion queue.
    pub(in super::super) fn quiesce(self: Arc<Qp>) -> bool {
        if self.cq.context.is_forked() {
            return false;
        }
        let qp = match Arc::try_unwrap(self) {
            Ok(qp) if !qp.asks.load(SeqCst) => return qp.destroy(),
            Ok(qp) => Arc::new(qp),
            // Somebody is connecting it: it goes when they see that they are late.
            Err(qp) => qp,
        };
        let context = &qp.cq.context;
        // siw does nothing when it is to go to RESET, and ends the connection, or refuses one that
        // comes later, in the state ERROR.
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

    /// Drops this handle, on another thread if that waits for the peer.
    pub(in super::super) fn let_go(self: Arc<Qp>) {
        if self.asks.load(SeqCst) {
            // Without a thread it goes here.
            let _ = wait_for_peer(move || drop(self));
        }
    }

    fn destroy(&self) -> bool {
        if self.destroyed.swap(true, Relaxed) {
            return true;
        }
        let destroy_qp = self.cq.context.table.destroy_qp;
        // SAFETY: whoever has a handle posts no more. When this has returned no memory is touched.
        let destroy = || unsafe { destroy_qp(self.raw.as_ptr()) };
        self.cq.context.destroy("ibv_destroy_qp", destroy)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}
