//! A provider that is no part of `tokio-doca`: a device that copies, hashes, computes CRCs, and has
//! opcodes of its own. A test can have it sin against one duty of the provider contract, to see
//! whether the contract suite detects that.

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

/// Writes the source to the destination, each byte XORed with the lowest byte of the argument.
pub const XOR: u32 = 7;
/// Writes the lowest byte of the argument to all of the destination.
pub const FILL: u32 = 8;
/// Returns the argument.
pub const ECHO: u32 = 9;

/// A violation of the contract that the device commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sin {
    /// No violation: the device keeps all duties.
    None,
    /// Duty 3: it accepts jobs of kinds that it does not know, and they never complete.
    TakesAnyKind,
    /// Duty 1: every 20th job never completes.
    LosesOne,
    /// Duty 1: every 20th Job completes twice.
    CompletesTwice,
    /// Duty 1: every 20th Job completes under a Token that was never submitted.
    ForgesToken,
    /// Duty 1: every 20th job reports one byte less than it wrote.
    Miscounts,
    /// Duty 1: every 20th job omits the last byte.
    WritesTooLittle,
    /// Duty 1: a digest has a wrong bit.
    WrongDigest,
    /// Duty 1: when a list is hashed, the first byte of the second piece is skipped.
    SkipsAtABoundary,
    /// Duty 1: the last part of a message is hashed as if it were the whole message.
    ForgetsTheSession,
    /// Duty 1: every 20th job hashes its part into the session of the job before it.
    MixesSessions,
    /// Duty 1: every 20th job hashes its part twice.
    HashesTwice,
    /// Duty 1: a CRC has a wrong bit.
    WrongCrc,
    /// Duty 1: a CRC ignores its seed and starts anew.
    IgnoresTheSeed,
    /// Duty 1: a CRC is not compared with the expected one.
    PassesAnyCrc,
    /// Duty 1: `reap` counts more completions than it has written.
    CountsTooMany,
    /// Duty 2: a job is executed only after its completion was reaped.
    CompletesEarly,
    /// Duty 2: a job's destination is written again after its completion was reaped.
    WritesLate,
    /// Duty 3: a refused job is executed.
    DoesTheRefused,
    /// Duty 3: a whole batch is accepted, and an error is returned all the same.
    RefusesNothing,
    /// Duty 3: all jobs are refused for ever.
    RefusesForEver,
    /// Duty 4: a job begins inline although the device reports that it did not run.
    BeginsInline,
    /// Duty 4: a job that runs inline reports one byte less than a submitted one.
    MiscountsInline,
    /// Duty 5: signals at each completion, armed or not.
    SignalsUnasked,
    /// Duty 5: never signals.
    NeverSignals,
    /// Duty 5: `arm` returns `Armed` although a completion waits.
    ArmsBlindly,
    /// Duty 5: `arm` returns `Ready` without arming.
    ReadyUnarmed,
    /// Duty 6: keeps the argument of `retire` for ever.
    KeepsForEver,
    /// Duty 6: drops the argument of `retire` at once, with jobs in flight.
    DropsEarly,
    /// Duty 7: `reap` waits for a completion.
    BlocksInReap,
    /// Adapter duty 1: every caller gets the same queue.
    SharesOneQueue,
    /// Adapter duty 3: the device's information changes with each queue.
    ChangesItsMind,
    /// Registrar duty 1: a registration returns the key of the region registered before.
    MixesUpKeys,
    /// Registrar duty 1: dropping one registration drops all others too.
    ForgetsOthers,
}

/// The provider of the device `outside0`.
pub struct Outside {
    sin: Sin,
    control: Arc<Control>,
}

/// The controls of the device that a test can use.
#[derive(Default)]
struct Control {
    refuse: AtomicBool,
    /// While a test locks this, the device begins no job.
    gate: Mutex<()>,
    keys: Mutex<Keys>,
}

/// The registered memory, by its key.
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

    /// Stops the device from beginning jobs until the guard is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.control.hold()
    }

    /// Opens the provider's device.
    pub fn device(&self) -> Device {
        let info = self.devices().expect("there is one").remove(0);
        self.open(&info).expect("it opens")
    }

    /// Lets the device refuse the second job of the next batch.
    pub fn refuse_next(&self) {
        self.control.refuse.store(true, Ordering::SeqCst);
    }
}

impl Control {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if all of this memory is registered.
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
    /// The other information, for `Sin::ChangesItsMind`.
    other: DevInfo,
    /// True if `info` returns `other`.
    changed: AtomicBool,
    sin: Sin,
    control: Arc<Control>,
    /// The queue that every caller gets with `Sin::SharesOneQueue`.
    queue: OnceLock<Arc<dyn Queue>>,
}

// SAFETY: keeps the adapter duties, except for the sins, which a test runs only under the suite.
// `open_queue` makes a new queue and keeps none. The information is made once; the queues accept
// all jobs within its capabilities, and use the same keys for memory. The device has no other
// calls.
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

// SAFETY: keeps the registrar duties, except for the sins, which a test runs only under the suite.
// A job with memory that is not in `keys` fails, and the memory of a completed job is not accessed.
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
