//! What the crate trusts a provider's registrar with, and what it checks. `compile_fail` examples
//! in `src/device` show that safe code can make neither a registrar nor its arguments.
#![expect(unsafe_code, reason = "implements a device")]

use std::sync::Arc;
use std::time::Instant;

use tokio_doca::device::RegistrationUse;
use tokio_doca::device::contract::{
    Adapter, ExportRequest, Exported, Imported, Queue, QueueConfig, Region, Registrar, Registration,
};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Device, ErrorKind, Mmap, Result,
    device::DevInfo,
    mem::{Access, RemoteMmap},
};

/// A device that changes the results of imports by the inner device.
struct Twisted {
    inner: Device,
    twist: fn(&mut Imported),
}

// SAFETY: the inner device keeps the adapter duties.
unsafe impl Adapter for Twisted {
    fn info(&self) -> &DevInfo {
        self.inner.info()
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        self.inner.adapter().open_queue(config)
    }
}

// SAFETY: the inner device keeps the registrar duties except for imports, and no test submits a job
// with an import that was changed.
unsafe impl Registrar for Twisted {
    fn register(&self, region: &Region, purpose: RegistrationUse) -> Result<Registration> {
        self.inner.adapter().registrar().register(region, purpose)
    }

    fn export(&self, offer: &ExportRequest) -> Result<Exported> {
        self.inner.adapter().registrar().export(offer)
    }

    fn import(&self, blob: &[u8], deadline: Instant) -> Result<Imported> {
        let mut imported = self.inner.adapter().registrar().import(blob, deadline)?;
        (self.twist)(&mut imported);
        Ok(imported)
    }
}

/// Exports memory of this process from the host's device with `access`, and imports it on the DPU's
/// device. `twist` changes the result.
fn import(access: Access, twist: fn(&mut Imported)) -> Result<RemoteMmap> {
    let host = Soft::builder().build().open("pf0").unwrap();
    let inner = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
    let dpu = Device::from_adapter(Arc::new(Twisted { inner, twist }));
    let access = Access::LOCAL_READ_WRITE | access;
    let builder = Mmap::builder().device(&host).access(access);
    let mmap = builder.alloc(8192).unwrap();
    let blob = mmap.export_dpu(&host).unwrap();
    RemoteMmap::from_export(&dpu, &blob).wait()
}

#[test]
fn an_import_of_own_memory_that_is_not_its_owners_is_refused() {
    let twists: [fn(&mut Imported); 4] = [
        |it| it.addr = it.addr.map_addr(|addr| addr.saturating_add(4096)),
        |it| it.len += 1,
        |it| it.len -= 1,
        |it| it.access = Access::DPU_READ_WRITE,
    ];
    for (number, twist) in twists.into_iter().enumerate() {
        let imported = import(Access::DPU_READ_ONLY, twist);
        let kind = imported.map(|it| it.len()).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Unexpected), "twist {number}");
    }
}

#[test]
fn an_import_of_own_memory_with_less_access_is_taken() {
    let whole = import(Access::DPU_READ_WRITE, |_| {}).unwrap();
    assert!(whole.is_own() && whole.len() == 8192);
    let less = |it: &mut Imported| it.access = Access::empty();
    assert!(import(Access::DPU_READ_WRITE, less).unwrap().is_own());
}
