//! What a device can do: data, checked when a thing is built and before anything is leased.
//!
//! Each kind of context has its own capabilities, `None` where the device has no such kind.

use super::algorithm::Algorithm;
use super::rep_info::RepKind;

/// The capabilities of a device.
///
/// A provider begins with [`Caps::for_dma`], or with the default, and sets what it has:
///
/// ```
/// use tokio_doca::device::{AccelCaps, Caps};
///
/// let mut caps = Caps::default();
/// caps.accel = Some(AccelCaps::new([0x10, 0x11], 1 << 20, 8));
/// caps.max_depth = 64;
/// assert!(caps.dma.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Copies, and their limits; `None` if the device copies nothing.
    #[doc(alias = "doca_dma_job_get_supported")]
    pub dma: Option<DmaCaps>,
    /// Jobs of kinds of the provider's own, and their limits; `None` if it has none.
    pub accel: Option<AccelCaps>,
    /// Hashes, and their limits; `None` if it computes none.
    #[doc(alias = "doca_sha_job_get_supported")]
    pub sha: Option<ShaCaps>,
    /// Remote operations, and their limits; `None` if the device has none.
    #[doc(alias = "doca_rdma_job_get_supported")]
    pub rdma: Option<RdmaCaps>,
    /// Sync events, and their limits; `None` if the device has none.
    #[doc(alias = "doca_sync_event_job_get_supported")]
    pub sync_event: Option<SyncEventCaps>,
    /// Whether memory that it holds can be exported to the DPU ([`Mmap::export_dpu`](crate::Mmap::export_dpu)).
    #[doc(alias = "doca_devinfo_get_is_mmap_export_dpu_supported")]
    pub export_dpu: bool,
    /// Whether it imports what was exported to the DPU.
    #[doc(alias = "doca_devinfo_get_is_mmap_from_export_dpu_supported")]
    pub import_dpu: bool,
    /// Whether it exports memory to peers of an Rdma, and imports theirs ([`Mmap::export_rdma`](crate::Mmap::export_rdma)).
    pub share_rdma: bool,
    /// Which lists of representors it has ([`Device::representors`](crate::Device::representors)).
    pub representors: RepCaps,
    /// Whether it is a function that a [`Channel`](crate::channel::Channel) connects to a service on its representor
    /// ([`ChannelBuilder::connect`](crate::channel::ChannelBuilder::connect)). By TCP any device does.
    pub channel: bool,
    /// Whether it plugs and unplugs emulated functions of the host.
    #[doc(alias = "doca_devinfo_get_is_hotplug_manager_supported")]
    pub hotplug_manager: bool,
    /// The most Jobs that one queue takes; a WorkQ deeper than that is refused when it is attached.
    pub max_depth: u32,
}

/// Which representors are listed (`doca_dev_rep_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "doca_dev_rep_filter")]
pub enum RepFilter {
    /// All of them.
    #[default]
    All,
    /// Those of network functions.
    Net,
    /// Those of emulated functions.
    Emulated,
}

impl RepFilter {
    pub(in crate::device) fn takes(self, kind: RepKind) -> bool {
        match self {
            RepFilter::All => true,
            RepFilter::Net => kind == RepKind::Net,
            RepFilter::Emulated => kind == RepKind::Emulated,
        }
    }
}

/// Which lists of representors a device has; none, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepCaps {
    /// Of all of them.
    #[doc(alias = "doca_devinfo_rep_get_is_list_all_supported")]
    pub all: bool,
    /// Of those of network functions.
    #[doc(alias = "doca_devinfo_rep_get_is_list_net_supported")]
    pub net: bool,
    /// Of those of emulated functions.
    #[doc(alias = "doca_devinfo_rep_get_is_list_emulated_supported")]
    pub emulated: bool,
}

impl RepCaps {
    /// All three lists.
    pub const ALL: RepCaps = RepCaps {
        all: true,
        net: true,
        emulated: true,
    };

    /// Whether there is a list by this filter.
    pub fn supports(&self, filter: RepFilter) -> bool {
        match filter {
            RepFilter::All => self.all,
            RepFilter::Net => self.net,
            RepFilter::Emulated => self.emulated,
        }
    }
}

