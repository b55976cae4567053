//! Jobs and their completions: plain data that goes to a device and comes back.
//!
//! `hasher` does hashes on the CPU, for any provider. Of the other rooms of `device` it imports
//! `info` and `memory`.

mod completion;
mod hasher;
mod job;
mod sha;

pub use completion::{Completion, RecvOpcode, Token};
pub(crate) use hasher::COST as HASH_COST;
pub use hasher::Hasher;
pub use job::{AccelJob, Class, Job, Segment, Segments};
pub use sha::{SessionRef, ShaJob};
