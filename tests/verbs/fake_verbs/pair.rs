//! Queue pairs: creation, destruction, and posting of requests.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio_doca::verbs::ffi::*;

use super::control::{fill, fresh, number, object};
use super::fabric::{BELL, Element, Errno, Fabric, call, lock, wait_while_held};

/// After this time without an acknowledgement the caller is assumed to have forgotten to
/// acknowledge.
const FORGOTTEN: Duration = super::LIMIT;

pub(super) struct Qp {
    pub(super) number: u32,
    pub(super) adapter: usize,
    pub(super) context: usize,
    pub(super) pd: usize,
    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    /// The shared receive queue, or 0 if the queue pair has its own receives.
    pub(super) srq: usize,
    pub(super) cap: ibv_qp_cap,
    pub(super) all_signaled: bool,
    pub(super) state: ibv_qp_state,
    /// The attributes that `ibv_modify_qp` has set so far.
    pub(super) attr: ibv_qp_attr,
    pub(super) access: u32,
    pub(super) pkey_index: u16,
    pub(super) port: u8,
    pub(super) sends: VecDeque<Send>,
    pub(super) sends_posted: u64,
    /// Number of sends whose queue entries are free again.
    pub(super) sends_freed: u64,
    pub(super) receives: VecDeque<Receive>,
    pub(super) receives_posted: u64,
    pub(super) receives_freed: u64,
    /// The number of the next packet.
    pub(super) sq_psn: u32,
    pub(super) rq_psn: u32,
    /// How often the oldest request was sent without an answer.
    pub(super) silences: u8,
    pub(super) not_ready: u8,
    /// Nothing is sent before this time.
    pub(super) waits_until: Option<Instant>,
    pub(super) async_unacked: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) lkey: u32,
}

pub(super) struct Send {
    pub(super) number: u64,
    pub(super) wr_id: u64,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) signaled: bool,
    pub(super) sges: Vec<Sge>,
    /// A copy of the data if it was posted inline.
    pub(super) data: Option<Vec<u8>>,
    /// The immediate, in big-endian order.
    pub(super) imm: u32,
    pub(super) remote: u64,
    pub(super) rkey: u32,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
}

pub(super) struct Receive {
    pub(super) number: u64,
    pub(super) wr_id: u64,
    pub(super) sges: Vec<Sge>,
}

/// Returns a queue pair number that was not used recently.
fn fresh_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x1234);
    NEXT.fetch_add(3, Ordering::Relaxed) & 0xff_ffff
}

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    let called = call("ibv_create_qp").map(|fabric| wait_while_held(fabric, "ibv_create_qp"));
    let made = called.map(|()| lock()).and_then(|mut fabric| {
        let Some(&context) = fabric.pds.get(&(pd as usize)) else {
            return Err(fabric.unknown("ibv_create_qp", pd as usize));
        };
        let adapter = fabric.adapter("ibv_create_qp", context)?;
        let description = &fabric.adapters[adapter].description;
        // SAFETY: the caller passes a valid struct.
        let init = unsafe { *init };
        let cap = init.cap;
        let most = |asked: u32, limit: u32| asked <= limit;
        let fits = most(cap.max_send_wr, description.max_qp_wr)
            && most(cap.max_recv_wr, description.max_qp_wr)
            && most(cap.max_send_sge, description.max_sge)
            && most(cap.max_recv_sge, description.max_sge)
            && most(cap.max_inline_data, description.max_inline)
            && most(
                cap.max_send_wr * (64 + 16 * cap.max_send_sge),
                description.send_bytes,
            );
        if !fits || init.qp_type != IBV_QPT_RC {
            return Err(libc::EINVAL);
        }
        let srq = init.srq as usize;
        match fabric.srqs.get_mut(&srq) {
            Some(srq) if srq.context == context => srq.qps += 1,
            None if init.srq.is_null() => {}
            _ => return Err(fabric.unknown("ibv_create_qp", srq)),
        }
        let (send_cq, recv_cq) = (init.send_cq as usize, init.recv_cq as usize);
        for cq in [send_cq, recv_cq] {
            match fabric.cqs.get_mut(&cq) {
                Some(cq) if cq.context == context => cq.qps += 1,
                _ => return Err(fabric.unknown("ibv_create_qp", cq)),
            }
        }
        let again = fabric.plan.free_number.take();
        let again = again.filter(|_| fabric.plan.repeats_numbers);
        let number = again.unwrap_or_else(fresh_number);
        let qp = fabric.make(ibv_qp {
            context: context as *mut ibv_context,
            qp_context: init.qp_context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: fresh(),
            qp_num: number,
            state: IBV_QPS_RESET,
            qp_type: init.qp_type,
        });
        let state = Qp {
            number,
            adapter,
            context,
            pd: pd as usize,
            send_cq,
            recv_cq,
            srq,
            cap,
            all_signaled: init.sq_sig_all != 0,
            state: IBV_QPS_RESET,
            attr: ibv_qp_attr::default(),
            access: 0,
            pkey_index: 0,
            port: 1,
            sends: VecDeque::new(),
            sends_posted: 0,
            sends_freed: 0,
            receives: VecDeque::new(),
            receives_posted: 0,
            receives_freed: 0,
            sq_psn: 0,
            rq_psn: 0,
            silences: 0,
            not_ready: 0,
            waits_until: None,
            async_unacked: 0,
        };
        fabric.qps.insert(qp as usize, state);
        fabric.by_number.insert(number, qp as usize);
        Ok(qp)
    });
    object(made)
}

