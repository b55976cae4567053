//! The functions of libibverbs that Dma needs, and `repr(C)` twins of its structs with the fields that are used.
#![allow(non_camel_case_types, reason = "the names of the C header")]

use std::ffi::{c_int, c_uint, c_void};

#[repr(C)]
pub(super) struct ibv_pd {
    pub(super) handle: u32,
}

#[repr(C)]
pub(super) struct ibv_mr {
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct ibv_comp_channel {
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct ibv_cq {
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq_context: *mut c_void,
    pub(super) cqe: c_int,
}

#[repr(C)]
pub(super) struct ibv_qp {
    pub(super) send_cq: *mut ibv_cq,
    pub(super) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_send_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    // wr.rdma
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// Of a failed work request only `wr_id`, `status`, `vendor_err` and `qp_num` are valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) qp_num: u32,
}

pub(super) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const IBV_ACCESS_REMOTE_WRITE: c_int = 2;

pub(super) const IBV_WR_RDMA_WRITE: c_int = 0;
pub(super) const IBV_SEND_SIGNALED: c_uint = 2;

pub(super) const IBV_WC_SUCCESS: c_int = 0;
pub(super) const IBV_WC_LOC_PROT_ERR: c_int = 4;
pub(super) const IBV_WC_WR_FLUSH_ERR: c_int = 5;
pub(super) const IBV_WC_REM_ACCESS_ERR: c_int = 10;

/// What is asked of a queue pair; those of the C struct that matter here.
#[repr(C)]
pub(super) struct ibv_qp_init_attr {
    pub(super) send_cq: *mut ibv_cq,
    pub(super) max_send_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) sq_sig_all: c_int,
}

/// Errors are `errno` values, or -1 with `errno` set, as the man page of each has it.
pub(super) struct VerbsTable {
    pub(super) alloc_pd: unsafe extern "C" fn() -> *mut ibv_pd,
    pub(super) dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    pub(super) reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    pub(super) dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    pub(super) create_comp_channel: unsafe extern "C" fn() -> *mut ibv_comp_channel,
    pub(super) destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
    pub(super) create_cq:
        unsafe extern "C" fn(c_int, *mut c_void, *mut ibv_comp_channel) -> *mut ibv_cq,
    pub(super) destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    /// The queue pair is connected to itself, and ready to send.
    pub(super) create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    /// `ibv_modify_qp` to `IBV_QPS_ERR`.
    pub(super) modify_qp_to_err: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub(super) destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub(super) post_send:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub(super) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub(super) get_cq_event:
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    pub(super) ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint),
}
