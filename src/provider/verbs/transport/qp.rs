//! A queue pair of a reliable connection (RC), and its states.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::super::adapter::{Address, check, check_ptr};
use super::super::ffi::*;
use super::cq::Cq;
use super::srq::Srq;
use super::wr::{Chain, RecvChain};
use crate::device::{Mtu, Transport};
use crate::error::{Error, Result};

pub(in super::super) struct Qp {
    pub(super) cq: Arc<Cq>,
    /// The shared receive queue is destroyed after the queue pair.
    _srq: Option<Arc<Srq>>,
    pub(super) raw: NonNull<ibv_qp>,
    num: u32,
    sends: u32,
    max_inline: u32,
    pub(super) destroyed: AtomicBool,
    /// True while the kernel connects the queue pair over iWARP (`set_asks`).
    pub(super) asks: AtomicBool,
}

// SAFETY: libibverbs may be called from any thread on a queue pair; it is destroyed once.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

/// The capacities of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct QpCaps {
    /// The wanted capacity of the send queue. The adapter may give less, but at least
    /// `least_sends`. The adapter's limit depends on the size of the requests.
    pub(in super::super) sends: u32,
    pub(in super::super) least_sends: u32,
    pub(in super::super) send_sges: u32,
    pub(in super::super) receives: u32,
    pub(in super::super) receive_sges: u32,
    /// The wanted size of inline data in bytes. The adapter may give less.
    pub(in super::super) inline: u32,
}

/// The route to a peer.
#[derive(Clone, Copy)]
pub(in super::super) struct Route {
    pub(in super::super) peer: Address,
    /// The number of this side's first packet.
    pub(in super::super) psn: u32,
    pub(in super::super) gid_index: u32,
    pub(in super::super) mtu: Mtu,
    /// True if the port needs a global header (GRH), whatever the address is.
    pub(in super::super) needs_grh: bool,
    /// The limits of concurrent reads and atomics: those that this side answers, and those that it
    /// requests.
    pub(in super::super) rd_atomics: [u8; 2],
    pub(in super::super) retry: Retry,
    pub(in super::super) transport: Transport,
    /// The route that rdma_cm has found. Options of the application take precedence.
    pub(in super::super) resolved: Option<ibv_ah_attr>,
}

/// The limits after which the transport gives up a peer that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Retry {
    /// The exponent of the time limit of an answer: 4.096 us times 2 to this power
    /// (ibv_modify_qp(3)).
    timeout: u8,
    /// The number of tries after the first.
    count: u8,
}

/// How long the peer waits before it tries again, if this side had no receive: 0.64 ms
/// (ibv_modify_qp(3), the table of `min_rnr_timer`).
const RNR_TIMER: u8 = 12;
/// The number of tries if the peer has no receive: 7 means that tries never end.
/// [`super::super::connection::RcConnection::tick`] finds the sends that have waited for too long.
/// If the number were limited, the pause between two tries would have to be a part of the whole
/// time limit, up to half a second, and a send whose receive comes a moment late would wait for
/// such a pause.
const RNR_RETRIES: u8 = 7;

impl Retry {
    /// Returns limits that give up within about `limit`, and after a second at most, unless the
    /// application has set the time of a try. The transport may take four times as long.
    pub(in super::super) fn within(limit: Duration, transport: &Transport) -> Retry {
        let count = transport.retry_count;
        let retry = |timeout: u8| Retry { timeout, count };
        if let Some(time) = transport.ack_timeout {
            let units = time.as_nanos().div_ceil(4096).max(1);
            return retry(units.next_power_of_two().ilog2() as u8);
        }
        // 15 is 134 ms a try, twice the value of rdma-core's own programs, since a busy machine may
        // not answer for half a second. Less than 1 ms a try breaks connections.
        let fits = (8..=15)
            .rev()
            .find(|&timeout| retry(timeout).total() <= limit);
        retry(fits.unwrap_or(8))
    }

    /// Returns the time until the transport gives up.
    pub(in super::super) fn total(self) -> Duration {
        self.timeout() * u32::from(1 + self.count)
    }

