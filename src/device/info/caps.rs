//! The capabilities of a device: plain data, which the crate checks when an object is built, and
//! before a job takes leases.
//!
//! Each kind of context has its own capabilities, `None` where the device has no such kind.

use super::accel::AccelCaps;
use super::algorithm::Algorithm;
use super::crc::CrcCaps;
use super::dma::DmaCaps;
use super::rdma::{RdmaCaps, RdmaKind};
use super::rep_info::RepCaps;
use super::sha::ShaCaps;
use super::sync_event::{SyncEventCaps, SyncEventKind};

/// The capabilities of a device.
///
/// A provider begins with [`Caps::for_dma`] or the default, and sets the fields of what its device
/// supports:
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
    #[doc(alias = "doca_dma_cap_task_memcpy_is_supported")]
    pub dma: Option<DmaCaps>,
    /// Jobs of the provider's own kinds, and their limits; `None` if the device has none.
    pub accel: Option<AccelCaps>,
    /// Hashes, and their limits; `None` if the device computes none.
    #[doc(alias = "doca_sha_job_get_supported")]
    pub sha: Option<ShaCaps>,
    /// CRCs, and their limits; `None` if the device computes none.
    pub crc: Option<CrcCaps>,
    /// Remote operations, and their limits; `None` if the device has none.
    #[doc(alias = "doca_rdma_job_get_supported")]
    pub rdma: Option<RdmaCaps>,
    /// Sync events, and their limits; `None` if the device has none.
    #[doc(alias = "doca_sync_event_job_get_supported")]
    pub sync_event: Option<SyncEventCaps>,
    /// True if memory that is registered with the device can be exported to the DPU
    /// ([`Mmap::export_dpu`](crate::Mmap::export_dpu)).
    #[doc(alias = "doca_devinfo_get_is_mmap_export_dpu_supported")]
    #[doc(alias = "doca_mmap_cap_is_export_pci_supported")]
    pub export_dpu: bool,
    /// True if the device imports memory that was exported to the DPU.
    #[doc(alias = "doca_devinfo_get_is_mmap_from_export_dpu_supported")]
    #[doc(alias = "doca_mmap_cap_is_create_from_export_pci_supported")]
    pub import_dpu: bool,
    /// True if the device exports memory to peers of an Rdma, and imports memory that peers export
    /// ([`Mmap::export_rdma`](crate::Mmap::export_rdma)).
    pub share_rdma: bool,
    /// The lists of representors (the DPU's proxies of the host's functions) that the device has
    /// ([`Device::representors`](crate::Device::representors)).
    pub representors: RepCaps,
    /// True if the device is a function from which a [`Channel`](crate::channel::Channel) can
    /// connect to a service on the function's representor
    /// ([`ChannelBuilder::connect`](crate::channel::ChannelBuilder::connect)). Any device can
    /// connect by TCP.
    pub channel: bool,
    /// True if the device plugs and unplugs emulated functions of the host.
    #[doc(alias = "doca_devinfo_get_is_hotplug_manager_supported")]
    #[doc(alias = "doca_devinfo_cap_is_hotplug_manager_supported")]
    pub hotplug_manager: bool,
    /// The maximum depth of a queue. Attaching a context to a deeper WorkQ fails with
    /// `InvalidValue`.
    pub max_depth: u32,
    /// The number of completion vectors: interrupts, one of which a WorkQ uses
    /// ([`completion_vector`](crate::workq::WorkQBuilder::completion_vector)). With 0 or 1 there is
    /// nothing to choose.
    pub completion_vectors: u32,
}

impl Caps {
    /// Returns the capabilities of a device that only copies, and whose copies can signal an event
    /// handle.
    pub fn for_dma(max_buf_size: u64, max_list_len: u32, max_depth: u32) -> Caps {
        Caps {
            dma: Some(DmaCaps {
                max_buf_size,
                max_list_len,
                event_driven: true,
            }),
            max_depth,
            completion_vectors: 1,
            ..Caps::default()
        }
    }

    /// Adds hashes and CRCs, which the CPU computes for any provider
    /// ([`CpuJob`](crate::device::CpuJob)), of at most `max_len` bytes and lists of at most
    /// `max_list_len` Bufs.
    pub(crate) fn with_cpu_jobs(mut self, max_len: u64, max_list_len: u32) -> Caps {
        self.sha = Some(ShaCaps::on_cpu(max_len, max_list_len));
        self.crc = Some(CrcCaps::new(max_len, max_list_len));
        self
    }
}

