//! Awaitable DMA on Tokio.
#![warn(missing_docs, clippy::unwrap_used)]

#[cfg(feature = "contract")]
pub mod contract;
pub mod device;
mod error;
mod mem;
mod ops;
mod provider;
mod reactor;
mod sync;

pub use device::{Access, Caps, DevInfo, Device, DmaCaps, PciAddr, PciFunction};
pub use error::{Error, ErrorKind, JobError, Reason, Result};
pub use mem::{
    Alloc, Buf, BufChain, BufData, BufDataMut, BufInventory, BufPool, BufPoolBuilder, BufSlice,
    Destination, Link, Mmap, MmapBuilder, Source,
};
pub use ops::{Dma, DmaBuilder, DmaCopy};
pub use provider::{add_provider, soft};
pub use reactor::{Mode, Shutdown, WorkQ, WorkQBuilder};
