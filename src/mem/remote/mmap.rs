//! Memory that was imported from an exporter.
//!
//! No lease of this process protects memory that another process may touch at any time. So a
//! [`RemoteBuf`](super::RemoteBuf) of such memory takes none: it keeps the import, and the device
//! checks before each job that the memory is still exported.
//!
//! If the exporter is this process, the memory is the same Mmap, and a range of it takes leases
//! like a Buf. The exception is a range that a pool or an array has and that peers may write: there
//! is nothing that a lease would protect, and none is taken (ADR 0022).
#![expect(unsafe_code, reason = "names the memory of an import")]

use std::fmt;
use std::sync::Arc;

use super::import::Import;
use super::own::Own;
use crate::device::{Access, Audience, Device, ImportOrigin, Imported, Segment};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::mem::mmap::{Mmap, MmapInner};

/// Memory that another process has exported, as a device of this process reaches it (DOCA Core
/// guide 3.3.2). Clones are the same import.
///
/// The memory is given back once all clones, RemoteBufs and jobs on it have gone. If the exporter
/// stops or drops its Mmap, or exits, jobs in flight on the software device still complete. Later
/// jobs fail with [`Reason::ExportRevoked`](crate::error::Reason::ExportRevoked) or
/// [`Reason::ExporterGone`](crate::error::Reason::ExporterGone). On an adapter, an operation that
/// finds the memory no longer exported fails with
/// [`Reason::RemoteAccess`](crate::error::Reason::RemoteAccess), and ends the connection.
///
/// The exporter and other importers may change the memory at any time. So only jobs reach it, and
/// the bytes that a job copies meanwhile may be torn.
///
/// # Trust
///
/// An exporter can delay the importer. On the software device, any process that may write the
/// memory can punch holes into it (fallocate(2)). A thread of the importer that touches the memory
/// meanwhile waits: for up to 1.5 s while a hole of 4 GiB is punched. By default a copy of at most
/// 256 KiB touches the memory in the task that awaits it. To copy from an exporter that is not
/// trusted, import through a provider built with
/// [`SoftBuilder::inline_limit(0)`](crate::soft::SoftBuilder::inline_limit): an engine, a thread of
/// the device, touches the memory then, and only the copies of that provider's devices wait. Remote
/// operations of an [`Rdma`](crate::Rdma), and a sync event whose counter lies in its owner's
/// memory, always touch the memory in the task. The pages that a touch fills are charged to the
/// process that touches.
///
/// On the software device, an exporter that replaces its program (execve(2)) has ended.
///
/// ```
/// use std::time::Duration;
/// use tokio_doca::soft::{Soft, View};
/// use tokio_doca::{mem::{Access, BufInventory, RemoteMmap}, Dma, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_doca::Error> {
/// // Usually a process on the host ...
/// let host = Soft::builder().build().open("pf0")?;
/// let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
/// let exported = Mmap::builder().device(&host).access(access).alloc(4096)?;
/// let blob = exported.export_dpu(&host)?;
///
/// // ... and one on the DPU, which got the blob over a socket.
/// let dpu = Soft::builder().view(View::Dpu).build().open("p0")?;
/// let remote = RemoteMmap::from_export(&dpu, &blob).timeout(Duration::from_secs(1)).await?;
/// let mmap = Mmap::builder().device(&dpu).alloc(4096)?;
/// let src = BufInventory::with_capacity(1).buf(&mmap, ..)?;
/// src.extend_from_slice(b"hello host")?;
/// let dma = Dma::builder(&dpu).attach(&WorkQ::builder().build()?)?;
/// assert_eq!(dma.copy(&src, &remote.buf(..)?).await?, 10);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "doca_mmap_create_from_export")]
#[doc(alias = "doca_mmap_get_from_export")]
pub struct RemoteMmap(pub(super) Arc<RemoteMmapInner>);

