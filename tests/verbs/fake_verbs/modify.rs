//! The states of a queue pair, and the attributes that each transition needs (ibv_modify_qp(3), and
//! the kernel's table for RC).

use tokio_doca::verbs::ffi::ibv_qp_attr_mask as mask;
use tokio_doca::verbs::ffi::*;

use super::describe::Link;
use super::fabric::{Element, Errno, Fabric};

const INIT: u32 = mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_PORT.0 | mask::IBV_QP_ACCESS_FLAGS.0;
const RTR: u32 = mask::IBV_QP_AV.0
    | mask::IBV_QP_PATH_MTU.0
    | mask::IBV_QP_DEST_QPN.0
    | mask::IBV_QP_RQ_PSN.0
    | mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
    | mask::IBV_QP_MIN_RNR_TIMER.0;
const RTS: u32 = mask::IBV_QP_TIMEOUT.0
    | mask::IBV_QP_RETRY_CNT.0
    | mask::IBV_QP_RNR_RETRY.0
    | mask::IBV_QP_SQ_PSN.0
    | mask::IBV_QP_MAX_QP_RD_ATOMIC.0;

/// Returns the required and the optional attributes of a transition; `None` if there is no such
/// transition.
fn way(from: ibv_qp_state, to: ibv_qp_state) -> Option<(u32, u32)> {
    let cur = mask::IBV_QP_CUR_STATE.0;
    let path = mask::IBV_QP_ALT_PATH.0 | mask::IBV_QP_PATH_MIG_STATE.0;
    let (access, rnr) = (mask::IBV_QP_ACCESS_FLAGS.0, mask::IBV_QP_MIN_RNR_TIMER.0);
    match (from, to) {
        (_, IBV_QPS_RESET) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_ERR) => None,
        (_, IBV_QPS_ERR) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((INIT, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, INIT)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some((
            RTR,
            access | mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_ALT_PATH.0,
        )),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some((RTS, cur | access | rnr | path)),
        (IBV_QPS_RTS, IBV_QPS_RTS) => Some((0, cur | access | rnr | path)),
        _ => None,
    }
}

impl Fabric {
    pub(super) fn modify(
        &mut self,
        address: usize,
        to: ibv_qp_state,
        attr: &ibv_qp_attr,
        given: u32,
    ) -> Result<(), Errno> {
        let qp = &self.qps[&address];
        let (from, adapter) = (qp.state, qp.adapter);
        let (mut required, allowed) = way(from, to).ok_or(libc::EINVAL)?;
        if self.adapters[adapter].description.is_iwarp() {
            // iWARP has no partitions, and its connections determine the port.
            required &= !(mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_PORT.0);
        }
        let given = given & !mask::IBV_QP_STATE.0;
        if given & required != required || given & !(required | allowed) != 0 {
            return Err(libc::EINVAL);
        }
        let port = match given & mask::IBV_QP_PORT.0 {
            0 => qp.port,
            _ => attr.port_num,
        };
        self.check((adapter, port), attr, given)?;
        let qp = self.qps.get_mut(&address).expect("found by the caller");
        let has = |flag: mask| given & flag.0 != 0;
        if has(mask::IBV_QP_ACCESS_FLAGS) {
            qp.access = attr.qp_access_flags;
        }
        if has(mask::IBV_QP_MIN_RNR_TIMER) {
            qp.attr.min_rnr_timer = attr.min_rnr_timer;
        }
        match (from, to) {
            (IBV_QPS_RESET, IBV_QPS_INIT) => {
                qp.pkey_index = attr.pkey_index;
                qp.port = if has(mask::IBV_QP_PORT) {
                    attr.port_num
                } else {
                    1
                };
            }
            (IBV_QPS_INIT, IBV_QPS_RTR) => {
                qp.attr = *attr;
                qp.rq_psn = attr.rq_psn;
            }
            (IBV_QPS_RTR, IBV_QPS_RTS) => {
                qp.attr.timeout = attr.timeout;
                qp.attr.retry_cnt = attr.retry_cnt;
                qp.attr.rnr_retry = attr.rnr_retry;
                qp.attr.max_rd_atomic = attr.max_rd_atomic;
                qp.sq_psn = attr.sq_psn;
            }
            _ => {}
        }
        match to {
            IBV_QPS_ERR => self.fail_qp(address),
            // The siw driver ignores this transition too.
            IBV_QPS_RESET if self.adapters[adapter].description.is_iwarp() => {}
            IBV_QPS_RESET => {
                // Posted requests are dropped without completions.
                qp.state = IBV_QPS_RESET;
                qp.access = 0;
                qp.sends.clear();
                qp.receives.clear();
                (qp.sends_freed, qp.receives_freed) = (qp.sends_posted, qp.receives_posted);
                (qp.silences, qp.not_ready, qp.waits_until) = (0, 0, None);
                let (number, cqs) = (qp.number, [qp.send_cq, qp.recv_cq]);
                self.drop_completions(address, number, adapter, cqs);
            }
            _ => {
                qp.state = to;
                self.wake(address);
            }
        }
        Ok(())
    }

