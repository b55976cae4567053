//! [`SyncEventBuilder`] and [`Location`], by which a sync event is built.

use std::sync::Arc;

use super::context::WAITS;
use super::{BlockingSyncEvent, SyncEvent};
use crate::device::{Device, EventConfig, EventCounter, Processor};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Mmap;
use crate::reactor::WorkQ;

/// The side that sets a sync event, or waits for it. This is a hint: either side may do both.
///
/// ```
/// use tokio_doca::sync_event::{Location, SyncEvent};
/// # use tokio_doca::{Device, WorkQ};
///
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// // The DPU sets the event, and this side waits for it.
/// let cpu = Location::Cpu(&device);
/// let event = SyncEvent::builder().publisher(Location::Dpu).subscriber(cpu).attach(&workq)?;
/// # drop(event);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Location<'a> {
    /// The CPU of this side, which reaches the event through this device.
    #[doc(alias = "doca_sync_event_publisher_add_location_cpu")]
    #[doc(alias = "doca_sync_event_subscriber_add_location_cpu")]
    #[doc(alias = "doca_sync_event_add_publisher_location_cpu")]
    #[doc(alias = "doca_sync_event_add_subscriber_location_cpu")]
    Cpu(&'a Device),
    /// The DPU, or a process that represents it.
    #[doc(alias = "doca_sync_event_publisher_add_location_dpu")]
    #[doc(alias = "doca_sync_event_subscriber_add_location_dpu")]
    #[doc(alias = "doca_sync_event_add_publisher_location_remote_pci")]
    #[doc(alias = "doca_sync_event_add_subscriber_location_remote_pci")]
    Dpu,
    /// The DPU's data path accelerator. Such events cannot be built: `NotSupported`.
    #[doc(alias = "doca_sync_event_publisher_add_location_dpa")]
    #[doc(alias = "doca_sync_event_subscriber_add_location_dpa")]
    #[doc(alias = "doca_sync_event_add_publisher_location_dpa")]
    #[doc(alias = "doca_sync_event_add_subscriber_location_dpa")]
    Dpa,
    /// A graphics processor. Such events cannot be built: `NotSupported`.
    #[doc(alias = "doca_sync_event_publisher_add_location_gpu")]
    #[doc(alias = "doca_sync_event_subscriber_add_location_gpu")]
    #[doc(alias = "doca_sync_event_add_publisher_location_gpu")]
    #[doc(alias = "doca_sync_event_add_subscriber_location_gpu")]
    Gpu,
}

impl Location<'_> {
    fn unit(&self) -> Processor {
        match self {
            Location::Cpu(_) => Processor::Cpu,
            Location::Dpu => Processor::Dpu,
            Location::Dpa => Processor::Dpa,
            Location::Gpu => Processor::Gpu,
        }
    }
}

