//! Jobs and their completions: plain data that goes to a device and comes back.
//!
//! Each kind of job has a file, and `job` lists the kinds. A kind implements the trait in `lent`
//! (how it is made from memory), the one in `effect` (what it writes and costs) and, if the CPU can
//! do it, the one in `cpu`. `hasher` hashes the bytes that `read` reads. This module imports `info`
//! and `memory` of `device`.

mod accel;
mod completion;
mod copy;
mod cpu;
mod crc;
mod effect;
mod event;
mod hasher;
mod job;
mod lent;
mod rdma;
mod read;
mod segment;
mod sha;

pub use accel::AccelJob;
pub(crate) use accel::AccelOrder;
pub use completion::{Arrival, Completion, RecvOpcode, Token};
pub use copy::CopyJob;
pub(crate) use crc::CrcOrder;
pub use crc::{CrcJob, CrcOptions};
pub use event::EventJob;
pub use hasher::Hasher;
pub use job::Job;
pub(crate) use job::{AsJob, CpuJob, CpuState};
pub(crate) use lent::{Lent, OnLent};
pub use rdma::{RdmaJob, Verb};
pub(crate) use segment::Cursor;
pub use segment::{Segment, Segments};
pub use sha::{SessionRef, ShaJob};
