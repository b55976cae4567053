//! The types of the ABIs of libibverbs and librdmacm, with the names of their headers (verbs.h and
//! rdma_cma.h of rdma-core).
//!
//! Types of which the library makes the values may grow, but only at their end. `abi` declares the
//! fields of such a type that are used, and all fields before them. Only tests make values of such
//! a type, with a library of their own.
#![allow(missing_docs)]
#![allow(non_camel_case_types, reason = "the names of C")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use zerocopy::FromZeros;

use super::values::*;

/// Declares structs and unions of C, for which all zeros are a valid value.
///
/// `NAME = C TYPE [. FIELD]` names the corresponding type of C, or a field whose type has no name.
/// With `..`, the type of C has more fields.
macro_rules! types {
    ($($(#[$doc:meta])* $kind:ident $name:ident = $c:literal $(. $part:literal)? {
        $($(#[$of_field:meta])* $field:ident $(= $of:literal)?: $type:ty,)* $(.. $more:ident)?
    })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, FromZeros)]
        pub $kind $name { $($(#[$of_field])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> $name {
                $name::new_zeroed()
            }
        })*

        /// Returns all types, for `headers`.
        #[cfg(test)]
        pub(super) fn types() -> Vec<super::headers::Type> {
            vec![$(super::headers::Type {
                c: $c,
                part: concat!($($part)?),
                size: last([Some(size_of::<$name>()) $(, { stringify!($more); None })?]),
                fields: vec![$((
                    last([stringify!($field) $(, $of)?]),
                    std::mem::offset_of!($name, $field),
                    size_of::<$type>(),
                ),)*],
            },)*]
        }
    };
}

/// Returns the last of these values.
#[cfg(test)]
fn last<T: Copy, const N: usize>(said: [T; N]) -> T {
    said[N - 1]
}

pub type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut Wc) -> c_int;
pub type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// A function of a table that the crate does not call through the table.
type Unused = Option<unsafe extern "C" fn()>;

types! {
    struct ibv_async_event = "struct ibv_async_event" {
        element: ibv_async_event_element,
        event_type: ibv_event_type,
    }
    union ibv_async_event_element = "struct ibv_async_event"."element" {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        port_num: c_int,
    }
    struct ibv_ah_attr = "struct ibv_ah_attr" {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    struct ibv_comp_channel = "struct ibv_comp_channel" {
        context: *mut ibv_context,
        fd: c_int,
        .. more
    }
    struct ibv_context = "struct ibv_context" {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        .. more
    }
    struct ibv_context_ops = "struct ibv_context_ops" {
        unused_1 = "_compat_query_device": [Unused; 11],
        poll_cq: Option<PollCq>,
        req_notify_cq: Option<ReqNotifyCq>,
        unused_2 = "_compat_cq_event": [Unused; 7],
        post_srq_recv: Option<PostSrqRecv>,
        unused_3 = "_compat_create_qp": [Unused; 4],
        post_send: Option<PostSend>,
        post_recv: Option<PostRecv>,
        unused_4 = "_compat_create_ah": [Unused; 5],
    }
    struct ibv_cq = "struct ibv_cq" {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        .. more
    }
    struct ibv_device = "struct ibv_device" {
        unused = "_ops": [Unused; 2],
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    struct ibv_device_attr = "struct ibv_device_attr" {
        fw_ver: [c_char; 64],
        /// Big-endian.
        node_guid: u64,
        /// Big-endian.
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: ibv_atomic_cap,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    union ibv_gid = "union ibv_gid" {
        raw: [u8; 16],
        global: ibv_gid_global,
    }
    struct ibv_gid_global = "union ibv_gid"."global" {
        /// Big-endian.
        subnet_prefix: u64,
        /// Big-endian.
        interface_id: u64,
    }
    struct ibv_gid_entry = "struct ibv_gid_entry" {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
    struct ibv_global_route = "struct ibv_global_route" {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    struct ibv_mr = "struct ibv_mr" {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    struct ibv_pd = "struct ibv_pd" {
        context: *mut ibv_context,
        handle: u32,
    }
    struct ibv_port_attr = "struct ibv_port_attr" {
        state: ibv_port_state,
        max_mtu: ibv_mtu,
        active_mtu: ibv_mtu,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: ibv_link_layer,
        flags: u8,
        port_cap_flags2: u16,
        .. more
    }
    struct ibv_qp = "struct ibv_qp" {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: ibv_qp_state,
        qp_type: ibv_qp_type,
        .. more
    }
    struct ibv_qp_attr = "struct ibv_qp_attr" {
        qp_state: ibv_qp_state,
        cur_qp_state: ibv_qp_state,
        path_mtu: ibv_mtu,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
    struct ibv_qp_cap = "struct ibv_qp_cap" {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    struct ibv_qp_init_attr = "struct ibv_qp_init_attr" {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
    }
    struct ibv_recv_wr = "struct ibv_recv_wr" {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    struct ibv_send_wr = "struct ibv_send_wr" {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        /// Big-endian. In C this is a union, which has a key for another opcode.
        imm_data: u32,
        wr: ibv_send_wr_wr,
        unused_1 = "qp_type": u32,
        unused_2 = "bind_mw": [u64; 6],
    }
    union ibv_send_wr_wr = "struct ibv_send_wr"."wr" {
        rdma: ibv_send_wr_rdma,
        atomic: ibv_send_wr_atomic,
    }
    struct ibv_send_wr_rdma = "struct ibv_send_wr"."wr.rdma" {
        remote_addr: u64,
        rkey: u32,
    }
    struct ibv_send_wr_atomic = "struct ibv_send_wr"."wr.atomic" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }
    struct ibv_sge = "struct ibv_sge" {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    struct ibv_srq = "struct ibv_srq" {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        .. more
    }
    struct ibv_srq_attr = "struct ibv_srq_attr" {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
    struct ibv_srq_init_attr = "struct ibv_srq_init_attr" {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }
    /// If `status` is not `IBV_WC_SUCCESS`, only `wr_id`, `status`, `qp_num` and `vendor_err` are
    /// valid (ibv_poll_cq(3)).
    #[derive(Debug)]
    struct Wc = "struct ibv_wc" {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        /// Big-endian. In C this is a union, which has a key for another opcode.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    struct rdma_addr = "struct rdma_addr" {
        src_addr = "src_storage": [u64; 16],
        dst_addr = "dst_storage": [u64; 16],
        addr = "addr.ibaddr": rdma_ib_addr,
    }
    struct rdma_cm_event = "struct rdma_cm_event" {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        /// In C this is a union, of which this is the first field.
        conn = "param.conn": rdma_conn_param,
        .. more
    }
    struct rdma_cm_id = "struct rdma_cm_id" {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        .. more
    }
    struct rdma_conn_param = "struct rdma_conn_param" {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
    struct rdma_event_channel = "struct rdma_event_channel" {
        fd: c_int,
    }
    struct rdma_ib_addr = "struct rdma_ib_addr" {
        sgid: ibv_gid,
        dgid: ibv_gid,
        /// Big-endian.
        pkey: u16,
    }
    struct rdma_route = "struct rdma_route" {
        addr: rdma_addr,
        path_rec: *mut c_void,
        num_paths: c_int,
    }
}
