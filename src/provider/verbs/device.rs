//! An open adapter, as the crate sees it.
#![expect(unsafe_code, reason = "implements Adapter")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::context::Context;
use super::memory;
use super::queue::VerbsQueue;
use crate::device::{
    Adapter, DevInfo, Exported, Imported, Liveness, Offer, Queue, QueueConfig, Region, Registrar,
    Registration, Use,
};
use crate::error::Result;

pub(super) struct VerbsDevice {
    info: DevInfo,
    context: Arc<Context>,
}

impl VerbsDevice {
    pub(super) fn new(info: DevInfo, context: Arc<Context>) -> VerbsDevice {
        VerbsDevice { info, context }
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

    fn liveness(&self) -> Liveness {
        match self.context.is_dead() {
            true => Liveness::Dead,
            false => Liveness::Alive,
        }
    }

    fn jobs(&self) -> Option<u64> {
        Some(self.context.jobs.load(Relaxed))
    }

    fn pd(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.context.pd().cast())
    }
}

impl Registrar for VerbsDevice {
    fn register(&self, region: &Region, purpose: Use) -> Result<Registration> {
        memory::register(&self.context, region, purpose)
    }

    fn export(&self, offer: &Offer) -> Result<Exported> {
        memory::export(&self.context, offer)
    }

    fn import(&self, blob: &[u8], _deadline: Instant) -> Result<Imported> {
        memory::import(blob)
    }
}