/// The limits of copies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaCaps {
    /// The most bytes in one Job; more is `InvalidValue` ([`Reason::TooLarge`](crate::error::Reason::TooLarge)).
    #[doc(alias = "doca_dma_get_max_buf_size")]
    pub max_buf_size: u64,
    /// The longest list of Bufs on either side, 1 if there are no lists; a longer one is `InvalidValue`
    /// ([`Reason::ListTooLong`](crate::error::Reason::ListTooLong)). Bufs that hold nothing, or have no room, do not count.
    #[doc(alias = "doca_dma_get_max_list_buf_num_elem")]
    pub max_list_len: u32,
    /// Whether copies can ring an event handle; if not, an event-driven WorkQ refuses the context (`NotSupported`, Core
    /// guide 3.4.5).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

/// The kinds of Jobs of an accelerator, and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccelCaps {
    /// What it knows. The numbers are the provider's own: the same number may mean something else on another device.
    pub opcodes: Vec<u32>,
    /// The most bytes that one Job reads, or has room to write if it reads nothing; more is `InvalidValue`.
    pub max_buf_size: u64,
    /// The longest list of Bufs on either side, 1 if there are no lists; a longer one is `InvalidValue`.
    pub max_list_len: u32,
    /// Whether these Jobs can ring an event handle; if not, an event-driven WorkQ refuses the context (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

/// The hashes that a device computes, and their limits.
///
/// What follows from the algorithm alone, it says itself: [`Algorithm::digest_len`], the least room of a destination, and
/// [`Algorithm::block_len`], the multiple that the parts of a session have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShaCaps {
    /// What it computes.
    #[doc(alias = "doca_sha_job_get_supported")]
    pub algorithms: Vec<Algorithm>,
    /// Whether a message can be hashed in several Jobs, by a session.
    pub sessions: bool,
    /// Whether it is hardware that computes, and not the CPU.
    #[doc(alias = "doca_sha_get_hardware_supported")]
    pub hardware: bool,
    /// The most bytes in one Job; more is `InvalidValue` ([`Reason::TooLarge`](crate::error::Reason::TooLarge)).
    #[doc(alias = "doca_sha_get_max_src_buffer_size")]
    pub max_src_len: u64,
    /// The longest list of Bufs as a source, 1 if there are no lists; a longer one is `InvalidValue`
    /// ([`Reason::ListTooLong`](crate::error::Reason::ListTooLong)). A destination is one Buf.
    #[doc(alias = "doca_sha_get_max_list_buf_num_elem")]
    pub max_list_len: u32,
    /// Whether these Jobs can ring an event handle; if not, an event-driven WorkQ refuses the context (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

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
    /// All eight.
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

/// The remote operations of a device, and their limits. The transport is a reliable connection (RC), the only one of the guide.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaCaps {
    /// The most bytes in one message, read or write, and 2 GiB at most; more is `InvalidValue`.
    #[doc(alias = "doca_rdma_get_max_message_size")]
    pub max_message_size: u64,
    /// The largest [`send_queue_size`](crate::rdma::RdmaBuilder::send_queue_size).
    #[doc(alias = "doca_rdma_get_max_send_queue_size")]
    pub max_send_queue_size: u32,
    /// The largest [`recv_queue_size`](crate::rdma::RdmaBuilder::recv_queue_size).
    #[doc(alias = "doca_rdma_get_max_recv_queue_size")]
    pub max_recv_queue_size: u32,
    /// The longest list of Bufs that is sent, written or read into, 1 if there are no lists.
    pub max_send_list_len: u32,
    /// The longest list of Bufs of a receive, 1 if there are no lists.
    pub max_recv_list_len: u32,
    /// Whether it has compare-and-swap and fetch-and-add.
    pub atomics: bool,
    /// Whether it has writes with an immediate.
    pub write_imm: bool,
    /// How many addresses its port has.
    #[doc(alias = "doca_rdma_get_gid_table_size")]
    pub gid_table_size: u32,
    /// Whether these Jobs can ring an event handle; if not, an event-driven WorkQ refuses the context (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl RdmaCaps {
    /// Capabilities of a device that has all operations, queues of at most `queue_size`, one address, and which signals.
    pub fn new(max_message_size: u64, queue_size: u32, max_list_len: u32) -> RdmaCaps {
        RdmaCaps {
            max_message_size: max_message_size.min(1 << 31),
            max_send_queue_size: queue_size,
            max_recv_queue_size: queue_size,
            max_send_list_len: max_list_len,
            max_recv_list_len: max_list_len,
            atomics: true,
            write_imm: true,
            gid_table_size: 1,
            event_driven: true,
        }
    }

    /// Whether it has this kind of operation.
    #[doc(alias = "doca_rdma_job_get_supported")]
    pub fn supports(&self, kind: RdmaKind) -> bool {
        match kind {
            RdmaKind::CompareSwap | RdmaKind::FetchAdd => self.atomics,
            RdmaKind::WriteImm => self.write_imm,
            _ => true,
        }
    }

    /// The longest list of Bufs that this kind of operation takes; 0 if it takes none.
    #[doc(alias = "doca_rdma_get_max_buf_chain_len")]
    pub fn max_list_len(&self, kind: RdmaKind) -> u32 {
        match kind {
            RdmaKind::Receive => self.max_recv_list_len,
            RdmaKind::CompareSwap | RdmaKind::FetchAdd => 0,
            _ => self.max_send_list_len,
        }
    }
}

