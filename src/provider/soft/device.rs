//! An open software device.
#![expect(unsafe_code, reason = "implements Adapter")]

use std::sync::{Arc, Mutex, PoisonError};

use super::counter::Counter;
use super::engine::Engine;
use super::fault::Faults;
use super::options::Options;
use super::queue::{Rings, SoftQueue};
use crate::device::{Adapter, DevInfo, Queue, QueueConfig, Region, Registrar, Registration, Use};
use crate::error::{Error, ErrorKind, Result};

pub(super) struct SoftDevice {
    info: DevInfo,
    options: Options,
    shared: Arc<DeviceShared>,
    /// Started with the first queue.
    engine: Mutex<Option<Arc<Engine>>>,
}

/// What queues need of their device.
pub(super) struct DeviceShared {
    pub(super) faults: Faults,
    /// Jobs done inline.
    pub(super) inline_jobs: Counter,
}

impl SoftDevice {
    pub(super) fn new(info: DevInfo, options: Options, faults: Faults) -> SoftDevice {
        let shared = Arc::new(DeviceShared {
            faults,
            inline_jobs: Counter::new(),
        });
        SoftDevice {
            info,
            options,
            shared,
            engine: Mutex::new(None),
        }
    }
}

// SAFETY: `open_queue` makes a new queue, and keeps none.
unsafe impl Adapter for SoftDevice {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = match &mut *engine {
            Some(engine) => engine,
            none => none.insert(Arc::new(Engine::start(
                &self.info,
                &self.options,
                &self.shared,
            )?)),
        };
        let rings = Arc::new(Rings::new(&config));
        let queue = SoftQueue::open(rings, Arc::clone(&self.shared), Arc::clone(engine));
        Ok(Arc::new(queue))
    }

    fn jobs(&self) -> Option<u64> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.shared.inline_jobs.sum() + engine.as_ref().map_or(0, |engine| engine.jobs()))
    }
}

impl Registrar for SoftDevice {
    fn register(&self, _region: &Region, purpose: Use) -> Result<Registration> {
        match purpose {
            // It copies through the mapping itself.
            Use::Dma => Ok(Registration::new(0, None)),
            Use::Rdma => {
                let text = "software devices have no RDMA yet";
                Err(Error::new(ErrorKind::NotSupported, "register", text))
            }
        }
    }
}