/// A kind of job, for [`Caps::supports`].
///
/// ```
/// use tokio_doca::Device;
/// use tokio_doca::device::{JobKind, RdmaKind};
///
/// let needed = [JobKind::Copy, JobKind::Rdma(RdmaKind::FetchAdd)];
/// let infos = Device::list()?;
/// let mut able = infos.iter().filter(|info| needed.iter().all(|&it| info.caps().supports(it)));
/// let info = able.next().expect("the software device does both");
/// println!("{} copies, and has atomics", info.name());
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobKind {
    /// A copy, by a [`Dma`](crate::Dma).
    #[doc(alias = "DOCA_DMA_JOB_MEMCPY")]
    Copy,
    /// A hash of one message, by a [`Sha`](crate::sha::Sha).
    Sha(Algorithm),
    /// A part of a message that is hashed by a [`ShaSession`](crate::sha::ShaSession).
    ShaPart(Algorithm),
    /// A CRC-32C, alone or together with a copy, by a [`Crc`](crate::crc::Crc).
    Crc,
    /// A remote operation, by an [`Rdma`](crate::Rdma).
    Rdma(RdmaKind),
    /// A job of a [`SyncEvent`](crate::sync_event::SyncEvent).
    SyncEvent(SyncEventKind),
    /// A job of a provider's own kind, with this opcode, by an [`Accel`](crate::accel::Accel).
    Accel(u32),
}

impl Caps {
    /// Returns true if the device does jobs of this kind. The field of [`Caps`] for these jobs has
    /// their limits.
    #[doc(alias = "doca_dma_job_get_supported")]
    #[doc(alias = "doca_sha_job_get_supported")]
    #[doc(alias = "doca_rdma_job_get_supported")]
    #[doc(alias = "doca_sync_event_job_get_supported")]
    pub fn supports(&self, kind: JobKind) -> bool {
        let (sha, rdma, accel) = (self.sha.as_ref(), self.rdma.as_ref(), self.accel.as_ref());
        match kind {
            JobKind::Copy => self.dma.is_some(),
            JobKind::Sha(algorithm) => sha.is_some_and(|sha| sha.supports(algorithm)),
            JobKind::ShaPart(algorithm) => {
                sha.is_some_and(|sha| sha.sessions && sha.supports(algorithm))
            }
            JobKind::Crc => self.crc.is_some(),
            JobKind::Rdma(kind) => rdma.is_some_and(|rdma| rdma.supports(kind)),
            JobKind::SyncEvent(kind) => {
                let sync_event = self.sync_event.as_ref();
                sync_event.is_some_and(|sync_event| sync_event.supports(kind))
            }
            JobKind::Accel(opcode) => accel.is_some_and(|accel| accel.supports(opcode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_answers_for_its_own() {
        let all = [
            JobKind::Copy,
            JobKind::Sha(Algorithm::Sha256),
            JobKind::ShaPart(Algorithm::Sha256),
            JobKind::Rdma(RdmaKind::Send),
            JobKind::Rdma(RdmaKind::FetchAdd),
            JobKind::Accel(7),
            JobKind::SyncEvent(SyncEventKind::Add),
            JobKind::SyncEvent(SyncEventKind::WaitGt),
            JobKind::Crc,
        ];
        let of = |caps: &Caps| all.map(|kind| caps.supports(kind));
        assert_eq!(of(&Caps::default()), [false; 9]);
        let mut caps = Caps::for_dma(1, 1, 1);
        assert_eq!(
            of(&caps),
            [true, false, false, false, false, false, false, false, false]
        );
        caps.sha = Some(ShaCaps::on_cpu(1, 1));
        caps.crc = Some(CrcCaps::new(1, 1));
        caps.rdma = Some(RdmaCaps::new(1, 1, 1));
        caps.accel = Some(AccelCaps::new([7], 1, 1));
        caps.sync_event = Some(SyncEventCaps::new(1));
        assert_eq!(of(&caps), [true; 9]);
        if let Some(sha) = &mut caps.sha {
            sha.sessions = false;
        }
        if let Some(rdma) = &mut caps.rdma {
            rdma.atomics = false;
        }
        if let Some(sync_event) = &mut caps.sync_event {
            sync_event.max_wait = None;
        }
        assert_eq!(
            of(&caps),
            [true, true, false, true, false, true, true, false, true]
        );
    }
}