/// The kinds of jobs of a [`SyncEvent`](crate::sync_event::SyncEvent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "doca_sync_event_job_types")]
#[allow(missing_docs)] // the names are the guide's
pub enum SyncEventKind {
    Get,
    Set,
    Add,
    WaitGt,
}

/// The sync events of a device, and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncEventCaps {
    /// Whether they can be exported to the DPU ([`SyncEvent::export_dpu`](crate::sync_event::SyncEvent::export_dpu)).
    #[doc(alias = "doca_sync_event_get_export_to_dpu_supported")]
    pub export_dpu: bool,
    /// Whether it imports what was exported to the DPU.
    #[doc(alias = "doca_sync_event_get_create_from_export_supported")]
    pub import_dpu: bool,
    /// The largest threshold of a wait, and the largest value of an event that a wait may find. A
    /// higher threshold is refused with `InvalidValue`
    /// ([`Reason::WaitTooHigh`](crate::error::Reason::WaitTooHigh)); a wait that finds a higher value,
    /// when it begins or later, fails with `InvalidValue`
    /// ([`Reason::EventTooHigh`](crate::error::Reason::EventTooHigh)). A wait for more than `max_wait` is
    /// taken, but no value can end it with success.
    ///
    /// The limit concerns waits on a WorkQ only: jobs that get, set and add take any value, and so
    /// do the waits of a [`BlockingSyncEvent`](crate::sync_event::BlockingSyncEvent).
    ///
    /// `None` if the device cannot wait. The crate then submits jobs that get the value until it is
    /// greater than the threshold, and neither has a limit.
    pub max_wait: Option<u64>,
    /// Whether the mask of a wait must be 0, or 1, 2, 4 or 8 whole bytes beside one another; another one is `InvalidValue` then.
    pub whole_byte_masks: bool,
    /// The most waits at once of one event on a WorkQ.
    pub max_waits: u32,
    /// Whether jobs and waits can ring an event handle; if not, an event-driven WorkQ refuses the context (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl SyncEventCaps {
    /// Capabilities of a device that waits for any value, exports and imports nothing, and signals.
    pub fn new(max_waits: u32) -> SyncEventCaps {
        SyncEventCaps {
            export_dpu: false,
            import_dpu: false,
            max_wait: Some(u64::MAX),
            whole_byte_masks: false,
            max_waits,
            event_driven: true,
        }
    }

    /// Whether it has this kind of job.
    #[doc(alias = "doca_sync_event_job_get_supported")]
    pub fn supports(&self, kind: SyncEventKind) -> bool {
        kind != SyncEventKind::WaitGt || self.max_wait.is_some()
    }
}

impl ShaCaps {
    /// Capabilities of a device whose CPU computes all algorithms, by sessions too, and which signals.
    pub fn on_cpu(max_src_len: u64, max_list_len: u32) -> ShaCaps {
        ShaCaps {
            algorithms: Algorithm::ALL.into(),
            sessions: true,
            hardware: false,
            max_src_len,
            max_list_len,
            event_driven: true,
        }
    }

    /// Whether it computes this hash.
    pub fn supports(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }
}

impl Caps {
    /// Capabilities of a device that copies and signals.
    pub fn for_dma(max_buf_size: u64, max_list_len: u32, max_depth: u32) -> Caps {
        Caps {
            dma: Some(DmaCaps {
                max_buf_size,
                max_list_len,
                event_driven: true,
            }),
            max_depth,
            ..Caps::default()
        }
    }
}

impl AccelCaps {
    /// Capabilities of an accelerator that signals.
    pub fn new(opcodes: impl Into<Vec<u32>>, max_buf_size: u64, max_list_len: u32) -> AccelCaps {
        AccelCaps {
            opcodes: opcodes.into(),
            max_buf_size,
            max_list_len,
            event_driven: true,
        }
    }

    /// Whether it knows an opcode.
    pub fn supports(&self, opcode: u32) -> bool {
        self.opcodes.contains(&opcode)
    }
}