    /// Returns the time of one try.
    pub(in super::super) fn timeout(self) -> Duration {
        Duration::from_nanos(4096 << self.timeout)
    }
}

/// Returns true if the application has set an option that only a global header can carry.
/// InfiniBand can do without that header.
fn asks_for_grh(transport: &Transport) -> bool {
    let of = |it: &Transport| (it.traffic_class, it.hop_limit, it.gid);
    of(transport) != of(&Transport::default())
}

/// Returns the route `found` by rdma_cm. Options that the application has set replace its values.
fn as_asked(mut found: ibv_ah_attr, requested: &Transport) -> ibv_ah_attr {
    let default = Transport::default();
    if requested.service_level != default.service_level {
        found.sl = requested.service_level;
    }
    if requested.traffic_class != default.traffic_class {
        found.grh.traffic_class = requested.traffic_class;
    }
    if requested.hop_limit != default.hop_limit {
        found.grh.hop_limit = requested.hop_limit;
    }
    found
}

impl Qp {
    /// Returns a new id, which events of a queue pair carry.
    pub(in super::super) fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Relaxed)
    }

    /// Creates a queue pair in the state INIT. `remote` has the permissions of the peer; events of
    /// the queue pair carry `id`. With a shared receive queue, the queue pair has no receives of
    /// its own.
    pub(in super::super) fn create(
        (cq, srq): (&Arc<Cq>, Option<&Arc<Srq>>),
        pd: *mut ibv_pd,
        id: u64,
        caps: QpCaps,
        remote: ibv_access_flags,
        pkey_index: u16,
    ) -> Result<Qp> {
        let context = &cq.context;
        let create_qp = context.table.create_qp;
        let mut wanted = caps;
        let (raw, max_inline) = loop {
            let mut attr = ibv_qp_init_attr {
                qp_context: ptr::without_provenance_mut(id as usize),
                send_cq: cq.raw(),
                recv_cq: cq.raw(),
                srq: srq.map_or(ptr::null_mut(), |srq| srq.raw()),
                qp_type: IBV_QPT_RC,
                ..ibv_qp_init_attr::default()
            };
            attr.cap.max_send_wr = wanted.sends;
            attr.cap.max_send_sge = wanted.send_sges;
            attr.cap.max_recv_wr = wanted.receives;
            attr.cap.max_recv_sge = wanted.receive_sges;
            attr.cap.max_inline_data = wanted.inline;
            // SAFETY: the domain is the context's, and both queues are held by what is made.
            let made = check_ptr("ibv_create_qp", unsafe { create_qp(pd, &mut attr) });
            match made {
                // The adapter may give more inline data than is wanted, and the application may
                // want none.
                Ok(raw) => break (raw, attr.cap.max_inline_data.min(wanted.inline)),
                // No query returns which sizes of inline data and of the queue an adapter supports
                // together.
                Err(_) if wanted.inline > 0 => wanted.inline /= 2,
                Err(_) if wanted.sends > wanted.least_sends => {
                    wanted.sends = (wanted.sends / 2).max(wanted.least_sends);
                    wanted.inline = caps.inline;
                }
                Err(error) => return Err(error),
            }
        };
        let qp = Qp {
            cq: Arc::clone(cq),
            _srq: srq.cloned(),
            raw,
            // SAFETY: the queue pair was just made.
            num: unsafe { (*raw.as_ptr()).qp_num },
            sends: wanted.sends,
            max_inline,
            destroyed: AtomicBool::new(false),
            asks: AtomicBool::new(false),
        };
        qp.init(remote, pkey_index)?;
        Ok(qp)
    }

    pub(in super::super) fn num(&self) -> u32 {
        self.num
    }

    /// Returns the capacity of the send queue.
    pub(in super::super) fn sends(&self) -> u32 {
        self.sends
    }

    pub(in super::super) fn max_inline(&self) -> u32 {
        self.max_inline
    }

    fn modify(
        &self,
        call: &'static str,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<()> {
        check(call, self.set(attr, mask))
    }

    /// Returns the result of `ibv_modify_qp`.
    pub(super) fn set(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> i32 {
        let modify_qp = self.cq.context.table.modify_qp;
        // SAFETY: the queue pair is alive; the attributes are the caller's.
        unsafe { modify_qp(self.raw.as_ptr(), attr, mask.0 as i32) }
    }

    fn init(&self, remote: ibv_access_flags, pkey_index: u16) -> Result<()> {
        use ibv_qp_attr_mask as m;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index,
            port_num: self.cq.context.traits.port,
            qp_access_flags: remote.0,
            ..ibv_qp_attr::default()
        };
        let mut mask = m::IBV_QP_STATE | m::IBV_QP_ACCESS_FLAGS;
        // iWARP has no partitions, and its connections choose the port.
        if !self.cq.context.traits.iwarp {
            mask = mask | m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT;
        }
        self.modify("ibv_modify_qp to INIT", &mut attr, mask)
    }

    /// Moves the queue pair to the states ready to receive and ready to send. The error has `true`
    /// if the queue pair is half-way, where it must stay: going back to INIT would drop posted
    /// receives.
    pub(in super::super) fn connect(
        &self,
        route: &Route,
    ) -> std::result::Result<(), (bool, Error)> {
        let received = self.ready_to_receive(route);
        received.map_err(|error| (false, error))?;
        let sends = self.ready_to_send(route);
        sends.map_err(|error| (true, error))
    }

    /// Returns the attributes of the path to the peer, where rdma_cm has resolved none
    /// (`route.resolved`).
    fn ah_attr(&self, route: &Route) -> ibv_ah_attr {
        let traits = &self.cq.context.traits;
        let mut attr = ibv_ah_attr {
            dlid: route.peer.lid,
            sl: route.transport.service_level,
            port_num: traits.port,
            ..ibv_ah_attr::default()
        };
        let is_asked = asks_for_grh(&route.transport);
        if traits.ethernet || route.needs_grh || route.peer.lid == 0 || is_asked {
            attr.is_global = 1;
            attr.grh.dgid.raw = route.peer.gid;
            attr.grh.sgid_index = route.gid_index as u8;
            attr.grh.hop_limit = route.transport.hop_limit;
            attr.grh.traffic_class = route.transport.traffic_class;
        }
        attr
    }

    /// Moves the queue pair from INIT to ready to receive. The call may take as long as resolving
    /// the peer's hardware address.
    fn ready_to_receive(&self, route: &Route) -> Result<()> {
        use ibv_qp_attr_mask as m;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: route.mtu as u32 + 1,
            dest_qp_num: route.peer.qpn,
            rq_psn: route.peer.psn,
            max_dest_rd_atomic: route.rd_atomics[0],
            min_rnr_timer: RNR_TIMER,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr = match route.resolved {
            Some(resolved) => as_asked(resolved, &route.transport),
            None => self.ah_attr(route),
        };
        let mask = m::IBV_QP_STATE
            | m::IBV_QP_AV
            | m::IBV_QP_PATH_MTU
            | m::IBV_QP_DEST_QPN
            | m::IBV_QP_RQ_PSN
            | m::IBV_QP_MAX_DEST_RD_ATOMIC
            | m::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", &mut attr, mask)
    }

    /// Moves the queue pair from ready to receive to ready to send.
    fn ready_to_send(&self, route: &Route) -> Result<()> {
        use ibv_qp_attr_mask as m;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: route.psn,
            timeout: route.retry.timeout,
            retry_cnt: route.retry.count,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: route.rd_atomics[1],
            ..ibv_qp_attr::default()
        };
        let mask = m::IBV_QP_STATE
            | m::IBV_QP_TIMEOUT
            | m::IBV_QP_RETRY_CNT
            | m::IBV_QP_RNR_RETRY
            | m::IBV_QP_SQ_PSN
            | m::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", &mut attr, mask)
    }

    /// Posts a list. The error has the number of requests that the adapter took, and the errno of
    /// the next one. The number is `None` if the adapter does not report it, and may have taken all
    /// (Soft-RoCE queues requests, and may then fail to notify the kernel).
    ///
    /// # Safety
    ///
    /// The memory that the requests name stays valid, and leased, until they have completed or the
    /// queue pair is destroyed.
    #[inline(always)]
    pub(in super::super) unsafe fn post_send(
        &self,
        chain: &mut Chain,
    ) -> std::result::Result<(), (Option<usize>, i32)> {
        let first = chain.link();
        let (ops, mut bad) = (&self.cq.context.ops, ptr::null_mut());
        // SAFETY: the queue pair is alive, and the list is in `chain`. The caller promises the
        // rest.
        let answer = unsafe { ops.post_send(self.raw.as_ptr(), first, &mut bad) };
        match answer {
            0 => Ok(()),
            errno => Err((chain.position(bad), errno)),
        }
    }

    /// Posts one request, whose list is `sges`. The error has the errno, and is `true` if the
    /// adapter has certainly not taken the request.
    ///
    /// # Safety
    ///
    /// As for `post_send`.
    #[inline(always)]
    pub(in super::super) unsafe fn post_one(
        &self,
        wr: &mut ibv_send_wr,
        sges: &mut [ibv_sge],
    ) -> std::result::Result<(), (bool, i32)> {
        // As in `link`, an empty list is null.
        wr.sg_list = match sges.is_empty() {
            true => ptr::null_mut(),
            false => sges.as_mut_ptr(),
        };
        wr.num_sge = sges.len() as i32;
        wr.next = ptr::null_mut();
        let (ops, mut bad) = (&self.cq.context.ops, ptr::null_mut());
        // SAFETY: the queue pair is alive. The request is alone, and `num_sge` is the length of its
        // list. The caller promises that the memory is valid.
        let answer = unsafe { ops.post_send(self.raw.as_ptr(), wr, &mut bad) };
        match answer {
            0 => Ok(()),
            errno => Err((ptr::eq(bad, wr), errno)),
        }
    }

    /// Posts a list of receives. The error is as for `post_send`.
    ///
    /// # Safety
    ///
    /// As for `post_send`.
    #[inline(always)]
    pub(in super::super) unsafe fn post_recvs(
        &self,
        chain: &mut RecvChain,
    ) -> std::result::Result<(), (Option<usize>, i32)> {
        let first = chain.link();
        let (ops, mut bad) = (&self.cq.context.ops, ptr::null_mut());
        // SAFETY: the queue pair is alive, and the list is in `chain`. The caller promises the
        // rest.
        let answer = unsafe { ops.post_recv(self.raw.as_ptr(), first, &mut bad) };
        match answer {
            0 => Ok(()),
            errno => Err((chain.position(bad), errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_given_up_within_the_limit() {
        let default = Transport::default();
        let total = |millis| Retry::within(Duration::from_millis(millis), &default).total();
        assert_eq!(total(2000), Duration::from_nanos(7 * (4096 << 15)));
        assert!(total(300) <= Duration::from_millis(300));
        assert!(total(300) > Duration::from_millis(150));
        assert_eq!(total(0), Duration::from_nanos(7 * (4096 << 8)));
        let said = Transport {
            ack_timeout: Some(Duration::from_secs(1)),
            retry_count: 2,
            ..default
        };
        let retry = Retry::within(Duration::ZERO, &said);
        assert_eq!(retry.timeout(), Duration::from_nanos(4096 << 18));
        let rounded = |nanos| {
            let ack_timeout = Some(Duration::from_nanos(nanos));
            let said = Transport {
                ack_timeout,
                ..default
            };
            Retry::within(Duration::ZERO, &said).timeout
        };
        assert_eq!(rounded(4096 << 8), 8);
        assert_eq!(rounded((4096 << 8) + 1), 9);
        assert_eq!(rounded(17_000_000_000), 22);
        assert_eq!(retry.total(), 3 * retry.timeout());
    }
}