/// Destroys a queue pair. Once this has returned, the adapter no longer accesses memory for it,
/// since requests are carried out under the fabric's lock.
pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    wait_while_held(lock(), "ibv_destroy_qp(first)");
    let done = call("ibv_destroy_qp").and_then(|mut fabric| {
        let address = qp as usize;
        let forgotten = Instant::now() + FORGOTTEN;
        let (qp_number, adapter, context, cqs, srq) = loop {
            let Some(state) = fabric.qps.get(&address) else {
                return Err(fabric.unknown("ibv_destroy_qp", address));
            };
            if state.async_unacked == 0 {
                break (
                    state.number,
                    state.adapter,
                    state.context,
                    [state.send_cq, state.recv_cq],
                    state.srq,
                );
            }
            if Instant::now() > forgotten {
                fabric.sin("ibv_destroy_qp waits for an event that nobody acknowledges");
                return Err(libc::EBUSY);
            }
            let left = forgotten.saturating_duration_since(Instant::now());
            let waited = BELL.wait_timeout(fabric, left);
            fabric = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        fabric.forget_events(context, Element::Qp(address));
        for cq in cqs {
            if let Some(cq) = fabric.cqs.get_mut(&cq) {
                cq.qps -= 1;
            }
        }
        if let Some(srq) = fabric.srqs.get_mut(&srq) {
            srq.qps -= 1;
        }
        if fabric.plan.loses_receives {
            fabric.lose_receive(srq);
        }
        fabric.by_number.remove(&qp_number);
        fabric.drop_completions(address, qp_number, adapter, cqs);
        fabric.give_up(context, address, |fabric| &mut fabric.qps)?;
        fabric.qps.remove(&address);
        fabric.plan.free_number = Some(qp_number);
        BELL.notify_all();
        wait_while_held(fabric, "ibv_destroy_qp");
        Ok(())
    });
    number(done)
}

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes a valid struct.
    let attr = unsafe { *attr };
    let mask = mask as u32;
    let has_state = mask & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0;
    let name = match attr.qp_state {
        IBV_QPS_RESET if has_state => "ibv_modify_qp(RESET)",
        IBV_QPS_ERR if has_state => "ibv_modify_qp(ERR)",
        _ => "ibv_modify_qp",
    };
    // SAFETY: the caller passes a valid queue pair.
    let own_number = unsafe { (*qp).qp_num };
    if has_state && attr.qp_state == IBV_QPS_RTR && attr.dest_qp_num != own_number {
        // The kernel may resolve the peer's address in this transition.
        let name = "ibv_modify_qp(RTR)";
        let mut fabric = lock();
        *fabric.calls.entry(name).or_insert(0) += 1;
        wait_while_held(fabric, name);
    }
    let done = call(name).and_then(|mut fabric| {
        let address = qp as usize;
        let Some(state) = fabric.qps.get(&address) else {
            return Err(fabric.unknown(name, address));
        };
        let context = state.context;
        fabric.adapter(name, context)?;
        let to = if has_state {
            attr.qp_state
        } else {
            fabric.qps[&address].state
        };
        fabric.modify(address, to, &attr, mask)?;
        // SAFETY: an object that was found above. The real library sets the state here too.
        unsafe { (*qp).state = to };
        Ok(())
    });
    number(done)
}

