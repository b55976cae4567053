//! A provider that is no part of `tokio-doca`: a device that copies and hashes, and has opcodes of its own. It can be told to sin
//! against one duty of the contract, so that a test sees whether the suite finds out.

mod hash;
mod queue;
pub mod rdma;
pub mod sync_event;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_doca::device::{
    Adapter, Provider, Queue, QueueConfig, Region, Registrar, Registration, Use,
};
use tokio_doca::{AccelCaps, Caps, DevInfo, Device, PciAddr, PciFunction, Result, ShaCaps};

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
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
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
        let addr = PciAddr::new(0x0f, 0, 0);
        let info = DevInfo::new(self.name(), "outside0", addr, PciFunction::Pf, caps);
        Ok(vec![info])
    }

    fn open(&self, info: &DevInfo) -> Result<Device> {
        Ok(Device::from_adapter(Arc::new(Opened {
            info: info.clone(),
            sin: self.sin,
            control: Arc::clone(&self.control),
        })))
    }
}

struct Opened {
    info: DevInfo,
    sin: Sin,
    control: Arc<Control>,
}

// SAFETY: `open_queue` makes a new queue, and keeps none.
unsafe impl Adapter for Opened {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        queue::open(config, self.sin, Arc::clone(&self.control))
    }
}

impl Registrar for Opened {
    fn register(&self, _region: &Region, _purpose: Use) -> Result<Registration> {
        Ok(Registration::new(0, None))
    }
}
