//! Exports of an Mmap to the DPU and to peers.

use super::mmap::Mmap;
use crate::device::{Audience, Device, DeviceId, Exported};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::ranges::Stage;
use crate::sync::log;

/// One export of an Mmap: by which device, to which audience.
pub(super) struct Export {
    device: DeviceId,
    audience: Audience,
    exported: Exported,
}

impl Mmap {
    /// Exports the memory to the DPU, and returns the blob that
    /// [`RemoteMmap::from_export`](crate::mem::RemoteMmap::from_export) takes there. The blob has
    /// at most 1,024 bytes; the application sends it there by any means.
    ///
    /// A process that has the blob can reach the memory, within the permissions `DPU_READ_ONLY` or
    /// `DPU_READ_WRITE`: keep the blob secret. An Mmap may be exported to the DPU and to peers of
    /// an Rdma, and by several of its devices, at any time, even with jobs running. Repeating an
    /// export returns the same blob. Exports end when the Mmap is stopped or dropped: jobs that
    /// importers begin later fail ([`Reason::ExportRevoked`](crate::error::Reason::ExportRevoked)).
    ///
    /// An export by the software device seals the memfd (fcntl(2)) with `F_SEAL_SHRINK`,
    /// `F_SEAL_GROW` and `F_SEAL_SEAL`. If no peer may write, it adds `F_SEAL_FUTURE_WRITE`: the
    /// kernel then refuses every new writer, including the application. If only the DPU or only the
    /// peers of an Rdma may write, an importer that may only read can still reopen the memfd for
    /// writing (proc(5), `/proc/pid/fd`), provided that it runs as this process's user.
    ///
    /// # Errors
    ///
    /// `BadState` if the Mmap is stopped; `InvalidValue` if it is not registered with the device;
    /// `NotPermitted` if it was built without a permission for the DPU, if the memfd cannot be
    /// sealed or is sealed against writing by now, or if the Mmap is a part of a memfd (an importer
    /// would get the whole memfd); `NotSupported` if the device cannot export to the DPU
    /// ([`Caps::export_dpu`](crate::device::Caps::export_dpu)), for memory in no memfd
    /// ([`Mmap::is_exportable`]), and for huge pages that a peer may write; `Full` if this process
    /// already exports the maximum number of Mmaps, Rdmas and SyncEvents of the software device;
    /// `NoMemory` if the limit of locked memory (`ulimit -l`) keeps an adapter from registering the
    /// memory, and `OperatingSystem` if the system refuses the export otherwise.
    #[doc(alias = "doca_mmap_export_dpu")]
    #[doc(alias = "doca_mmap_export_pci")]
    #[doc(alias = "doca_mmap_export")]
    pub fn export_dpu(&self, device: &Device) -> Result<Vec<u8>> {
        self.export("Mmap::export_dpu", device, Audience::Dpu)
    }

    /// Exports the memory to the peers of an Rdma, as [`Mmap::export_dpu`] does to the DPU. The
    /// permissions are `RDMA_READ`, `RDMA_WRITE` and `RDMA_ATOMIC`. An adapter exports any memory,
    /// and seals none. Once its export has ended, an operation of a peer fails with
    /// [`Reason::RemoteAccess`](crate::error::Reason::RemoteAccess).
    ///
    /// # Errors
    ///
    /// As [`Mmap::export_dpu`]; the capability is
    /// [`Caps::share_rdma`](crate::device::Caps::share_rdma).
    #[doc(alias = "doca_mmap_export_rdma")]
    pub fn export_rdma(&self, device: &Device) -> Result<Vec<u8>> {
        self.export("Mmap::export_rdma", device, Audience::Rdma)
    }

    /// Returns true if the Mmap has been exported, and has not been stopped since.
    #[doc(alias = "doca_mmap_get_exported")]
    pub fn is_exported(&self) -> bool {
        !self.0.exports().is_empty()
    }

    fn export(&self, op: &'static str, device: &Device, audience: Audience) -> Result<Vec<u8>> {
        let refuse = |kind, text: String| Err(Error::new(kind, op, text));
        let access = self.access();
        if audience.part_of(access).is_empty() {
            let text = format!(
                "the Mmap was built with {access:?}, which gives {audience} peers no permission: add one to \
                 MmapBuilder::access"
            );
            return refuse(ErrorKind::NotPermitted, text);
        }
        // The guard is held throughout, so that a thread which stops the Mmap takes all exports
        // that were made, and none is added afterwards.
        let mut exports = self.0.exports();
        if self.0.ranges().stage() != Stage::Started {
            let text = "the Mmap is stopped: Mmap::start hands it to devices again";
            return refuse(ErrorKind::BadState, text.to_owned());
        }
        if !self.devices().contains(device) {
            let name = device.info().name();
            let text = format!(
                "device {name} does not hold the Mmap: name it in Mmap::builder().device()"
            );
            return refuse(ErrorKind::InvalidValue, text);
        }
        let known = |export: &&Export| export.device == device.id() && export.audience == audience;
        if let Some(export) = exports.iter().find(known) {
            return Ok(export.exported.blob().to_vec());
        }
        let exported = device
            .adapter()
            .registrar()
            .export(&self.0.offer(audience))
            .map_err(|error| error.with_call(op))?;
        let blob = exported.blob().to_vec();
        exports.push(Export {
            device: device.id(),
            audience,
            exported,
        });
        // Unlocked before the log is written, since a subscriber to it is code of the application.
        drop(exports);
        let (device, bytes) = (device.info().name(), self.0.region().len());
        log(|| tracing::debug!(target: "tokio_doca::mem", device, %audience, bytes, "exported"));
        Ok(blob)
    }
}
