//! The contract between the crate and a provider of devices: plain data and small traits, no Tokio, no async.
//!
//! # Duties
//!
//! A provider implements [`Provider`], [`Adapter`] and the unsafe trait [`Queue`]. Who does promises:
//!
//! 1. Each accepted Job completes exactly once, with the Token that it was submitted under.
//! 2. After a Job's completion was handed out by `reap`, its memory is not touched.
//! 3. A Job that was not accepted was never seen by the device. Accepted or rejected, never unknown: in doubt it
//!    is accepted.
//! 4. What `try_inline` answered is over: nothing is kept of the Job.
//! 5. After `arm`, the next completion rings, exactly once. Completions that wait already do not ring: `arm` says
//!    [`Armed::Ready`] if there may be some.
//! 6. `retire` keeps what it is given until nothing of the queue is in flight, and then drops it. It never waits.
//! 7. No call blocks, none panics, and what the device or a peer says is checked before it is used.
//!
//! The crate promises in turn: memory named by an accepted Job stays valid and leased until its completion was
//! reaped, or until what `retire` was given is dropped; at most `depth` Jobs of class [`Class::Finite`] are in
//! flight; `reap` is called by one thread at a time; no Token is in flight twice.
//!
//! Unsafe code of the crate does not trust a safe trait: Tokens, lengths and counts are checked.

mod access;
mod caps;
mod completion;
mod info;
mod job;
mod memory;
mod provider;
mod queue;
mod signal;

pub use access::Access;
pub use caps::{Caps, DmaCaps};
pub use completion::{Completion, Token};
pub use info::{DevInfo, PciAddr, PciFunction};
pub use job::{Class, Job, Segment, Segments};
pub use memory::{Region, Registrar, Registration, Use};
pub use provider::{Adapter, Device, DeviceId, Liveness, Provider, WeakDevice};
pub use queue::{Armed, Keep, Queue, QueueConfig, Submitted};
pub use signal::Signal;
