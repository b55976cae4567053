//! Jobs and their completions: plain data that goes to a device and comes back.
//!
//! `cpu` does jobs on the CPU, for any provider, and `hasher` hashes. Of the other rooms of `device` it imports
//! `info` and `memory`.

mod completion;
mod cpu;
mod event;
mod hasher;
mod job;
mod rdma;
mod segment;
mod sha;

pub use completion::{Arrival, Completion, RecvOpcode, Token};
pub(crate) use cpu::{CpuJob, CpuState};
pub use event::EventJob;
pub use hasher::Hasher;
pub(crate) use job::AsJob;
pub use job::{AccelJob, CopyJob, Job};
pub use rdma::{RdmaJob, Verb};
pub use segment::{Segment, Segments};
pub use sha::{SessionRef, ShaJob};
