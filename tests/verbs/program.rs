//! A program as one would write it in C: a queue pair with all it needs, made only by functions of
//! the table.
#![expect(unsafe_code, reason = "it calls what C would call")]

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use support::block_until;
use tokio_doca::verbs::ffi::ibv_qp_attr_mask as mask;
use tokio_doca::verbs::ffi::*;

use crate::fake_verbs::World;

pub(crate) const ALL: u32 = 15;
pub(crate) const LEN: usize = 16384;

/// Settings of a queue pair, of which most tests keep the defaults.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) qp_access: u32,
    pub(crate) mr_access: u32,
    pub(crate) cqe: c_int,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) inline: u32,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) sq_psn: u32,
    pub(crate) rq_psn: u32,
    pub(crate) gid_index: u8,
    pub(crate) is_global: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            qp_access: ALL,
            mr_access: ALL,
            cqe: 64,
            sends: 16,
            receives: 16,
            inline: 64,
            timeout: 8,
            retries: 2,
            rnr_timer: 1,
            rnr_retries: 7,
            sq_psn: 77,
            rq_psn: 77,
            gid_index: 1,
            is_global: true,
        }
    }
}

pub(crate) struct Side {
    pub(crate) table: Table,
    pub(crate) settings: Settings,
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) mr: *mut ibv_mr,
    pub(crate) memory: *mut u8,
    pub(crate) lid: u16,
    pub(crate) gid: ibv_gid,
}

/// A work request; `at` and `remote` are offsets into the memory of the two sides.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) wr_id: u64,
    pub(crate) pieces: Vec<(usize, u32)>,
    pub(crate) remote: usize,
    pub(crate) flags: u32,
    pub(crate) imm: u32,
    pub(crate) atomic: (u64, u64),
    /// Replaces the key of the peer.
    pub(crate) rkey: Option<u32>,
    pub(crate) lkey: Option<u32>,
}

pub(crate) const SIGNALED: u32 = 2;
pub(crate) const INLINE: u32 = 8;

impl Request {
    pub(crate) fn new(
        opcode: ibv_wr_opcode,
        wr_id: u64,
        at: usize,
        len: u32,
        remote: usize,
    ) -> Request {
        Request {
            opcode,
            wr_id,
            pieces: vec![(at, len)],
            remote,
            flags: SIGNALED,
            imm: 0,
            atomic: (0, 0),
            rkey: None,
            lkey: None,
        }
    }
}

/// Calls a function of the table; the caller follows its man page.
macro_rules! call {
    ($table:expr, $name:ident $(, $arg:expr)*) => {{
        let function = $table.$name;
        // SAFETY: the fake checks its arguments, and the output pointers are valid.
        unsafe { function($($arg),*) }
    }};
}
pub(crate) use call;

impl Side {
    /// Sets up everything up to a queue pair in the state Init.
    pub(crate) fn new(world: &World, name: &str, settings: Settings) -> Side {
        let mut side = Side::open(world, name, settings);
        side.qp = side.create_qp();
        assert_eq!(side.init(), 0);
        side
    }

