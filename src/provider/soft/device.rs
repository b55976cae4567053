//! An open software device.
#![expect(unsafe_code, reason = "implements Adapter")]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::engine::{Affinity, Engine};
use super::event::SoftEvent;
use super::fault::Faults;
use super::options::Options;
use super::queue::SoftQueue;
use super::shared::DeviceShared;
use super::topology::CurrentTopology;
use super::{event, fabric};
use crate::device::{
    Adapter, Audience, DevInfo, EventConfig, EventCounter, ExportRequest, Exported, Imported,
    Processor, Queue, QueueConfig, Region, Registrar, Registration, RegistrationUse, RepInfo,
};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

pub(super) struct SoftDevice {
    info: DevInfo,
    /// The number of the device's port. It stays when the topology changes.
    port: u8,
    topology: CurrentTopology,
    options: Options,
    shared: Arc<DeviceShared>,
    engines: Mutex<Engines>,
}

/// The maximum number of engines; each is a thread.
const MAX_ENGINES: usize = 256;

/// The engines of a device. They start with the first queue; new queues are assigned to them in
/// turn.
#[derive(Default)]
struct Engines {
    started: Vec<Arc<Engine>>,
    queues: usize,
}

impl SoftDevice {
    pub(super) fn new(
        info: DevInfo,
        options: Options,
        faults: Faults,
        topology: CurrentTopology,
    ) -> SoftDevice {
        let port = topology.lock().port_of(info.name()).unwrap_or(u8::MAX);
        let shared = Arc::new(DeviceShared::new(&info, faults));
        SoftDevice {
            info,
            port,
            topology,
            options,
            shared,
            engines: Mutex::default(),
        }
    }

    fn engines(&self) -> MutexGuard<'_, Engines> {
        lock(&self.engines)
    }

    /// Checks that this device may import memory or an event that a function of port `port` has
    /// exported to the DPU.
    fn check_dpu_import(&self, port: u8) -> Result<()> {
        let name = self.info.name();
        let imports = match self.topology.lock().port_name(port) {
            Some(port) => format!("the DPU's {port} does"),
            None => "this card has no such port".to_owned(),
        };
        let text = if !self.info.caps().import_dpu {
            format!("the blob is for the DPU, and device {name} does not import such: {imports}")
        } else if self.port != port {
            format!("the blob is from another port than that of device {name}: {imports}")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }
}

// SAFETY: the adapter duties.
// 1. `open_queue` makes a new queue, and keeps none.
// 2. Every part is made from `self.shared`. Keys of registered memory are not used; keys of imports
//    are valid in the whole process.
// 3. The information is made once; the queues refuse nothing that lies within its capabilities.
// 4. `event/connect.rs` argues where a counter lies.
// 5. There is no protection domain.
unsafe impl Adapter for SoftDevice {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        let count = self.options.engines;
        if count > MAX_ENGINES {
            let text = format!("{count} engines: a software device has at most {MAX_ENGINES}");
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        let mut engines = self.engines();
        if engines.started.is_empty() {
            let affinity = Affinity::new(self.options.engine_cpus.as_deref())?;
            let (info, spin) = (&self.info, self.options.engine_spin);
            let start = |number| Engine::start(info, spin, affinity, &self.shared, number);
            let started = (0..count).map(|number| start(number).map(Arc::new));
            engines.started = started.collect::<Result<_>>()?;
        }
        let engine = match engines.started.len() {
            0 => None,
            count => Some(Arc::clone(&engines.started[engines.queues % count])),
        };
        engines.queues += 1;
        Ok(Arc::new(SoftQueue::open(
            &config,
            Arc::clone(&self.shared),
            engine,
        )))
    }

    fn representors(&self) -> Result<Vec<RepInfo>> {
        let name = self.info.name();
        let list = self.topology.lock().representors(name);
        list.ok_or_else(|| {
            let text = format!("the card has no port {name} any more");
            Error::new(ErrorKind::NotFound, None, text)
        })
    }

    fn channel_domain(&self, representor: Option<&RepInfo>) -> Result<String> {
        match representor {
            Some(info) => Ok(info.vuid().to_owned()),
            None if !self.info.caps().channel => {
                let name = self.info.name();
                let text = format!(
                    "device {name} is a port of the DPU: a Channel is between a function and its representor"
                );
                Err(Error::new(ErrorKind::NotSupported, None, text))
            }
            None => Ok(self.topology.lock().vuid(self.info.name())),
        }
    }

    fn check_peer(&self, blob: &[u8]) -> Result<()> {
        fabric::Ticket::parse(&fabric::ENDPOINT, blob)?.is_of_this_host()
    }

    fn open_event(&self, config: EventConfig) -> Result<Arc<dyn EventCounter>> {
        let units = [config.publisher, config.subscriber];
        let is_elsewhere = |unit: &Processor| matches!(unit, Processor::Dpa | Processor::Gpu);
        if units.iter().any(is_elsewhere) {
            let text =
                "neither the DPA nor a GPU sets a sync event of this device, or waits for one";
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        }
        let shares = units.contains(&Processor::Dpu) || config.backing.is_some();
        Ok(match shares {
            true => SoftEvent::sharable(config.backing, self.port)?,
            false => SoftEvent::private(),
        })
    }

    fn import_event(&self, blob: &[u8], deadline: Instant) -> Result<Arc<dyn EventCounter>> {
        let ticket = fabric::Ticket::parse(&fabric::EVENT, blob)?;
        self.check_dpu_import(ticket.info(event::EventInfo::parse)?.port)?;
        Ok(event::import(&ticket, deadline)?)
    }

    fn jobs(&self) -> Option<u64> {
        let engines: u64 = self
            .engines()
            .started
            .iter()
            .map(|engine| engine.jobs())
            .sum();
        Some(self.shared.inline_jobs.sum() + self.shared.own_jobs.load(Relaxed) + engines)
    }

    fn engine_time(&self) -> Option<Duration> {
        Some(
            self.engines()
                .started
                .iter()
                .map(|engine| engine.worked())
                .sum(),
        )
    }
}

// SAFETY: the registrar duties.
// 1 and 2. The key is not used: the thread that does a job reaches its memory by the address, until
//    the job's completion.
// 3 and 4. As `fabric` says: blobs are proved by a secret, and each job checks whether the export
//    still exists.
unsafe impl Registrar for SoftDevice {
    fn register(&self, _region: &Region, _purpose: RegistrationUse) -> Result<Registration> {
        // The device copies through the program's own mapping, whatever the memory is registered
        // for.
        Ok(Registration::new(0, None))
    }

    fn export(&self, offer: &ExportRequest) -> Result<Exported> {
        let name = self.info.name();
        if offer.audience() == Audience::Dpu && !self.info.caps().export_dpu {
            let text = format!("device {name} is the DPU's: functions of the host export to it");
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        }
        fabric::export(self.port, offer)
    }

    fn import(&self, blob: &[u8], deadline: Instant) -> Result<Imported> {
        let ticket = fabric::Ticket::parse(&fabric::MEMORY, blob)?;
        let memory = ticket.info(fabric::MemoryInfo::parse)?;
        if memory.audience == Audience::Dpu {
            self.check_dpu_import(memory.port)?;
        }
        fabric::import(&ticket, &memory, deadline)
    }
}
