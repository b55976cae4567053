//! The provider, its device, and what they share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_doca::device::{
    Adapter, Caps, DevInfo, Device, PciAddr, PciFunction, Provider, Queue, QueueConfig, Region,
    Registrar, Registration, Use, WeakDevice,
};
use tokio_doca::{Error, ErrorKind, Result};

use super::adapter::TABLE;
use super::memory;
use super::queue::VerbsQueue;
use super::table::*;
use super::wr::LIST;

#[derive(Clone, Copy)]
pub(super) struct Options {
    /// Work requests that a queue pair takes.
    pub(super) send_queue: u32,
    /// Local pieces in one work request.
    pub(super) max_sge: u32,
}

/// A provider of one device.
pub(crate) struct FakeVerbs {
    info: DevInfo,
    options: Options,
    open: Mutex<Option<WeakDevice>>,
}

/// An open adapter: its protection domain for Dma.
pub(super) struct Context {
    pub(super) table: &'static VerbsTable,
    pub(super) pd: *mut ibv_pd,
    pub(super) options: Options,
    pub(super) jobs: AtomicU64,
}

// SAFETY: libibverbs may be called from any thread; the domain is destroyed once, when nobody has the context.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

struct VerbsDevice {
    info: DevInfo,
    context: Arc<Context>,
}

impl FakeVerbs {
    pub(crate) fn new(name: &str, send_queue: u32, max_sge: u32) -> FakeVerbs {
        // A Job is at most 2^31 bytes on an RC queue pair; little here, so that the limit can be tried.
        let caps = Caps::for_dma(1 << 20, LIST as u32, 1024);
        let pci_addr = PciAddr::new(0xf0, 0, 0);
        FakeVerbs {
            info: DevInfo::new("fake-verbs", name, pci_addr, PciFunction::Pf, caps),
            options: Options {
                send_queue,
                max_sge,
            },
            open: Mutex::default(),
        }
    }

    pub(crate) fn open_device(&self) -> Device {
        self.open(&self.info).unwrap()
    }
}

impl Provider for FakeVerbs {
    fn name(&self) -> &'static str {
        "fake-verbs"
    }

    fn devices(&self) -> Result<Vec<DevInfo>> {
        Ok(vec![self.info.clone()])
    }

    fn open(&self, info: &DevInfo) -> Result<Device> {
        if *info != self.info {
            return Err(Error::new(ErrorKind::NotFound, "open", "another device"));
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.as_ref().and_then(WeakDevice::upgrade) {
            return Ok(device);
        }
        // SAFETY: no arguments.
        let pd = unsafe { (TABLE.alloc_pd)() };
        if pd.is_null() {
            return Err(Error::new(
                ErrorKind::Initialization,
                "open",
                "ibv_alloc_pd",
            ));
        }
        let context = Arc::new(Context {
            table: &TABLE,
            pd,
            options: self.options,
            jobs: AtomicU64::new(0),
        });
        let device = VerbsDevice {
            info: info.clone(),
            context,
        };
        let device = Device::from_adapter(Arc::new(device));
        *open = Some(device.downgrade());
        Ok(device)
    }
}

// SAFETY: `open_queue` makes a new queue, and keeps none.
unsafe impl Adapter for VerbsDevice {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(VerbsQueue::open(&self.context, &config)?))
    }

    fn jobs(&self) -> Option<u64> {
        Some(self.context.jobs.load(Ordering::Relaxed))
    }
}

impl Registrar for VerbsDevice {
    fn register(&self, region: &Region, purpose: Use) -> Result<Registration> {
        match purpose {
            Use::Dma => memory::register(&self.context, region),
            _ => Err(Error::new(ErrorKind::NotSupported, "register", "Dma alone")),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nobody has the domain's regions or queue pairs: they hold the context.
        unsafe { (self.table.dealloc_pd)(self.pd) };
    }
}
