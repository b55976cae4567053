//! The constants of the ABIs of libibverbs and librdmacm, with the names of their headers.
#![allow(missing_docs)]
#![allow(non_camel_case_types, reason = "the names of C")]

use std::ops::{BitOr, BitOrAssign};

/// Declares enums of C, each with the type that a C compiler gives it, and its values.
macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident: $type:ty { $($value:ident = $is:literal,)* })*) => {
        $($(#[$doc])* pub type $name = $type;
        $(pub const $value: $name = $is;)*)*

        /// All values, for `headers`.
        #[cfg(test)]
        pub(super) const ENUMS: &[(&str, i64)] = &[$($((stringify!($value), $is),)*)*];
    };
}

/// Declares flags. Each enum of flags has its own type, so that flags of two enums are not mixed
/// up.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident { $($value:ident = $is:expr,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub u32);

        impl $name {
            $(pub const $value: $name = $name($is);)*
        }

        impl BitOr for $name {
            type Output = $name;

            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        })*

        /// All flags, for `headers`.
        #[cfg(test)]
        pub(super) const FLAGS: &[(&str, i64)] = &[$($((stringify!($value), $is),)*)*];
    };
}

enums! {
    ibv_atomic_cap: u32 {
        IBV_ATOMIC_NONE = 0,
        IBV_ATOMIC_HCA = 1,
        IBV_ATOMIC_GLOB = 2,
    }
    ibv_event_type: u32 {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_EVENT_WQ_FATAL = 19,
    }
    ibv_gid_type: u32 {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }
    /// The type of `ibv_port_attr::link_layer`, which has no name in C.
    ibv_link_layer: u8 {
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        IBV_LINK_LAYER_INFINIBAND = 1,
        IBV_LINK_LAYER_ETHERNET = 2,
    }
    ibv_mtu: u32 {
        IBV_MTU_256 = 1,
        IBV_MTU_512 = 2,
        IBV_MTU_1024 = 3,
        IBV_MTU_2048 = 4,
        IBV_MTU_4096 = 5,
    }
    ibv_node_type: i32 {
        IBV_NODE_CA = 1,
        IBV_NODE_RNIC = 4,
    }
    ibv_port_state: u32 {
        IBV_PORT_NOP = 0,
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }
    ibv_qp_state: u32 {
        IBV_QPS_RESET = 0,
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_SQD = 4,
        IBV_QPS_SQE = 5,
        IBV_QPS_ERR = 6,
    }
    ibv_qp_type: u32 {
        IBV_QPT_RC = 2,
    }
    ibv_transport_type: i32 {
        IBV_TRANSPORT_IB = 0,
        IBV_TRANSPORT_IWARP = 1,
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }
    ibv_wc_opcode: u32 {
        IBV_WC_SEND = 0,
        IBV_WC_RDMA_WRITE = 1,
        IBV_WC_RDMA_READ = 2,
        IBV_WC_COMP_SWAP = 3,
        IBV_WC_FETCH_ADD = 4,
        IBV_WC_RECV = 128,
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
    }
    ibv_wc_status: u32 {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_MW_BIND_ERR = 6,
        IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
    }
    ibv_wr_opcode: u32 {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    }
    rdma_cm_event_type: u32 {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }
    rdma_port_space: u32 {
        RDMA_PS_TCP = 0x106,
    }
}

flags! {
    ibv_access_flags {
        IBV_ACCESS_LOCAL_WRITE = 1 << 0,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    }
    /// The attributes that ibv_modify_qp(3) shall set.
    ibv_qp_attr_mask {
        IBV_QP_STATE = 1 << 0,
        IBV_QP_CUR_STATE = 1 << 1,
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        IBV_QP_PKEY_INDEX = 1 << 4,
        IBV_QP_PORT = 1 << 5,
        IBV_QP_AV = 1 << 7,
        IBV_QP_PATH_MTU = 1 << 8,
        IBV_QP_TIMEOUT = 1 << 9,
        IBV_QP_RETRY_CNT = 1 << 10,
        IBV_QP_RNR_RETRY = 1 << 11,
        IBV_QP_RQ_PSN = 1 << 12,
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        IBV_QP_ALT_PATH = 1 << 14,
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        IBV_QP_SQ_PSN = 1 << 16,
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        IBV_QP_PATH_MIG_STATE = 1 << 18,
        IBV_QP_DEST_QPN = 1 << 20,
    }
    ibv_send_flags {
        IBV_SEND_FENCE = 1 << 0,
        IBV_SEND_SIGNALED = 1 << 1,
        IBV_SEND_SOLICITED = 1 << 2,
        IBV_SEND_INLINE = 1 << 3,
    }
    /// The attributes that ibv_modify_srq(3) shall set.
    ibv_srq_attr_mask {
        IBV_SRQ_LIMIT = 1 << 1,
    }
    ibv_wc_flags {
        IBV_WC_GRH = 1 << 0,
        IBV_WC_WITH_IMM = 1 << 1,
    }
}
