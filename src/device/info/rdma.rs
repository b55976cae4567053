//! The remote operations of a device, and their limits.

/// The kinds of operations of an [`Rdma`](crate::Rdma).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "doca_rdma_job_types")]
#[allow(missing_docs)] // the names are the guide's
pub enum RdmaKind {
    Receive,
    Send,
    SendImm,
    Read,
    Write,
    WriteImm,
    CompareSwap,
    FetchAdd,
}

impl RdmaKind {
    /// All kinds.
    pub const ALL: [RdmaKind; 8] = [
        RdmaKind::Receive,
        RdmaKind::Send,
        RdmaKind::SendImm,
        RdmaKind::Read,
        RdmaKind::Write,
        RdmaKind::WriteImm,
        RdmaKind::CompareSwap,
        RdmaKind::FetchAdd,
    ];
}

/// The remote operations of a device, and their limits. The transport is a reliable connection
/// (RC), the only transport that NVIDIA's RDMA guide has.
///
/// ```
/// use tokio_doca::{Device, device::RdmaKind};
///
/// let device = Device::open_default()?;
/// let caps = device.info().caps().rdma.as_ref().expect("the software device has RDMA");
/// assert!(caps.supports(RdmaKind::WriteImm));
/// let receives = caps.max_recv_queue_size.min(1024);  // for `RdmaBuilder::recv_queue_size`
/// # assert_eq!(receives, 1024);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaCaps {
    /// The maximum size in bytes of a message, of a read and of a write; never more than 2 GiB. A
    /// longer operation fails with `InvalidValue`.
    #[doc(alias = "doca_rdma_get_max_message_size")]
    #[doc(alias = "doca_rdma_cap_get_max_message_size")]
    pub max_message_size: u64,
    /// The maximum [`send_queue_size`](crate::rdma::RdmaBuilder::send_queue_size).
    #[doc(alias = "doca_rdma_get_max_send_queue_size")]
    #[doc(alias = "doca_rdma_cap_get_max_send_queue_size")]
    pub max_send_queue_size: u32,
    /// The maximum [`recv_queue_size`](crate::rdma::RdmaBuilder::recv_queue_size).
    #[doc(alias = "doca_rdma_get_max_recv_queue_size")]
    #[doc(alias = "doca_rdma_cap_get_max_recv_queue_size")]
    pub max_recv_queue_size: u32,
    /// The maximum number of Bufs in a list that is sent or written; 1 if lists are not supported.
    pub max_send_list_len: u32,
    /// The maximum number of Bufs in a list that a read fills, at most `max_send_list_len`; 1 if
    /// lists are not supported.
    pub max_read_list_len: u32,
    /// The maximum number of Bufs in a receive; 1 if lists are not supported.
    pub max_recv_list_len: u32,
    /// The maximum size of a message to an Rdma that receives from a
    /// [`RecvPool`](crate::rdma::RecvPool), in bytes; 0 if no Rdma of the device can receive from a
    /// pool.
    pub max_pooled_len: usize,
    /// True if the device has compare-and-swap and fetch-and-add.
    pub atomics: bool,
    /// True if the device has writes with an immediate.
    pub write_imm: bool,
    /// True if the device has messages with an immediate.
    pub send_imm: bool,
    /// True if a completed send or write means that the peer's device has the bytes. On iWARP a
    /// completion only means that this side's transport has accepted the bytes: these may still be
    /// on their way, and are lost if the connection fails. A later read that completes proves that
    /// the bytes have arrived.
    pub acknowledged: bool,
    /// The number of addresses (GIDs) of the device's port.
    #[doc(alias = "doca_rdma_get_gid_table_size")]
    #[doc(alias = "doca_rdma_cap_get_gid_table_size")]
    pub gid_table_size: u32,
    /// True if the device sends packets over a network. [`Transport`](crate::device::Transport) has
    /// the settings for them.
    pub transport: bool,
    /// The number of partition keys of the device's port.
    pub pkey_table_size: u32,
    /// True if operations and receives can signal an event handle. Otherwise an
    /// [`Rdma`](crate::Rdma) attaches only to a WorkQ in [`Mode::BusyPoll`](crate::Mode::BusyPoll),
    /// and every other WorkQ refuses it (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl RdmaCaps {
    /// Returns the capabilities of a device that has all operations, one address, and queues of at
    /// most `queue_size` jobs or receives, and that can signal an event handle. No Rdma of the
    /// device receives from a pool.
    pub fn new(max_message_size: u64, queue_size: u32, max_list_len: u32) -> RdmaCaps {
        RdmaCaps {
            max_message_size: max_message_size.min(1 << 31),
            max_send_queue_size: queue_size,
            max_recv_queue_size: queue_size,
            max_send_list_len: max_list_len,
            max_read_list_len: max_list_len,
            max_recv_list_len: max_list_len,
            max_pooled_len: 0,
            atomics: true,
            write_imm: true,
            send_imm: true,
            acknowledged: true,
            gid_table_size: 1,
            transport: false,
            pkey_table_size: 1,
            event_driven: true,
        }
    }

    /// Returns true if the device has this kind of operation.
    #[doc(alias = "doca_rdma_job_get_supported")]
    #[doc(alias = "doca_rdma_cap_task_send_is_supported")]
    #[doc(alias = "doca_rdma_cap_task_receive_is_supported")]
    #[doc(alias = "doca_rdma_cap_task_read_is_supported")]
    #[doc(alias = "doca_rdma_cap_task_write_is_supported")]
    pub fn supports(&self, kind: RdmaKind) -> bool {
        match kind {
            RdmaKind::CompareSwap | RdmaKind::FetchAdd => self.atomics,
            RdmaKind::WriteImm => self.write_imm,
            RdmaKind::SendImm => self.send_imm,
            _ => true,
        }
    }

    /// Returns the maximum number of Bufs in a list of this kind of operation; 0 for operations
    /// without lists.
    #[doc(alias = "doca_rdma_get_max_buf_chain_len")]
    #[doc(alias = "doca_rdma_cap_get_max_send_buf_list_len")]
    #[doc(alias = "doca_rdma_cap_task_receive_get_max_dst_buf_list_len")]
    pub fn max_list_len(&self, kind: RdmaKind) -> u32 {
        match kind {
            RdmaKind::Receive => self.max_recv_list_len,
            RdmaKind::CompareSwap | RdmaKind::FetchAdd => 0,
            RdmaKind::Read => self.max_read_list_len,
            _ => self.max_send_list_len,
        }
    }
}