pub(super) struct RemoteMmapInner {
    pub(super) device: Device,
    /// The whole memory, as the device addresses it.
    pub(super) whole: Segment,
    pub(super) access: Access,
    pub(super) audience: Audience,
    /// If this process exported the memory: its Mmap, and descriptors for ranges of it.
    pub(super) own: Option<Box<Own>>,
    /// True if a job need not keep the import.
    pub(super) lasting: bool,
    origin: Arc<dyn ImportOrigin>,
}

impl RemoteMmap {
    /// Imports memory that was exported, by the blob that [`Mmap::export_dpu`] or
    /// [`Mmap::export_rdma`] returned.
    ///
    /// Nothing begins before the first poll, and no runtime is needed. The time limit defaults to 5
    /// s ([`Import::timeout`]).
    ///
    /// The DPU's device of a port (`p0`) imports what the host's devices of that port (`pf0`,
    /// `pf0vf0`, ..) export to the DPU. Any device imports what a device of the same provider
    /// exports to the peers of an Rdma. A blob of this process's own Mmap yields that Mmap, with
    /// its leases.
    ///
    /// # Errors
    ///
    /// - `InvalidValue` if the bytes are no blob, or were cut off or changed; and for a blob of
    ///   another kind of object, with a message that names the call that takes such a blob.
    /// - `UnsupportedVersion` for a blob in a newer format than this version of the crate reads.
    /// - `NotSupported` if this device cannot import the memory, if the blob is from another host,
    ///   or if it is from another network namespace and the exporter does not listen at a path
    ///   ([`soft::set_socket_path`](crate::soft::set_socket_path)).
    /// - `NotPermitted` if the exporter knows no such export: it was revoked, or the blob is
    ///   forged.
    /// - `ConnectionReset` if the exporter has gone.
    /// - `TimedOut` if the exporter does not answer in time, or the memory is not mapped in time.
    /// - `NoMemory` if the memory cannot be mapped; `OperatingSystem` if no thread can be started.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time: an import in progress ends by itself, within the time
    /// limit.
    pub fn from_export(device: &Device, blob: &[u8]) -> Import {
        Import::new(device, blob)
    }

    pub(super) fn new(device: &Device, imported: Imported) -> Result<RemoteMmap> {
        let refuse = |text| Err(Error::new(ErrorKind::Unexpected, Import::OP, text));
        let Imported { addr, len, key, .. } = imported;
        if addr.addr().get().checked_add(len).is_none() {
            return refuse("the device hands back memory that ends behind all addresses");
        }
        let own = match imported.owner.map(|owner| owner.downcast::<MmapInner>()) {
            None => None,
            Some(Ok(inner)) => Some(Mmap(inner)),
            Some(Err(_)) => return refuse("the device hands back an owner that is no Mmap"),
        };
        // Leases on the owner protect the owner's bytes, so the import must be of these.
        if let Some(Mmap(inner)) = &own {
            let (region, permitted) = (inner.region(), imported.audience.part_of(inner.access()));
            if (addr, len) != (region.addr(), region.len()) || !permitted.contains(imported.access)
            {
                return refuse("the device hands back memory that is not its owner's");
            }
        }
        Ok(RemoteMmap(Arc::new(RemoteMmapInner {
            device: device.clone(),
            // SAFETY: the device reaches these bytes by the key until the origin is dropped
            // (registrar duty 4). A RemoteBuf keeps the origin by its RemoteMmap, and so does a job
            // on imported memory, unless the device does without; a job on own memory keeps it by
            // the slab of its lease (`Base::Import`). If the bytes are the owner's, its leases say
            // which holder uses them; otherwise no other code in this process does.
            whole: unsafe { Segment::new(addr, len, key) },
            access: imported.access,
            audience: imported.audience,
            lasting: imported.lasting && own.is_none(),
            own: own.map(|mmap| Box::new(Own::new(mmap, &imported.origin))),
            origin: imported.origin,
        })))
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    #[doc(alias = "doca_mmap_get_memrange")]
    pub fn len(&self) -> usize {
        self.0.whole.len()
    }

    /// Returns the access that the exporter's Mmap grants to the audience of this export.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Returns the audience that the memory was exported for.
    pub fn audience(&self) -> Audience {
        self.0.audience
    }

    /// Returns the device that imported the memory.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the whole memory as a segment, which the contract suite gives to a device.
    ///
    /// # Safety
    ///
    /// No Lease is taken. A caller that hands a part of it to a device keeps this import until the
    /// device is done, and nothing else uses these bytes meanwhile.
    #[doc(hidden)]
    pub unsafe fn whole(&self) -> Segment {
        self.0.whole
    }

    /// Returns true if this process exported the memory itself.
    pub fn is_own(&self) -> bool {
        self.0.own.is_some()
    }

    /// Checks whether the memory is still exported. An adapter cannot know this of memory of
    /// another process: there the call succeeds even if the export has ended, and the next
    /// operation on the memory fails.
    ///
    /// # Errors
    ///
    /// `ConnectionReset` if the exporter stopped or dropped its Mmap, or has ended.
    pub fn check(&self) -> Result<(), JobError> {
        self.0.origin.check()
    }
}

impl fmt::Debug for RemoteMmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMmap")
            .field("len", &self.len())
            .field("audience", &self.audience())
            .field("access", &self.access())
            .finish()
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
pub(super) mod tests {
    use super::*;
    use crate::device::RegistrationUse;
    use crate::mem::buf::Span;
    use crate::mem::mmap::Holder;
    use crate::mem::pool::BufInventory;

