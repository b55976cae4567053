//! A provider that is no part of `tokio-doca`: a device that copies, hashes and
//! computes CRCs, and has opcodes of its own. It can be told to sin
//! against one duty of the contract, so that a test sees whether the suite finds out.

mod crc;
mod hash;
mod queue;
pub mod rdma;
pub mod sync_event;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use tokio_doca::device::contract::{
    Adapter, Provider, Queue, QueueConfig, Region, Registrar, Registration, Segment,
};
use tokio_doca::device::{CrcCaps, RegistrationUse};
use tokio_doca::{
    Device, Result,
    device::{AccelCaps, Caps, DevInfo, PciAddr, PciFunction, ShaCaps},
};

/// Writes the source to the destination, each byte combined with the lowest one of the argument.
pub const XOR: u32 = 7;
/// Writes the lowest byte of the argument to all of the destination.
pub const FILL: u32 = 8;
/// Answers the argument.
pub const ECHO: u32 = 9;

/// What the device does against the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sin {
    /// Nothing: it keeps all duties.
    None,
    /// Duty 3: it accepts jobs of kinds that it does not know, and they never complete.
    TakesAnyKind,
    /// Duty 1: the 20th Job never completes.
    LosesOne,
    /// Duty 1: the 20th Job completes twice.
    CompletesTwice,
    /// Duty 1: the 20th Job completes under a Token that was never submitted.
    ForgesToken,
    /// Duty 1: the 20th Job says one byte less than it wrote.
    Miscounts,
    /// Duty 1: the 20th Job leaves the last byte out.
    WritesTooLittle,
    /// Duty 1: a digest has a wrong bit.
    WrongDigest,
    /// Duty 1: of a list that is hashed, the first byte of the second piece is left out.
    SkipsAtABoundary,
    /// Duty 1: the last part of a message is hashed as if it were all of it.
    ForgetsTheSession,
    /// Duty 1: a part is hashed into the session of the Job before it.
    MixesSessions,
    /// Duty 1: a part is hashed twice.
    HashesTwice,
    /// Duty 1: a CRC has a wrong bit.
    WrongCrc,
    /// Duty 1: a CRC begins anew, whatever its seed is.
    IgnoresTheSeed,
    /// Duty 1: a CRC is not compared with the expected one.
    PassesAnyCrc,
    /// Duty 1: more completions are counted than were written down.
    CountsTooMany,
    /// Duty 2: a Job's completion is handed out, and then it is done.
    CompletesEarly,
    /// Duty 2: a Job's destination is written once more after its completion was handed out.
    WritesLate,
    /// Duty 3: a refused Job is carried out.
    DoesTheRefused,
    /// Duty 3: all of a batch is accepted, and something is refused.
    RefusesNothing,
    /// Duty 3: a Job is refused for ever.
    RefusesForEver,
    /// Duty 4: begins inline, and says that it did not.
    BeginsInline,
    /// Duty 4: answers inline what a submission would not.
    MiscountsInline,
    /// Duty 5: rings at each completion.
    RingsUnasked,
    /// Duty 5: never rings.
    NeverRings,
    /// Duty 5: a completion waits, and `arm` says that none does.
    ArmsBlindly,
    /// Duty 5: says that a completion waits, and does not arm.
    ReadyUnarmed,
    /// Duty 6: keeps what `retire` is given for ever.
    KeepsForEver,
    /// Duty 6: drops it at once, with Jobs in flight.
    DropsEarly,
    /// Duty 7: `reap` waits for a completion.
    BlocksInReap,
    /// Adapter duty 1: there is one queue, which every caller gets.
    SharesOneQueue,
    /// Adapter duty 3: the device says something else of itself with each queue.
    ChangesItsMind,
    /// Registrar duty 1: a key is that of the region registered before.
    MixesUpKeys,
    /// Registrar duty 1: when a registration is dropped all others go too.
    ForgetsOthers,
}

/// The provider of `outside0`.
pub struct Outside {
    sin: Sin,
    control: Arc<Control>,
}

/// What a test can make the device do.
#[derive(Default)]
struct Control {
    refuse: AtomicBool,
    /// The device begins no Job while somebody holds it.
    gate: Mutex<()>,
    keys: Mutex<Keys>,
}

/// The memory that is registered, by its key.
#[derive(Default)]
struct Keys {
    ranges: HashMap<u64, Range<usize>>,
    last: u64,
}

impl Outside {
    pub fn new(sin: Sin) -> Outside {
        Outside {
            sin,
            control: Arc::default(),
        }
    }