    /// Sets up everything but a queue pair.
    pub(crate) fn open(world: &World, name: &str, settings: Settings) -> Side {
        let table = world.table();
        let mut count = 0;
        let list = call!(table, get_device_list, &mut count);
        assert!(!list.is_null());
        let mut devices = (0..count as usize).map(|index| {
            // SAFETY: the index is below the count of the list.
            let place = unsafe { list.add(index) };
            // SAFETY: as above.
            unsafe { *place }
        });
        let is_named = |device: &*mut ibv_device| {
            let text = call!(table, get_device_name, *device);
            // SAFETY: a NUL-terminated name of a device in the list.
            let text = unsafe { std::ffi::CStr::from_ptr(text) };
            text.to_str() == Ok(name)
        };
        let device = devices.find(is_named).expect("the device");
        let context = call!(table, open_device, device);
        call!(table, free_device_list, list);
        let pd = call!(table, alloc_pd, context);
        let channel = call!(table, create_comp_channel, context);
        let cq = call!(
            table,
            create_cq,
            context,
            settings.cqe,
            ptr::null_mut(),
            channel,
            0
        );
        let words = Box::leak(vec![0u64; LEN / 8].into_boxed_slice());
        let memory = words.as_mut_ptr().cast::<u8>();
        let mr = call!(
            table,
            reg_mr,
            pd,
            memory.cast(),
            LEN,
            settings.mr_access as c_int
        );
        assert!(
            ![
                context.cast(),
                pd.cast(),
                channel.cast(),
                cq.cast(),
                mr.cast::<u8>()
            ]
            .contains(&ptr::null_mut())
        );
        let mut port = ibv_port_attr::default();
        assert_eq!(call!(table, query_port, context, 1, &mut port), 0);
        let mut entry = ibv_gid_entry::default();
        let index = u32::from(settings.gid_index);
        let got = call!(
            table,
            query_gid_ex,
            context,
            1,
            index,
            &mut entry,
            0,
            size_of::<ibv_gid_entry>()
        );
        assert_eq!(got, 0);
        Side {
            table,
            settings,
            context,
            pd,
            channel,
            cq,
            qp: ptr::null_mut(),
            mr,
            memory,
            lid: port.lid,
            gid: entry.gid,
        }
    }

    pub(crate) fn create_qp(&self) -> *mut ibv_qp {
        let mut init = ibv_qp_init_attr {
            send_cq: self.cq,
            recv_cq: self.cq,
            cap: ibv_qp_cap {
                max_send_wr: self.settings.sends,
                max_recv_wr: self.settings.receives,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: self.settings.inline,
            },
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        call!(self.table, create_qp, self.pd, &mut init)
    }

    pub(crate) fn modify(&self, attr: &mut ibv_qp_attr, given: &[mask]) -> c_int {
        let given = given.iter().fold(0, |all, one| all | one.0);
        call!(self.table, modify_qp, self.qp, attr, given as c_int)
    }

    pub(crate) fn to_state(&self, state: ibv_qp_state) -> c_int {
        let mut attr = ibv_qp_attr {
            qp_state: state,
            ..ibv_qp_attr::default()
        };
        self.modify(&mut attr, &[mask::IBV_QP_STATE])
    }

    pub(crate) fn init(&self) -> c_int {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: self.settings.qp_access,
            ..ibv_qp_attr::default()
        };
        let given = [
            mask::IBV_QP_STATE,
            mask::IBV_QP_PORT,
            mask::IBV_QP_PKEY_INDEX,
            mask::IBV_QP_ACCESS_FLAGS,
        ];
        self.modify(&mut attr, &given)
    }

    pub(crate) fn to_receive(&self, peer: &Side) -> c_int {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_1024,
            dest_qp_num: peer.number(),
            rq_psn: self.settings.rq_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: self.settings.rnr_timer,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr.port_num = 1;
        attr.ah_attr.dlid = peer.lid;
        attr.ah_attr.is_global = self.settings.is_global.into();
        attr.ah_attr.grh.dgid = peer.gid;
        attr.ah_attr.grh.sgid_index = self.settings.gid_index;
        attr.ah_attr.grh.hop_limit = 1;
        let given = [
            mask::IBV_QP_STATE,
            mask::IBV_QP_AV,
            mask::IBV_QP_PATH_MTU,
            mask::IBV_QP_DEST_QPN,
            mask::IBV_QP_RQ_PSN,
            mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            mask::IBV_QP_MIN_RNR_TIMER,
        ];
        self.modify(&mut attr, &given)
    }

