//! Shared receive queues: any of their queue pairs takes the receives, in the order in which they
//! were posted.

use std::collections::VecDeque;
use std::ffi::c_int;

use tokio_doca::verbs::ffi::*;

use super::control::{fill, number, object};
use super::fabric::{BELL, Element, Errno, Fabric, call, lock};
use super::pair::{Receive, requests, rung, sges};

pub(super) struct Srq {
    pub(super) context: usize,
    pub(super) pd: usize,
    pub(super) receives: VecDeque<Receive>,
    max_wr: u32,
    posted: u64,
    /// Entries in use. An entry is free again once its completion was polled, or dropped with its
    /// queue pair.
    pub(super) used: u32,
    /// An event is raised once fewer receives than this are left; 0 for none.
    limit: u32,
    pub(super) qps: usize,
    pub(super) async_unacked: usize,
}

pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    let made = call("ibv_create_srq").and_then(|mut fabric| {
        let Some(&context) = fabric.pds.get(&(pd as usize)) else {
            return Err(fabric.unknown("ibv_create_srq", pd as usize));
        };
        let adapter = fabric.adapter("ibv_create_srq", context)?;
        // SAFETY: the caller passes a valid struct.
        let init = unsafe { *init };
        let most = fabric.adapters[adapter].description.max_srq_wr;
        if init.attr.max_wr == 0 || init.attr.max_wr > most || init.attr.max_sge != 1 {
            return Err(libc::EINVAL);
        }
        let srq = fabric.make(ibv_srq {
            context: context as *mut ibv_context,
            srq_context: init.srq_context,
            pd,
        });
        let state = Srq {
            context,
            pd: pd as usize,
            receives: VecDeque::new(),
            max_wr: init.attr.max_wr,
            posted: 0,
            used: 0,
            limit: 0,
            qps: 0,
            async_unacked: 0,
        };
        fabric.srqs.insert(srq as usize, state);
        Ok(srq)
    });
    object(made)
}

pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let done = call("ibv_modify_srq").and_then(|mut fabric| {
        let Some(state) = fabric.srqs.get_mut(&(srq as usize)) else {
            return Err(fabric.unknown("ibv_modify_srq", srq as usize));
        };
        // SAFETY: the caller passes a valid struct.
        let limit = unsafe { (*attr).srq_limit };
        if mask as u32 != ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 || limit > state.max_wr {
            return Err(libc::EINVAL);
        }
        state.limit = limit;
        fabric.check_limit(srq as usize);
        Ok(())
    });
    number(done)
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let done = call("ibv_destroy_srq").and_then(|mut fabric| {
        let address = srq as usize;
        let Some(state) = fabric.srqs.get(&address) else {
            return Err(fabric.unknown("ibv_destroy_srq", address));
        };
        let (context, qps, unacked) = (state.context, state.qps, state.async_unacked);
        if qps > 0 || unacked > 0 {
            fabric.sin("ibv_destroy_srq before its queue pairs, or amid an event of it");
            return Err(libc::EBUSY);
        }
        fabric.forget_events(context, Element::Srq(address));
        fabric.give_up(context, address, |fabric| &mut fabric.srqs)?;
        fabric.srqs.remove(&address);
        BELL.notify_all();
        Ok(())
    });
    number(done)
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a list of the caller, which ends with null.
    for (place, request) in unsafe { requests(first, |request| request.next) } {
        let posted = call("ibv_post_srq_recv").and_then(|mut fabric| {
            // SAFETY: as ibv_post_srq_recv(3) demands of the caller.
            unsafe { fabric.post_srq_recv(srq as usize, &request) }
        });
        if let Err(errno) = posted {
            fill(bad, place);
            return errno;
        }
    }
    rung("ibv_post_srq_recv(doorbell)", bad)
}

impl Fabric {
    /// # Safety
    ///
    /// The request's list of pieces is valid.
    unsafe fn post_srq_recv(&mut self, address: usize, request: &ibv_recv_wr) -> Result<(), Errno> {
        let Some(srq) = self.srqs.get_mut(&address) else {
            return Err(self.unknown("ibv_post_srq_recv", address));
        };
        if !(0..=1).contains(&request.num_sge) {
            return Err(libc::EINVAL);
        }
        if srq.used >= srq.max_wr {
            return Err(libc::ENOMEM);
        }
        srq.receives.push_back(Receive {
            number: srq.posted,
            wr_id: request.wr_id,
            // SAFETY: the caller guarantees a valid list.
            sges: unsafe { sges(request.sg_list, request.num_sge) },
        });
        (srq.posted, srq.used) = (srq.posted + 1, srq.used + 1);
        Ok(())
    }

    /// Raises an event, once, if the queue has fewer receives than its limit.
    pub(super) fn check_limit(&mut self, address: usize) {
        let Some(srq) = self.srqs.get_mut(&address) else {
            return;
        };
        if srq.receives.len() < srq.limit as usize {
            srq.limit = 0;
            let context = srq.context;
            self.raise(context, IBV_EVENT_SRQ_LIMIT_REACHED, Element::Srq(address));
        }
    }

    /// Removes a receive, as if a queue pair had failed in the middle of a message to it.
    pub(super) fn lose_receive(&mut self, address: usize) {
        if let Some(srq) = self.srqs.get_mut(&address) {
            srq.receives.pop_front();
        }
        self.check_limit(address);
    }
}