    use std::ptr::NonNull;

    /// The origin of memory that stays exported.
    pub(in crate::mem::remote) struct Always;

    impl ImportOrigin for Always {
        fn check(&self) -> Result<(), JobError> {
            Ok(())
        }
    }

    /// Returns an import of another process's memory, at address `addr` of the device.
    fn imported(device: &Device, addr: usize, len: usize) -> Result<RemoteMmap> {
        let addr = NonNull::new(std::ptr::without_provenance_mut(addr)).expect("no null address");
        let access = Access::DPU_READ_WRITE;
        let imported = Imported::new(addr, len, access, Audience::Dpu, 0, Arc::new(Always));
        RemoteMmap::new(device, imported)
    }

    /// On an adapter the address of imported memory is the exporter's, and may be one of this
    /// process as well.
    #[test]
    fn memory_of_others_shares_no_bytes_with_what_has_its_addresses_here() {
        let device = Device::open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(4096).unwrap();
        let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
        let addr = mmap.0.region().addr().addr().get();
        let [one, other] =
            [(); 2].map(|()| imported(&device, addr, 4096).unwrap().buf(..).unwrap());
        let share = |one: Span, other: Span| Span::any_shared(one.as_list(), other.as_list());
        assert!(!share(buf.span(), one.span()) && !share(one.span(), buf.span()));
        assert!(!share(one.span(), other.span()), "of two imports");
        let [front, back] = [0..2048, 2047..4096].map(|range| one.slice(range).unwrap().span());
        assert!(share(front, back), "of one import");
    }

    #[test]
    fn an_address_is_the_devices_and_not_believed() {
        let device = Device::open("pf0").unwrap();
        let imported = |addr, len| imported(&device, addr, len);
        // This process has no memory at these addresses.
        let there = imported(usize::MAX - 4096, 4096).unwrap();
        let end = there.buf(4095..).unwrap();
        let holder = Holder::new(device.id(), RegistrationUse::Dma);
        let segment = end.readable(holder).unwrap();
        let addr = segment.addr().addr().get();
        assert_eq!((addr, segment.len()), (usize::MAX - 1, 1));
        for len in [4097, usize::MAX] {
            let error = imported(usize::MAX - 4096, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unexpected);
        }
    }
}