/// Builds a [`SyncEvent`], or a [`BlockingSyncEvent`].
///
/// ```
/// use tokio_doca::sync_event::{Location, SyncEvent};
/// # use tokio_doca::{Device, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// let cpu = Location::Cpu(&device);
/// let event = SyncEvent::builder()
///     .publisher(cpu)
///     .subscriber(cpu)
///     .waits(2)                                       // at once
///     .attach(&workq)?;
/// let (reached, before) = tokio::try_join!(event.wait_gt(9), event.add(10))?;
/// assert_eq!((reached, before), (10, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before attach or start"]
pub struct SyncEventBuilder<'a> {
    publishers: (u32, Option<Location<'a>>),
    subscribers: (u32, Option<Location<'a>>),
    backing: Option<(&'a Mmap, usize)>,
    waits: u32,
}

impl<'a> SyncEventBuilder<'a> {
    pub(super) fn new() -> SyncEventBuilder<'a> {
        SyncEventBuilder {
            publishers: (0, None),
            subscribers: (0, None),
            backing: None,
            waits: WAITS,
        }
    }

    /// Names the side that sets the event. There must be exactly one.
    pub fn publisher(mut self, location: Location<'a>) -> Self {
        self.publishers = (self.publishers.0 + 1, Some(location));
        self
    }

    /// Names the side that waits for the event. There must be exactly one.
    pub fn subscriber(mut self, location: Location<'a>) -> Self {
        self.subscribers = (self.subscribers.0 + 1, Some(location));
        self
    }

    /// Puts the counter into the 8 bytes of `mmap` from `offset` on, instead of into memory of the
    /// device. `offset` must be a multiple of 8. This is for an event between the CPU and the DPU.
    /// The counter begins with the value of these bytes, which are in use as long as the event
    /// exists.
    ///
    /// An importer of the event gets the memory of the Mmap as a whole, to read and to write.
    #[doc(alias = "doca_sync_event_set_addr")]
    pub fn backing(mut self, mmap: &'a Mmap, offset: usize) -> Self {
        self.backing = Some((mmap, offset));
        self
    }

    /// Sets the number of entries for waits on the device. Defaults to 64. Each entry takes about
    /// 80 bytes of memory. When all entries are taken, a further wait queues for one, and meanwhile
    /// reads the counter itself. Outside of busy mode it pauses between two reads, for 0.13 ms at
    /// first and twice as long each time, up to 8.4 ms, so that it may see a value up to 8.4 ms
    /// late. The waits in the queue share a timer, which wakes all of them: so each reads more
    /// often while another wait has just begun to queue. A [`BlockingSyncEvent`] ignores this
    /// setting.
    pub fn waits(mut self, waits: u32) -> Self {
        self.waits = waits;
        self
    }

    /// Makes a [`SyncEvent`], and attaches it to a WorkQ. All memory for waits is allocated here.
    ///
    /// # Errors
    ///
    /// - `InvalidValue` unless there is exactly one publisher and one subscriber, at least one of
    ///   them is a CPU, and two CPUs have the same device; if the number of waits is 0 or more than
    ///   the device has; if the WorkQ is deeper than the device allows; and for backing memory if
    ///   the event is not between a CPU and the DPU, the memory is misaligned or not within the
    ///   Mmap, or the Mmap is not registered with the event's device.
    /// - `NotSupported` for a DPA or a GPU, for backing memory that is in no memfd, or if the
    ///   device has no sync events or cannot signal an event-driven WorkQ.
    /// - `NotPermitted` for backing memory without `DPU_READ_WRITE`; `InUse` if a pool or an array
    ///   uses the backing memory; `BadState` if its Mmap is stopped, or the WorkQ was shut down.
    /// - `Full` if the WorkQ already has 8 devices, or 4,094 Rdmas and sync events; `NoMemory` or
    ///   `OperatingSystem` if the system refuses memory or a descriptor.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(self, workq: &WorkQ) -> Result<SyncEvent> {
        const OP: &str = "SyncEventBuilder::attach";
        let device = self.check(OP)?;
        SyncEvent::on(device, workq, self.waits, || self.make(OP, device))
    }

    /// Makes a [`BlockingSyncEvent`], which needs no WorkQ.
    ///
    /// # Errors
    ///
    /// As [`SyncEventBuilder::attach`], except the errors about the number of waits and the WorkQ.
    #[doc(alias = "doca_sync_event_start")]
    pub fn start(self) -> Result<BlockingSyncEvent> {
        const OP: &str = "SyncEventBuilder::start";
        let device = self.check(OP)?;
        Ok(BlockingSyncEvent::new(device, self.make(OP, device)?))
    }

    /// Checks the locations and the settings, and returns the device of the event.
    fn check(&self, op: &'static str) -> Result<&'a Device> {
        let refuse = |kind, text: String| Err(Error::new(kind, op, text));
        let one = |what, (count, location): (u32, Option<Location<'a>>)| match location {
            Some(location) if count == 1 => Ok(location),
            _ => {
                let text = format!("{count} {what}s: a sync event has exactly one");
                Err(Error::new(ErrorKind::InvalidValue, op, text))
            }
        };
        let publisher = one("publisher", self.publishers)?;
        let subscriber = one("subscriber", self.subscribers)?;
        let units = [publisher.unit(), subscriber.unit()];
        if let Some(unit) = units
            .iter()
            .find(|unit| matches!(unit, Processor::Dpa | Processor::Gpu))
        {
            let text = format!("the location {unit:?}: there are the CPU and the DPU");
            return refuse(ErrorKind::NotSupported, text);
        }
        let device = match (publisher, subscriber) {
            (Location::Cpu(one), Location::Cpu(other)) if one != other => {
                let text =
                    "publisher and subscriber are CPUs by way of two devices: an event has one";
                return refuse(ErrorKind::InvalidValue, text.to_owned());
            }
            (Location::Cpu(device), _) | (_, Location::Cpu(device)) => device,
            _ => {
                let text = "neither publisher nor subscriber is a CPU, whose device has the event";
                return refuse(ErrorKind::InvalidValue, text.to_owned());
            }
        };
        if self.backing.is_some() && !units.contains(&Processor::Dpu) {
            let text = "memory of the application's is for an event between a CPU and the DPU";
            return refuse(ErrorKind::InvalidValue, text.to_owned());
        }
        if device.info().caps().sync_event.is_none() {
            let text = format!("device {} has no sync events", device.info().name());
            return refuse(ErrorKind::NotSupported, text);
        }
        Ok(device)
    }

    fn make(&self, op: &'static str, device: &Device) -> Result<Arc<dyn EventCounter>> {
        let unit = |location: &Option<Location<'_>>| {
            location.as_ref().map_or(Processor::Cpu, Location::unit)
        };
        let mut config = EventConfig::new(unit(&self.publishers.1), unit(&self.subscribers.1));
        if let Some((mmap, offset)) = self.backing {
            config.backing = Some(mmap.counter(op, device, offset)?);
        }
        let event = device.adapter().open_event(config);
        event.map_err(|error| error.with_call(op))
    }
}
