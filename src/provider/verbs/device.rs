//! An open adapter, as the layers above see it.
#![expect(unsafe_code, reason = "implements Adapter")]

use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::adapter::{Context, EndpointBlob, memory};
use super::connection::EventTargets;
use super::managed::Listener;
use super::workq::VerbsQueue;
use crate::device::contract::CmArrivals;
use crate::device::{
    Adapter, CmListening, DevInfo, ExportRequest, Exported, Imported, Liveness, Queue, QueueConfig,
    Region, Registrar, Registration, RegistrationUse,
};
use crate::error::Result;

pub(super) struct VerbsDevice {
    info: DevInfo,
    watched: Arc<EventTargets>,
    context: Arc<Context>,
}

impl VerbsDevice {
    pub(super) fn new(
        info: DevInfo,
        watched: Arc<EventTargets>,
        context: Arc<Context>,
    ) -> VerbsDevice {
        VerbsDevice {
            info,
            watched,
            context,
        }
    }
}

// SAFETY: the adapter duties.
// 1. `open_queue` makes a new queue, and keeps none.
// 2. Every part is made from the same context.
// 3. The information is made once, from the limits that the adapter reports. libibverbs enforces
//    each limit, and refuses what exceeds it.
// 4. There are no sync events.
// 5. The context owns the domain, or was promised it (`Device::from_pd`).
unsafe impl Adapter for VerbsDevice {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(VerbsQueue::open(
            &self.context,
            &self.watched,
            &config,
        )?))
    }

    fn check_peer(&self, blob: &[u8]) -> Result<()> {
        EndpointBlob::parse(blob)?.is_of_this_library()
    }

    fn listen_at(
        &self,
        addr: SocketAddr,
        backlog: u32,
        arrivals: CmArrivals,
    ) -> Result<Box<dyn CmListening>> {
        let listener = Listener::listen(&self.context, &self.watched, addr, backlog, arrivals)?;
        Ok(Box::new(listener))
    }

    fn liveness(&self) -> Liveness {
        match self.context.is_dead() {
            true => Liveness::Dead,
            false => Liveness::Alive,
        }
    }

    fn jobs(&self) -> Option<u64> {
        let cores = self.watched.cores();
        let counted: u64 = cores.iter().map(|core| core.jobs()).sum();
        Some(counted + self.context.jobs.load(Relaxed))
    }

    fn pd(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.context.pd().cast())
    }
}

// SAFETY: the registrar duties. 1 and 2. A key is that of a memory region of this context, for only
// this range and use. A Registration deregisters it (`memory::Mr`). A region that cannot be
// deregistered is useful only to queue pairs that may reach the memory in any case. 3. An export is
// a memory region of its own, with the permissions for peers. If the region cannot be deregistered,
// the leak flag is set. 4. An import is what the blob contains. The adapters of both sides check
// the bounds and permissions of its rkey, and this process does not touch the addresses.
unsafe impl Registrar for VerbsDevice {
    fn register(&self, region: &Region, purpose: RegistrationUse) -> Result<Registration> {
        memory::register(&self.context, region, purpose)
    }

    fn export(&self, offer: &ExportRequest) -> Result<Exported> {
        memory::export(&self.context, offer)
    }

    fn import(&self, blob: &[u8], _deadline: Instant) -> Result<Imported> {
        memory::import(blob)
    }
}
