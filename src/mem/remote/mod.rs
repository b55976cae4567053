//! Memory that another process exported: its import, ranges of it, and what a job keeps of a range.
//!
//! Of the other modules of `mem`, this one imports `pool` and those that `pool` imports.

mod buf;
mod import;
mod lease;
mod mmap;
mod own;

pub use buf::RemoteBuf;
pub use import::Import;
pub(super) use lease::{LastImport, RemoteRead, RemoteWrite};
pub use mmap::RemoteMmap;
