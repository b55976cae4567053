//! The Mmap: where its memory comes from, which devices hold it, and to whom it was exported.
//!
//! `builder` makes an Mmap on a memfd (`memfd`, `huge`) or on the application's memory (`owner`);
//! `memory` gives the bytes back. Of the other modules of `mem`, this one imports `ranges`.

mod builder;
mod devices;
mod exports;
mod huge;
mod memfd;
mod memory;
mod mmap;
mod owner;

pub use builder::MmapBuilder;
pub(crate) use devices::Holder;
pub(super) use devices::KeyEntry;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use devices::{Keys, Registrations, register};
pub use huge::HugePages;
pub use mmap::Mmap;
pub(super) use mmap::MmapInner;
