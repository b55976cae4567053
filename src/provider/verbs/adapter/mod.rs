//! An open adapter: its [context] with the protection domains, its capabilities ([traits]), its PCI
//! address ([sysfs]), its addresses ([gids]), its [memory] regions, and the [blobs](blob) and
//! [greetings](greeting) that peers exchange.
//!
//! `wake` is the event that wakes the watcher. These files import `ffi`, and each other in this
//! order: `{memory, gids} > context > {traits, wake}` and `{memory, memory_address, greeting} >
//! blob`.

mod blob;
mod context;
mod gids;
pub(super) mod greeting;
pub(super) mod memory;
mod memory_address;
pub(super) mod sysfs;
mod traits;
mod wake;

pub use blob::Address;
pub(super) use blob::{BlobOrigin, EndpointBlob, random_psn};
pub(super) use context::{Context, device_name};
pub(super) use gids::{Gid, Wish};
pub(super) use memory::{Mr, lkey, remote_flags, rkey};
pub use memory_address::MemoryAddress;
pub(super) use traits::{LIST, PROBES, REQUESTS, adapter_and_port, check, check_ptr};
pub(super) use wake::{event, set_nonblocking, wake};