    /// The device begins no Job before this is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.control.hold()
    }

    /// Its device.
    pub fn device(&self) -> Device {
        let info = self.devices().expect("there is one").remove(0);
        self.open(&info).expect("it opens")
    }

    /// The second Job of the next batch is refused.
    pub fn refuse_next(&self) {
        self.control.refuse.store(true, Ordering::SeqCst);
    }
}

impl Control {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device knows all of this memory by its keys.
    fn knows(&self, segments: &[Segment]) -> bool {
        let keys = self.keys();
        segments.iter().all(|segment| {
            let start = segment.addr().addr().get();
            let known = keys.ranges.get(&segment.key());
            known.is_some_and(|it| it.start <= start && start + segment.len() <= it.end)
        })
    }

    fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_held(&self) -> bool {
        matches!(self.gate.try_lock(), Err(TryLockError::WouldBlock))
    }
}

impl Provider for Outside {
    fn name(&self) -> &'static str {
        "outside"
    }

    fn devices(&self) -> Result<Vec<DevInfo>> {
        let mut caps = Caps::for_dma(1 << 17, 5, 300);
        caps.accel = Some(AccelCaps::new([XOR, FILL, ECHO], 1 << 17, 5));
        caps.sha = Some(ShaCaps::on_cpu(1 << 17, 5));
        caps.crc = Some(CrcCaps::new(1 << 17, 5));
        let addr = PciAddr::new(0x0f, 0, 0);
        let info = DevInfo::new(self.name(), "outside0", addr, PciFunction::Pf, caps);
        Ok(vec![info])
    }

    fn open(&self, info: &DevInfo) -> Result<Device> {
        let other = format!("{} again", info.name());
        let caps = info.caps().clone();
        let other = DevInfo::new(self.name(), other, None, info.function(), caps);
        Ok(Device::from_adapter(Arc::new(Opened {
            info: info.clone(),
            other,
            changed: AtomicBool::new(false),
            sin: self.sin,
            control: Arc::clone(&self.control),
            queue: OnceLock::new(),
        })))
    }
}

struct Opened {
    info: DevInfo,
    /// What it says by a sin, and whether it does now.
    other: DevInfo,
    changed: AtomicBool,
    sin: Sin,
    control: Arc<Control>,
    /// The first queue, for a sin.
    queue: OnceLock<Arc<dyn Queue>>,
}

// SAFETY: the adapter duties, but for the sins, each of which a test runs under the suite alone.
// `open_queue` makes a new queue, and keeps none; the information is made once, and the queues take
// what lies within its capabilities, and know memory by the same keys. There is nothing else.
unsafe impl Adapter for Opened {
    fn info(&self) -> &DevInfo {
        match self.changed.load(Ordering::SeqCst) {
            true => &self.other,
            false => &self.info,
        }
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        if let (Sin::SharesOneQueue, Some(queue)) = (self.sin, self.queue.get()) {
            return Ok(Arc::clone(queue));
        }
        let queue = queue::open(config, self.sin, Arc::clone(&self.control))?;
        match self.sin {
            Sin::SharesOneQueue => drop(self.queue.set(Arc::clone(&queue))),
            Sin::ChangesItsMind => {
                self.changed.fetch_not(Ordering::SeqCst);
            }
            _ => {}
        }
        Ok(queue)
    }
}

// SAFETY: the registrar duties, but for the sins, each of which a test runs under the suite alone.
// A job whose memory is not in `keys` fails, and the memory of one that is over is not touched.
// Nothing is exported or imported.
unsafe impl Registrar for Opened {
    fn register(&self, region: &Region, _purpose: RegistrationUse) -> Result<Registration> {
        let mut keys = self.control.keys();
        keys.last += 1;
        let (key, start) = (keys.last, region.addr().addr().get());
        keys.ranges.insert(key, start..start + region.len());
        let (control, sin) = (Arc::clone(&self.control), self.sin);
        let guard = Registered { control, sin, key };
        let told = match self.sin {
            Sin::MixesUpKeys => key - 1,
            _ => key,
        };
        Ok(Registration::new(told, Some(Box::new(guard))))
    }
}

struct Registered {
    control: Arc<Control>,
    sin: Sin,
    key: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut keys = self.control.keys();
        match self.sin {
            Sin::ForgetsOthers => keys.ranges.clear(),
            _ => drop(keys.ranges.remove(&self.key)),
        }
    }
}
