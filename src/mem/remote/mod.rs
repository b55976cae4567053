//! Memory that another process exported: its import, ranges of it, and what a job keeps of a range.
//!
//! Of the other rooms of `mem` it imports `pool` and those that `pool` imports.

mod buf;
mod import;
mod lease;
mod mmap;

pub use buf::RemoteBuf;
pub use import::Import;
pub(super) use lease::{LastPiece, RemoteRead, RemoteWrite};
pub use mmap::RemoteMmap;