/// Returns the work requests of a list, in order.
///
/// # Safety
///
/// Each pointer that `next` returns is a request, or null at the end.
pub(super) unsafe fn requests<T: Copy>(
    first: *mut T,
    next: fn(&T) -> *mut T,
) -> impl Iterator<Item = (*mut T, T)> {
    let mut at = first;
    std::iter::from_fn(move || {
        // SAFETY: the caller guarantees that this is a request or null.
        let request = unsafe { at.as_ref() }.copied()?;
        let place = std::mem::replace(&mut at, next(&request));
        Some((place, request))
    })
}

/// # Safety
///
/// `list` has `count` elements.
pub(super) unsafe fn sges(list: *const ibv_sge, count: c_int) -> Vec<Sge> {
    if count <= 0 {
        return Vec::new();
    }
    // SAFETY: the caller guarantees that there are `count` elements.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let sge = |sge: &ibv_sge| Sge {
        addr: sge.addr,
        len: sge.length.into(),
        lkey: sge.lkey,
    };
    list.iter().map(sge).collect()
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    *lock().calls.entry("lists of sends").or_insert(0) += 1;
    // SAFETY: a list of the caller, which ends with null.
    for (place, request) in unsafe { requests(first, |request| request.next) } {
        // SAFETY: as ibv_post_send(3) demands of the caller.
        let list = unsafe { sges(request.sg_list, request.num_sge) };
        let name = match list.iter().any(|sge| sge.len > 0) {
            true => "ibv_post_send",
            false => "ibv_post_send of nothing",
        };
        let posted = call(name).and_then(|mut fabric| {
            // SAFETY: as ibv_post_send(3) demands of the caller.
            unsafe { fabric.post_send(qp as usize, &request) }
        });
        if let Err(errno) = posted {
            fill(bad, place);
            return errno;
        }
    }
    rung("ibv_post_send(doorbell)", bad)
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    *lock().calls.entry("lists of receives").or_insert(0) += 1;
    // SAFETY: a list of the caller, which ends with null.
    for (place, request) in unsafe { requests(first, |request| request.next) } {
        let posted = call("ibv_post_recv").and_then(|mut fabric| {
            // SAFETY: as ibv_post_recv(3) demands of the caller.
            unsafe { fabric.post_recv(qp as usize, &request) }
        });
        if let Err(errno) = posted {
            fill(bad, place);
            return errno;
        }
    }
    rung("ibv_post_recv(doorbell)", bad)
}

/// Rings the doorbell after all requests of a list were queued; fails if that is planned.
pub(super) fn rung<T>(call: &'static str, bad: *mut *mut T) -> c_int {
    let Some(errno) = lock().plan.failure(call) else {
        return 0;
    };
    fill(bad, std::ptr::null_mut());
    errno
}

