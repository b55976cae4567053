//! Devices, their capabilities, and the access that they have to memory.
//!
//! A user opens a [`Device`], and reads its [`DevInfo`]: its names, its PCI address, and [`Caps`]
//! with the limits of each kind of operation. A provider of other devices implements the traits of
//! [`contract`].

// `info` and `memory` import no other module. `job` imports both, `queue` imports `job` and
// `memory`, `provider` imports `info`, `memory` and `queue`, and `representor` imports `info` and
// `provider`.
pub mod contract;
mod info;
mod job;
mod memory;
mod provider;
mod queue;
mod representor;

pub(crate) use contract::{
    AccelJob, Adapter, Armed, Arrival, Backing, CmAnswer, CmListening, CmOffer, CmOptions,
    Completion, CopyJob, CrcJob, Dialling, Endpoint, EndpointConfig, EndpointState, EventBacking,
    EventConfig, EventCounter, EventJob, EventPort, EventWait, ExportRequest, Exported, Hasher,
    ImportOrigin, Imported, Job, KeepAlive, LeakFlag, Processor, Provider, Queue, QueueConfig,
    RdmaJob, Receive, Region, Registrar, Registration, Segment, Segments, SessionRef, ShaJob,
    Signal, Submit, Submitted, Token, Verb,
};
pub use info::{
    AccelCaps, Algorithm, Caps, CrcCaps, DevInfo, DmaCaps, JobKind, PciAddr, PciFunction, RdmaCaps,
    RdmaKind, RepCaps, RepFilter, RepInfo, RepKind, ShaCaps, SyncEventCaps, SyncEventKind,
};
pub(crate) use job::{AccelOrder, AsJob, CpuJob, CpuState, CrcOrder, Cursor, Lent, OnLent};
pub use job::{CrcOptions, RecvOpcode};
pub(crate) use memory::volatile_copy;
pub use memory::{Access, Audience, RegistrationUse};
pub use provider::{Device, DeviceId, Liveness, WeakDevice};
pub(crate) use queue::CmRefused;
pub use queue::{Mtu, Path, Transport};
pub use representor::Representor;