    pub(crate) fn to_send(&self) -> c_int {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: self.settings.timeout,
            retry_cnt: self.settings.retries,
            rnr_retry: self.settings.rnr_retries,
            sq_psn: self.settings.sq_psn,
            max_rd_atomic: 1,
            ..ibv_qp_attr::default()
        };
        let given = [
            mask::IBV_QP_STATE,
            mask::IBV_QP_TIMEOUT,
            mask::IBV_QP_RETRY_CNT,
            mask::IBV_QP_RNR_RETRY,
            mask::IBV_QP_SQ_PSN,
            mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ];
        self.modify(&mut attr, &given)
    }

    pub(crate) fn connect(&self, peer: &Side) {
        assert_eq!(self.to_receive(peer), 0);
        assert_eq!(self.to_send(), 0);
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair exists.
        unsafe { (*self.qp).qp_num }
    }

    /// Returns the local and the remote key of this side's memory.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the memory region exists.
        let mr = unsafe { *self.mr };
        (mr.lkey, mr.rkey)
    }

    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        // SAFETY: the offset lies within this side's memory.
        let place = unsafe { self.memory.add(at) };
        // SAFETY: within this side's memory, which no posted request accesses meanwhile.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= LEN);
        // SAFETY: the offset lies within this side's memory.
        let place = unsafe { self.memory.add(at) };
        // SAFETY: within this side's memory; all posted requests have completed.
        unsafe { std::slice::from_raw_parts(place, len) }.to_vec()
    }

    fn sges(&self, pieces: &[(usize, u32)], lkey: Option<u32>) -> Vec<ibv_sge> {
        let lkey = lkey.unwrap_or(self.keys().0);
        let sge = |&(at, length): &(usize, u32)| ibv_sge {
            addr: self.memory as u64 + at as u64,
            length,
            lkey,
        };
        pieces.iter().map(sge).collect()
    }

    /// Posts a list. Returns the result, and the index of the request that was refused.
    pub(crate) fn post(&self, peer: &Side, requests: &[Request]) -> (c_int, Option<usize>) {
        let mut lists: Vec<_> = requests
            .iter()
            .map(|request| self.sges(&request.pieces, request.lkey))
            .collect();
        let mut wrs: Vec<ibv_send_wr> = Vec::new();
        for (request, list) in requests.iter().zip(&mut lists) {
            let mut wr = ibv_send_wr {
                wr_id: request.wr_id,
                sg_list: first(list),
                num_sge: list.len() as c_int,
                opcode: request.opcode,
                send_flags: request.flags,
                ..ibv_send_wr::default()
            };
            wr.imm_data = request.imm.to_be();
            let remote_addr = peer.memory as u64 + request.remote as u64;
            let rkey = request.rkey.unwrap_or(peer.keys().1);
            if matches!(
                request.opcode,
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
            ) {
                wr.wr.atomic = ibv_send_wr_atomic {
                    remote_addr,
                    compare_add: request.atomic.0,
                    swap: request.atomic.1,
                    rkey,
                };
            } else {
                wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
            }
            wrs.push(wr);
        }
        let places: Vec<*mut ibv_send_wr> = wrs.iter_mut().map(|wr| &raw mut *wr).collect();
        for (wr, &next) in wrs.iter_mut().zip(&places[1..]) {
            wr.next = next;
        }
        let mut bad = ptr::null_mut();
        let post_send = self.ops().post_send.expect("filled");
        // SAFETY: a list that ends with null, with memory of this side.
        let errno = unsafe { post_send(self.qp, places[0], &mut bad) };
        (errno, places.iter().position(|&place| place == bad))
    }

    pub(crate) fn post_one(&self, peer: &Side, request: Request) {
        assert_eq!(self.post(peer, &[request]), (0, None));
    }

    pub(crate) fn receive(&self, wr_id: u64, pieces: &[(usize, u32)]) -> c_int {
        let mut list = self.sges(pieces, None);
        let mut wr = ibv_recv_wr {
            wr_id,
            sg_list: first(&mut list),
            num_sge: list.len() as c_int,
            ..ibv_recv_wr::default()
        };
        let mut bad = ptr::null_mut();
        let post_recv = self.ops().post_recv.expect("filled");
        // SAFETY: a list that ends with null, with memory of this side.
        unsafe { post_recv(self.qp, &mut wr, &mut bad) }
    }

    fn ops(&self) -> ibv_context_ops {
        // SAFETY: the device is open.
        unsafe { (*self.context).ops }
    }

    /// Returns the result of `ibv_poll_cq`, and the completions.
    pub(crate) fn poll(&self) -> (c_int, Vec<Wc>) {
        let mut wcs = [Wc::default(); 4];
        let poll_cq = self.ops().poll_cq.expect("filled");
        // SAFETY: the array has four elements.
        let polled = unsafe { poll_cq(self.cq, 4, wcs.as_mut_ptr().cast()) };
        (polled, wcs[..polled.max(0) as usize].to_vec())
    }

    pub(crate) fn poll_all(&self, count: usize) -> Vec<Wc> {
        let mut all = Vec::new();
        block_until("all completions", || {
            let (polled, wcs) = self.poll();
            assert!(polled >= 0, "the completion queue has failed");
            all.extend(wcs);
            all.len() >= count
        });
        assert_eq!(all.len(), count);
        all
    }

    pub(crate) fn poll_one(&self) -> Wc {
        self.poll_all(1)[0]
    }

    pub(crate) fn arm(&self) {
        let req_notify_cq = self.ops().req_notify_cq.expect("filled");
        // SAFETY: the completion queue exists.
        assert_eq!(unsafe { req_notify_cq(self.cq, 0) }, 0);
    }

    /// Reads one event of the channel without acknowledging it; returns `None` if there is none
    /// within this time.
    pub(crate) fn event(&self, within: Duration) -> Option<()> {
        // SAFETY: the channel exists.
        let fd = unsafe { (*self.channel).fd };
        readable(fd, within)?;
        let (mut cq, mut cq_context) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(
            call!(
                self.table,
                get_cq_event,
                self.channel,
                &mut cq,
                &mut cq_context
            ),
            0
        );
        assert_eq!(cq, self.cq);
        Some(())
    }

    pub(crate) fn ack(&self, count: u32) {
        call!(self.table, ack_cq_events, self.cq, count);
    }

    /// Reads one asynchronous event without acknowledging it.
    pub(crate) fn async_event(&self, within: Duration) -> Option<ibv_async_event> {
        // SAFETY: the device is open.
        let fd = unsafe { (*self.context).async_fd };
        readable(fd, within)?;
        let mut event = ibv_async_event::default();
        assert_eq!(
            call!(self.table, get_async_event, self.context, &mut event),
            0
        );
        Some(event)
    }

    pub(crate) fn close(self) {
        let table = self.table;
        if !self.qp.is_null() {
            assert_eq!(call!(table, destroy_qp, self.qp), 0);
        }
        assert_eq!(call!(table, destroy_cq, self.cq), 0);
        assert_eq!(call!(table, destroy_comp_channel, self.channel), 0);
        assert_eq!(call!(table, dereg_mr, self.mr), 0);
        assert_eq!(call!(table, dealloc_pd, self.pd), 0);
        assert_eq!(call!(table, close_device, self.context), 0);
        self.free();
    }

    /// Frees this side's memory; nothing may be in flight.
    pub(crate) fn free(self) {
        let words = ptr::slice_from_raw_parts_mut(self.memory.cast::<u64>(), LEN / 8);
        // SAFETY: leaked by `open` with this length.
        drop(unsafe { Box::from_raw(words) });
    }
}

fn readable(fd: c_int, within: Duration) -> Option<()> {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: passes one valid struct.
    let ready = unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as c_int) };
    (ready == 1).then_some(())
}

/// Returns a pointer to the first piece; null if there are none.
fn first(list: &mut [ibv_sge]) -> *mut ibv_sge {
    match list.is_empty() {
        true => ptr::null_mut(),
        false => list.as_mut_ptr(),
    }
}