    /// Checks that a queue pair of this port accepts the attributes.
    fn check(
        &self,
        (adapter, port): (usize, u8),
        attr: &ibv_qp_attr,
        given: u32,
    ) -> Result<(), Errno> {
        let description = self.adapters[adapter].description.port(port);
        let description = description.ok_or(libc::EINVAL)?;
        let has = |flag: mask| given & flag.0 != 0;
        let path = &attr.ah_attr;
        let is_path = match description.link {
            // Each path over Ethernet has a GID.
            Link::Ethernet => path.is_global == 1,
            Link::InfiniBand(_) => path.dlid != 0,
        };
        let source = description.gid(path.grh.sgid_index.into());
        let is_addressed = path.is_global == 0 || (source.is_some() && path.grh.hop_limit > 0);
        let within = |flag: mask, is_within: bool| !has(flag) || is_within;
        let fits = within(mask::IBV_QP_PKEY_INDEX, attr.pkey_index < description.pkeys)
            && within(
                mask::IBV_QP_AV,
                path.port_num == port && is_path && is_addressed,
            )
            && within(
                mask::IBV_QP_PATH_MTU,
                (IBV_MTU_256..=description.mtu).contains(&attr.path_mtu),
            )
            && within(mask::IBV_QP_DEST_QPN, attr.dest_qp_num < 1 << 24)
            && within(mask::IBV_QP_RQ_PSN, attr.rq_psn < 1 << 24)
            && within(mask::IBV_QP_SQ_PSN, attr.sq_psn < 1 << 24)
            && within(mask::IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer < 32)
            && within(mask::IBV_QP_TIMEOUT, attr.timeout < 32)
            && within(mask::IBV_QP_RETRY_CNT, attr.retry_cnt < 8)
            && within(mask::IBV_QP_RNR_RETRY, attr.rnr_retry < 8)
            && within(
                mask::IBV_QP_MAX_QP_RD_ATOMIC,
                attr.max_rd_atomic <= description.max_rd_atomic,
            )
            && within(
                mask::IBV_QP_MAX_DEST_RD_ATOMIC,
                attr.max_dest_rd_atomic <= description.max_rd_atomic,
            );
        fits.then_some(()).ok_or(libc::EINVAL)
    }

    /// Takes the queue pair to the state Error: posted requests are flushed later, by the adapter's
    /// thread.
    pub(super) fn fail_qp(&mut self, address: usize) {
        if let Some(qp) = self.qps.get_mut(&address) {
            let was = std::mem::replace(&mut qp.state, IBV_QPS_ERR);
            let (context, srq) = (qp.context, qp.srq);
            qp.waits_until = None;
            self.wake(address);
            // The queue pair takes no more receives, and has not flushed any of the shared queue.
            if srq != 0 && was != IBV_QPS_ERR {
                self.raise(context, IBV_EVENT_QP_LAST_WQE_REACHED, Element::Qp(address));
            }
        }
    }
}