impl Fabric {
    /// # Safety
    ///
    /// The request's list of pieces is valid, and so is its inline data.
    unsafe fn post_send(&mut self, address: usize, request: &ibv_send_wr) -> Result<(), Errno> {
        let Some(qp) = self.qps.get_mut(&address) else {
            return Err(self.unknown("ibv_post_send", address));
        };
        let description = &self.adapters[qp.adapter].description;
        let is_atomic = matches!(
            request.opcode,
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
        );
        let has = match request.opcode {
            IBV_WR_SEND | IBV_WR_RDMA_WRITE | IBV_WR_RDMA_READ => true,
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM => description.immediates,
            _ => is_atomic && description.atomics,
        };
        let reads = is_atomic || request.opcode == IBV_WR_RDMA_READ;
        let flag = |flag: ibv_send_flags| request.send_flags & flag.0 != 0;
        let inline = flag(ibv_send_flags::IBV_SEND_INLINE);
        let is_ready = matches!(qp.state, IBV_QPS_RTS | IBV_QPS_ERR);
        let limit = match request.opcode {
            IBV_WR_RDMA_READ => qp.cap.max_send_sge.min(description.max_sge_rd),
            _ => qp.cap.max_send_sge,
        };
        let fits = request.num_sge >= 0 && request.num_sge as u32 <= limit;
        let is_iwarp = self.adapters[qp.adapter].description.is_iwarp();
        if is_iwarp && request.num_sge == 0 && request.opcode == IBV_WR_RDMA_READ {
            self.sin("a read without a piece, for which siw takes that of an earlier request");
            return Err(libc::EINVAL);
        }
        if request.num_sge == 0 && !request.sg_list.is_null() {
            self.sin("ibv_post_send with a list of no pieces, the first of which irdma reads");
            return Err(libc::EINVAL);
        }
        if !has || !is_ready || !fits || (inline && reads) {
            return Err(libc::EINVAL);
        }
        if qp.sends_posted - qp.sends_freed >= qp.cap.max_send_wr.into() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: the caller guarantees a valid list.
        let sges = unsafe { sges(request.sg_list, request.num_sge) };
        let len: u64 = sges.iter().map(|sge| sge.len).sum();
        if inline && request.num_sge > 1 {
            self.sin("inline data in pieces, of which irdma before rdma-core 44 sends the first");
            return Err(libc::EINVAL);
        }
        if inline && len > qp.cap.max_inline_data.into() {
            return Err(libc::EINVAL);
        }
        let data = inline.then(|| {
            let piece = |sge: &Sge| {
                // SAFETY: the caller guarantees that the inline data, which is copied now, is
                // valid.
                unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.len as usize) }
                    .to_vec()
            };
            sges.iter()
                .filter(|sge| sge.len > 0)
                .flat_map(piece)
                .collect()
        });
        let imm = request.imm_data;
        // SAFETY: any bytes are valid integers.
        let atomic = unsafe { request.wr.atomic };
        // SAFETY: any bytes are valid integers.
        let rdma = unsafe { request.wr.rdma };
        qp.sends.push_back(Send {
            number: qp.sends_posted,
            wr_id: request.wr_id,
            opcode: request.opcode,
            signaled: qp.all_signaled || flag(ibv_send_flags::IBV_SEND_SIGNALED),
            sges,
            data,
            imm,
            remote: rdma.remote_addr,
            rkey: if is_atomic { atomic.rkey } else { rdma.rkey },
            compare_add: atomic.compare_add,
            swap: atomic.swap,
        });
        qp.sends_posted += 1;
        self.wake(address);
        Ok(())
    }

    /// # Safety
    ///
    /// The request's list of pieces is valid.
    unsafe fn post_recv(&mut self, address: usize, request: &ibv_recv_wr) -> Result<(), Errno> {
        let Some(qp) = self.qps.get_mut(&address) else {
            return Err(self.unknown("ibv_post_recv", address));
        };
        if request.num_sge == 0 && !request.sg_list.is_null() {
            self.sin("ibv_post_recv with a list of no pieces, the first of which irdma reads");
            return Err(libc::EINVAL);
        }
        let fits = request.num_sge >= 0 && request.num_sge as u32 <= qp.cap.max_recv_sge;
        let fits = fits && qp.srq == 0;
        // libsiw refuses receives without pieces too.
        let is_iwarp = self.adapters[qp.adapter].description.is_iwarp();
        let fits = fits && (!is_iwarp || request.num_sge > 0);
        if qp.state == IBV_QPS_RESET || !fits {
            return Err(libc::EINVAL);
        }
        if qp.receives_posted - qp.receives_freed >= qp.cap.max_recv_wr.into() {
            return Err(libc::ENOMEM);
        }
        qp.receives.push_back(Receive {
            number: qp.receives_posted,
            wr_id: request.wr_id,
            // SAFETY: the caller guarantees a valid list.
            sges: unsafe { sges(request.sg_list, request.num_sge) },
        });
        qp.receives_posted += 1;
        if qp.state == IBV_QPS_ERR {
            self.wake(address);
        }
        Ok(())
    }
}
