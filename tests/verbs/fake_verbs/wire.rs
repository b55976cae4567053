//! Execution of work requests: a thread for each adapter carries them out one by one, under the
//! fabric's lock.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio_doca::verbs::ffi::*;

use super::describe::Link;
use super::fabric::{Element, Entry, Fabric, Place, lock};
use super::memory::{Pieces, atomic, copy};
use super::pair::{Qp, Receive, Send};

/// The value of invalid fields of a completion.
const SPOILT: u32 = 0xdead_beef;
const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
/// An error code of the vendor.
const VENDOR: u32 = 0x88;

/// The result of sending a request.
enum Outcome {
    /// The request moved this many bytes.
    Done(u64),
    /// This side found the request invalid.
    Local(ibv_wc_status),
    /// The peer refused the request, and has failed.
    Refused(ibv_wc_status),
    /// The peer has no receive: this side tries again after the peer's timer.
    NotReady(Duration),
    /// No peer answers.
    Silence,
}
use Outcome::*;

/// Receiver-not-ready timers in microseconds, from the table of the InfiniBand specification.
const RNR: [u64; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
    5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122_880, 163_840, 245_760,
    327_680, 491_520,
];

/// Runs the adapter's thread until the test ends.
pub(super) fn run(adapter: usize) {
    let mut fabric = lock();
    let work = Arc::clone(&fabric.adapters[adapter].work);
    loop {
        let now = Instant::now();
        let this = &mut fabric.adapters[adapter];
        if this.stop {
            return;
        }
        let mut due = Vec::new();
        this.timers.retain(|&(at, qp)| {
            let later = at > now;
            if !later {
                due.push(qp);
            }
            later
        });
        for qp in due {
            fabric.wake(qp);
        }
        let this = &mut fabric.adapters[adapter];
        let idle = this.holds > 0 || this.removed;
        let next = if idle { None } else { this.run.pop_front() };
        if let Some(qp) = next {
            fabric.step(qp);
            // Releases the lock, so that other threads get a turn.
            drop(fabric);
            fabric = lock();
            continue;
        }
        let first = this.timers.iter().map(|&(at, _)| at).min();
        fabric = match first.filter(|_| !idle) {
            None => work.wait(fabric).unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let left = at.saturating_duration_since(now);
                let waited = work.wait_timeout(fabric, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

impl Fabric {
    /// Does the next step of a queue pair.
    fn step(&mut self, address: usize) {
        let Some(qp) = self.qps.get_mut(&address) else {
            return;
        };
        match qp.state {
            IBV_QPS_ERR => self.flush(address),
            IBV_QPS_RTS => {
                if qp.waits_until.is_some_and(|until| until > Instant::now()) {
                    return;
                }
                qp.waits_until = None;
                if let Some(send) = qp.sends.pop_front() {
                    self.carry_out(address, send);
                }
            }
            _ => {}
        }
    }

    /// Completes all requests and receives of a failed queue pair as flushed.
    fn flush(&mut self, address: usize) {
        let qp = self.qps.get_mut(&address).expect("found by the caller");
        let (sends, receives) = (
            std::mem::take(&mut qp.sends),
            std::mem::take(&mut qp.receives),
        );
        for send in sends {
            self.complete_send(address, &send, Err((IBV_WC_WR_FLUSH_ERR, 0xf9)));
        }
        for receive in receives {
            self.complete_receive(address, &receive, Err((IBV_WC_WR_FLUSH_ERR, 0xf9)));
        }
    }

    fn carry_out(&mut self, address: usize, send: Send) {
        let planned = (send.len() > 0).then(|| self.plan.status()).flatten();
        if let Some((status, vendor)) = planned {
            self.complete_send(address, &send, Err((status, vendor)));
            return self.fail_qp(address);
        }
        let outcome = self.attempt(address, &send);
        let hurry = self.adapters[self.qps[&address].adapter].description.hurry;
        let qp = self.qps.get_mut(&address).expect("found by the caller");
        let mut retry = None;
        let status = match outcome {
            Done(len) => {
                (qp.silences, qp.not_ready) = (0, 0);
                qp.sq_psn = (qp.sq_psn + packets(qp, &send)) & 0xff_ffff;
                self.carried_out += 1;
                self.complete_send(address, &send, Ok(len));
                return self.wake(address);
            }
            Local(status) | Refused(status) => status,
            NotReady(timer) => {
                let last = qp.attr.rnr_retry != 7 && qp.not_ready >= qp.attr.rnr_retry;
                qp.not_ready = qp.not_ready.saturating_add(1);
                retry = (!last).then_some(timer);
                IBV_WC_RNR_RETRY_EXC_ERR
            }
            Silence => {
                // After the last attempt there is time for an answer too. A timeout of 0 means that
                // requests are repeated for ever.
                let endless = qp.attr.timeout == 0;
                let last = !endless && qp.silences > qp.attr.retry_cnt;
                qp.silences = qp.silences.saturating_add(1);
                let timeout =
                    Duration::from_nanos(4096 << if endless { 14 } else { qp.attr.timeout });
                retry = (!last).then_some(timeout / hurry);
                IBV_WC_RETRY_EXC_ERR
            }
        };
        match retry {
            Some(wait) => {
                let until = Instant::now() + wait;
                qp.waits_until = Some(until);
                qp.sends.push_front(send);
                let adapter = qp.adapter;
                self.adapters[adapter].timers.push((until, address));
            }
            None => {
                self.complete_send(address, &send, Err((status, VENDOR)));
                self.fail_qp(address);
            }
        }
    }

    /// Returns the queue pair that receives the packets of `qp`.
    fn peer(&self, qp: &Qp) -> Option<usize> {
        let path = &qp.attr.ah_attr;
        // SAFETY: any sixteen bytes are a valid GID.
        let to = unsafe { path.grh.dgid.raw };
        let here = &self.adapters[qp.adapter];
        let one = here.description.port(qp.port)?;
        let source = one.gid(path.grh.sgid_index.into());
        let &address = self.by_number.get(&qp.attr.dest_qp_num)?;
        let peer = self.qps.get(&address)?;
        let there = &self.adapters[peer.adapter];
        let other = there.description.port(peer.port)?;
        let has_gid = || {
            let kind = source.map(|gid| gid.kind);
            let same = |gid: &super::Gid| gid.raw == to && Some(gid.kind) == kind;
            other.gids.iter().flatten().any(same)
        };
        let reaches = match (one.link, other.link) {
            (Link::Ethernet, Link::Ethernet) => has_gid() && one.transport == other.transport,
            (Link::InfiniBand(_), Link::InfiniBand(lid)) => {
                path.dlid == lid && (path.is_global == 0 || has_gid())
            }
            _ => false,
        };
        let works = |adapter: &super::fabric::Adapter, port: u8| {
            !adapter.removed && !adapter.ports_down[usize::from(port) - 1]
        };
        let is_ready = matches!(peer.state, IBV_QPS_RTR | IBV_QPS_RTS);
        let knows = peer.attr.dest_qp_num == qp.number && peer.rq_psn == qp.sq_psn;
        (reaches && works(here, qp.port) && works(there, peer.port) && is_ready && knows)
            .then_some(address)
    }

    fn attempt(&mut self, address: usize, send: &Send) -> Outcome {
        let qp = &self.qps[&address];
        let len = send.len();
        let is_atomic = send.is_atomic();
        let max = self.adapters[qp.adapter].description.max_msg_sz;
        if len > max.into() || (is_atomic && len != 8) {
            return Local(IBV_WC_LOC_LEN_ERR);
        }
        let reads = is_atomic || send.opcode == IBV_WR_RDMA_READ;
        if reads && qp.attr.max_rd_atomic == 0 {
            return Local(IBV_WC_LOC_QP_OP_ERR);
        }
        let mut flag = if reads { LOCAL_WRITE } else { 0 };
        if send.opcode == IBV_WR_RDMA_READ && self.adapters[qp.adapter].description.is_iwarp() {
            // An iWARP peer answers a read with a write (RFC 5040).
            flag |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        let local = match &send.data {
            Some(data) => Pieces::of_bytes(data),
            None => match self.gathered(qp.pd, &send.sges, flag) {
                Some(pieces) => pieces,
                None => return Local(IBV_WC_LOC_PROT_ERR),
            },
        };
        let Some(peer) = self.peer(qp) else {
            return Silence;
        };
        let packet = (len as usize).min(128 << qp.attr.path_mtu);
        if packet > self.adapters[qp.adapter].description.path_bytes {
            return Silence;
        }
        let there = &self.qps[&peer];
        if there.attr.path_mtu != qp.attr.path_mtu {
            return self.refuse(peer, IBV_WC_REM_INV_REQ_ERR);
        }
        if !matches!(send.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
            let flag = match send.opcode {
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => {
                    ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                }
                IBV_WR_RDMA_READ => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
                _ => ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
            };
            let permitted = there.access & flag.0 != 0;
            let resources = !reads || there.attr.max_dest_rd_atomic > 0;
            let aligned = !is_atomic || send.remote.is_multiple_of(8);
            if !permitted || !resources || !aligned {
                return self.refuse(peer, IBV_WC_REM_INV_REQ_ERR);
            }
            if len > 0 && !self.is_granted(there.pd, send.rkey, send.remote, len, flag.0) {
                return self.refuse(peer, IBV_WC_REM_ACCESS_ERR);
            }
        }
        let remote = Pieces::one(send.remote, len);
        match send.opcode {
            IBV_WR_RDMA_WRITE => copy(&local, &remote),
            IBV_WR_RDMA_READ => copy(&remote, &local),
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let was = atomic(send);
                copy(&Pieces::of_bytes(&was.to_ne_bytes()), &local);
            }
            _ => {
                let is_write = send.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
                if let Some(failed) = self.arrive(peer, send, &local, is_write) {
                    return failed;
                }
                if is_write {
                    // The lock makes the data visible before the receive's completion.
                    copy(&local, &remote);
                }
            }
        }
        let psn = packets(&self.qps[&address], send);
        let there = self.qps.get_mut(&peer).expect("just found");
        there.rq_psn = (there.rq_psn + psn) & 0xff_ffff;
        Done(len)
    }

    /// Completes the oldest receive of the peer with a message, or with a write that has an
    /// immediate; the data of a write goes to its own destination.
    fn arrive(
        &mut self,
        peer: usize,
        send: &Send,
        data: &Pieces,
        is_write: bool,
    ) -> Option<Outcome> {
        let there = self.qps.get_mut(&peer).expect("found by the caller");
        let timer = RNR[usize::from(there.attr.min_rnr_timer)];
        let (pd, srq) = (there.pd, there.srq);
        let receives = match self.srqs.get_mut(&srq) {
            Some(srq) => &mut srq.receives,
            None => &mut there.receives,
        };
        let Some(receive) = receives.pop_front() else {
            return Some(NotReady(Duration::from_micros(timer)));
        };
        self.check_limit(srq);
        let room: u64 = receive.sges.iter().map(|sge| sge.len).sum();
        if !is_write {
            let fails = match self.gathered(pd, &receive.sges, LOCAL_WRITE) {
                _ if send.len() > room => Some((IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR)),
                None => Some((IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR)),
                Some(to) => {
                    copy(data, &to);
                    None
                }
            };
            if let Some((here, there)) = fails {
                self.complete_receive(peer, &receive, Err((here, VENDOR)));
                // The completion reports the error; an event is raised only where no completion
                // does (InfiniBand specification, 10.10.2).
                self.fail_qp(peer);
                return Some(Refused(there));
            }
        }
        self.complete_receive(peer, &receive, Ok(send));
        None
    }

    /// Refuses a request on the peer's side: the peer's queue pair fails.
    fn refuse(&mut self, peer: usize, status: ibv_wc_status) -> Outcome {
        self.fail_qp(peer);
        let there = &self.qps[&peer];
        let (context, adapter) = (there.context, there.adapter);
        if self.adapters[adapter].description.raises_access_errors {
            let kind = match status {
                IBV_WC_REM_ACCESS_ERR => IBV_EVENT_QP_ACCESS_ERR,
                _ => IBV_EVENT_QP_REQ_ERR,
            };
            self.raise(context, kind, Element::Qp(peer));
        }
        Refused(status)
    }

    /// Completes a request. One that succeeds has a completion only if it is signaled.
    fn complete_send(
        &mut self,
        address: usize,
        send: &Send,
        result: Result<u64, (ibv_wc_status, u32)>,
    ) {
        let qp = &self.qps[&address];
        let (cq, number) = (qp.send_cq, qp.number);
        if result.is_ok() && !send.signaled {
            return;
        }
        let mut wc = spoilt(send.wr_id, number, result.err());
        if let Ok(len) = result {
            wc.opcode = match send.opcode {
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
                IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
                IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
                IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
                _ => IBV_WC_SEND,
            };
            if send.is_atomic() || send.opcode == IBV_WR_RDMA_READ {
                wc.byte_len = len as u32;
            }
            wc.wc_flags = 0;
        }
        let place = Place {
            qp: address,
            is_receive: false,
            srq: 0,
            number: send.number,
        };
        self.complete(
            cq,
            Entry {
                wc,
                place: Some(place),
            },
        );
    }

    fn complete_receive(
        &mut self,
        address: usize,
        receive: &Receive,
        result: Result<&Send, (ibv_wc_status, u32)>,
    ) {
        let qp = &self.qps[&address];
        let (cq, number, srq) = (qp.recv_cq, qp.number, qp.srq);
        let mut wc = spoilt(receive.wr_id, number, result.err());
        if let Ok(send) = result {
            let is_write = send.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
            wc.opcode = match is_write {
                true => IBV_WC_RECV_RDMA_WITH_IMM,
                false => IBV_WC_RECV,
            };
            wc.byte_len = send.len() as u32;
            wc.wc_flags = 0;
            if send.opcode != IBV_WR_SEND {
                wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
                wc.imm_data = send.imm;
            }
        }
        let place = Place {
            qp: address,
            is_receive: true,
            srq,
            number: receive.number,
        };
        self.complete(
            cq,
            Entry {
                wc,
                place: Some(place),
            },
        );
    }
}

impl Send {
    fn len(&self) -> u64 {
        self.sges.iter().map(|sge| sge.len).sum()
    }

    fn is_atomic(&self) -> bool {
        matches!(
            self.opcode,
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
        )
    }
}

/// Returns the number of packets of a request.
fn packets(qp: &Qp, send: &Send) -> u32 {
    let mtu = 128u64 << qp.attr.path_mtu;
    send.len().div_ceil(mtu).max(1) as u32
}

/// Returns a completion whose invalid fields are spoilt. Only four fields of a failed one are
/// valid.
fn spoilt(wr_id: u64, qp_num: u32, error: Option<(ibv_wc_status, u32)>) -> Wc {
    let (status, vendor_err) = error.unwrap_or((IBV_WC_SUCCESS, 0));
    Wc {
        wr_id,
        status,
        opcode: SPOILT,
        vendor_err,
        byte_len: SPOILT,
        imm_data: SPOILT,
        qp_num,
        src_qp: SPOILT,
        wc_flags: SPOILT,
        pkey_index: 0xdead,
        slid: 0xdead,
        sl: 0xad,
        dlid_path_bits: 0xad,
    }
}
