//! What an Mmap was exported as.

use super::mmap::Mmap;
use crate::device::{Audience, Device, DeviceId, Exported};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::ranges::Stage;
use crate::sync::log;

/// One export.
pub(super) struct Export {
    device: DeviceId,
    audience: Audience,
    exported: Exported,
}

impl Mmap {
    /// Exports the memory to the DPU; answers the blob that
    /// [`RemoteMmap::from_export`](crate::mem::RemoteMmap::from_export) takes there. It is at most
    /// 1,024 bytes, and goes there by whatever way the application has.
    ///
    /// A process that has the blob reaches the memory, within the permissions `DPU_READ_ONLY` or
    /// `DPU_READ_WRITE`: it is a secret. An Mmap may be exported to both audiences and by several
    /// of its devices, at any time, with jobs running; the same export again is the same blob. Its
    /// exports die with it, and when it is stopped: what importers begin later fails
    /// ([`Reason::ExportRevoked`](crate::error::Reason::ExportRevoked)).
    ///
    /// A memfd is sealed when it is exported (fcntl(2)): `F_SEAL_SHRINK`, `F_SEAL_GROW` and
    /// `F_SEAL_SEAL`, and where no peer has a permission to write `F_SEAL_FUTURE_WRITE` too, so
    /// that the kernel refuses every new writer, the application as well. With a permission to
    /// write for one audience, what the other may only read is protected from other users alone: a
    /// process of the same user can open the memfd anew (proc(5), `/proc/pid/fd`).
    ///
    /// # Errors
    ///
    /// `BadState` if it is stopped; `InvalidValue` if the device does not hold it; `NotPermitted`
    /// if it was built without a permission for the DPU, if the memfd cannot be sealed or is sealed
    /// against writing by now, or if the Mmap is a part of a memfd (an importer gets it as a
    /// whole); `NotSupported` if the device exports nothing to the DPU
    /// ([`Caps::export_dpu`](crate::device::Caps::export_dpu)), for memory in no memfd
    /// ([`Mmap::is_exportable`]), and for huge pages that a peer may write; `Full` or `NoMemory` if
    /// no further export can be made.
    #[doc(alias = "doca_mmap_export_dpu")]
    #[doc(alias = "doca_mmap_export_pci")]
    #[doc(alias = "doca_mmap_export")]
    pub fn export_dpu(&self, device: &Device) -> Result<Vec<u8>> {
        self.export("Mmap::export_dpu", device, Audience::Dpu)
    }

    /// Exports the memory to peers of an Rdma: as [`Mmap::export_dpu`], with the permissions
    /// `RDMA_READ`, `RDMA_WRITE` and `RDMA_ATOMIC`.
    ///
    /// # Errors
    ///
    /// As [`Mmap::export_dpu`]; the capability is
    /// [`Caps::share_rdma`](crate::device::Caps::share_rdma).
    #[doc(alias = "doca_mmap_export_rdma")]
    pub fn export_rdma(&self, device: &Device) -> Result<Vec<u8>> {
        self.export("Mmap::export_rdma", device, Audience::Rdma)
    }

    /// Returns true if it was exported, and not stopped since.
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
        // The guard is held all the while: a caller that stops the Mmap takes what was exported by
        // then, and finds no more later.
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
        // First: a subscriber is code of the application's.
        drop(exports);
        let (device, bytes) = (device.info().name(), self.0.region().len());
        log(|| tracing::debug!(target: "tokio_doca::mem", device, %audience, bytes, "exported"));
        Ok(blob)
    }
}
